"""The two operators, against ONNX's definition by hand."""

import torch

from bitcycle.export.onnx_nodes import of_codes, on_codes


def test_inputs_round_half_to_even_then_shift_then_saturate():
    x = torch.tensor([-9.0, -1.25, -0.75, 0.0, 0.25, 0.75, 9.0])
    scale, zero = torch.tensor(0.5), torch.tensor(3, dtype=torch.uint8)
    # x / scale = -18, -2.5, -1.5, 0, 0.5, 1.5, 18; codes 0, 1, 1, 3, 3, 5, 15
    expected = [-1.5, -1.0, -1.0, 0.0, 0.0, 1.0, 6.0]
    assert on_codes(x, scale, zero, 4).tolist() == expected


def test_weights_have_a_scale_and_a_zero_for_each_entry_of_an_axis():
    codes = torch.tensor([[0, 255], [3, 4]], dtype=torch.uint8)
    scale, zero = torch.tensor([0.5, 2.0]), torch.tensor([0, 3], dtype=torch.uint8)
    assert of_codes(codes, scale, zero, 0).tolist() == [[0.0, 127.5], [0.0, 2.0]]
    assert of_codes(codes, scale, zero, 1).tolist() == [[0.0, 504.0], [1.5, 2.0]]
