"""The graph container: normalizations of features, moving."""

from __future__ import annotations

import torch

from bitcycle.data import Graph


def graph() -> Graph:
    mask = torch.tensor([True, False, False])
    return Graph(
        features=torch.tensor([[1.0, 3.0, 5.0], [0.0, 0.0, 5.0], [2.0, 6.0, 5.0]]),
        edge_index=torch.tensor([[0, 1], [1, 0]]),
        targets=torch.tensor([0, 1, 0]),
        train_mask=mask,
        validation_mask=mask.roll(1),
        test_mask=mask.roll(2),
        num_classes=2,
    )


def test_rows_are_divided_by_their_sum_and_empty_rows_stay_empty():
    features = torch.tensor([[1.0, 3.0], [0.0, 0.0]])
    one = Graph(**{**vars(graph()), "features": features}).with_row_normalized_features()
    assert one.features.tolist() == [[0.25, 0.75], [0.0, 0.0]]


def test_standardized_features_have_mean_0_and_std_1_and_constant_ones_are_0():
    features = graph().with_standardized_features().features
    assert torch.allclose(features.mean(dim=0), torch.zeros(3), atol=1e-6)
    assert torch.allclose(features.std(dim=0, correction=0)[:2], torch.ones(2), atol=1e-6)
    assert features[:, 2].tolist() == [0.0, 0.0, 0.0]


def test_a_graph_moves_whole():
    moved = graph().to("meta")
    tensors = [value for value in vars(moved).values() if isinstance(value, torch.Tensor)]
    assert len(tensors) == 6
    assert {tensor.device.type for tensor in tensors} == {"meta"}
