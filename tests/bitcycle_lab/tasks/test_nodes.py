"""Node classification on a whole graph."""

import math

import pytest
import torch
from torch import nn

import bitcycle as bc
from bitcycle.quantizers import SBM
from bitcycle_lab.data import IGNORE
from bitcycle_lab.tasks import TASKS, DataConfig, ModelConfig
from tests.bitcycle_lab.data.layouts import planetoid_parts, write_planetoid
from tests.bitcycle_lab.data.test_graphs import write as write_arxiv

GCN = ModelConfig(name="gcn", options={"hidden_dim": 4, "num_layers": 2})


@pytest.fixture
def make(tmp_path):
    root = write_planetoid(tmp_path / "cora", planetoid_parts())

    def task(model=GCN, **data):
        return TASKS["nodes"](model, DataConfig(name="cora", root=str(root), **data))

    return task


class Fixed(nn.Module):
    def __init__(self, logits):
        super().__init__()
        self.logits = logits

    def forward(self, x, edge_index):
        return self.logits


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_only_nodes_of_the_split_count_and_metrics_equal_a_naive_computation(make, split):
    task = make()
    logits = torch.randn(9, 2, generator=torch.Generator().manual_seed(1))
    [batch] = task.eval_batches(split)
    loss, sums = task.loss(Fixed(logits), batch)
    mask = getattr(task.graph, f"{split}_mask")
    assert torch.equal(batch.targets != IGNORE, mask)
    nodes = mask.nonzero().flatten().tolist()
    assert nodes, split
    losses = [
        math.log(sum(math.exp(v) for v in logits[n].tolist())) - logits[n, task.graph.targets[n]]
        for n in nodes
    ]
    hits = [logits[n].argmax() == task.graph.targets[n] for n in nodes]
    metrics = task.metrics({name: value.item() for name, value in sums.items()})
    assert metrics["accuracy"] == pytest.approx(100 * sum(hits).item() / len(nodes))
    assert metrics["loss"] == pytest.approx(sum(losses).item() / len(nodes), rel=1e-5)
    assert loss.item() == pytest.approx(metrics["loss"], rel=1e-5)


def test_every_step_sees_the_whole_graph(make):
    task = make()
    batches = task.train_batches()
    assert batches.steps_per_epoch == 1
    steps = list(batches.from_step(3, 6))
    assert [batch.step for batch in steps] == [3, 4, 5]
    assert all(torch.equal(batch.inputs, task.graph.features) for batch in steps)
    assert task.num_samples(steps[0]) == 9
    inputs = task.example_inputs(steps[0])
    assert [tuple(part.shape) for part in inputs] == [(9, 3), tuple(task.graph.edge_index.shape)]


def test_the_model_gets_the_graphs_sizes(make):
    pytest.importorskip("torch_geometric")
    task = make()
    model = task.build_model()
    assert (model.in_features, model.num_classes) == (3, 2)
    assert model(*task.inputs(task.train_batches().batch_at(0))).shape == (9, 2)
    wide = ModelConfig(name="gcn", options={**GCN.options, "num_classes": 5})
    assert make(wide).build_model().num_classes == 5


@pytest.mark.parametrize("sizes", [{"world_size": 2}, {"num_micro": 2}])
def test_a_graph_cannot_be_divided(make, sizes):
    with pytest.raises(ValueError, match="2"):
        make().train_batches(**sizes)


def test_features_are_scaled_as_asked(make):
    rows = make(features="row_normalized").graph.features.sum(dim=1)
    assert torch.allclose(rows, torch.ones(9))
    standardized = make(features="standardized").graph.features
    assert torch.allclose(standardized.mean(dim=0), torch.zeros(3), atol=1e-6)
    assert make().graph.features.max() == 80


def test_the_graph_moves_to_the_device_that_uses_it(make):
    task = make()
    task.to("meta")
    assert task.train_batches().batch_at(0).inputs.device.type == "meta"


@pytest.mark.parametrize(
    ("dataset", "model", "mode"),
    [
        ("cora", "gcn", "float32"),
        ("cora", "graphsage", "quantized"),
        ("ogbn-arxiv", "gcn", "quantized"),
    ],
)
def test_converted_layers_train_and_evaluate(tmp_path, make, dataset, model, mode):
    pytest.importorskip("torch_geometric")
    config = ModelConfig(name=model, options={"hidden_dim": 4, "num_layers": 2, "dropout": 0.0})
    if dataset == "cora":
        task = make(config)
    else:
        data = DataConfig(name=dataset, root=str(write_arxiv(tmp_path)), features="standardized")
        task = TASKS["nodes"](config, data)
    net = bc.quantize_model(task.build_model(), SBM(aggregation=mode))
    batch = task.train_batches().batch_at(0)
    float_loss, _ = task.loss(net, batch)
    bc.set_precision(net, "FW3/BW8")
    loss, _ = task.loss(net, batch)
    loss.backward()
    assert loss != float_loss
    assert all(p.grad.isfinite().all() for p in net.parameters())
    assert any(p.grad.any() for p in net.parameters())
    [held_out] = task.eval_batches("test")
    _, sums = task.loss(net.eval(), held_out)
    assert task.metrics({k: v.item() for k, v in sums.items()})["loss"] > 0
