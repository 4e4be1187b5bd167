"""Products from codes, ONNX's two operators by hand, and files as modules."""

import onnx
import pytest
import torch
from torch import nn

import bitcycle as bc
from bitcycle.export.freeze import freeze
from bitcycle.export.onnx_file import OnnxModel, of_codes, on_codes, write_products
from tests.export.models import assert_same, conv_net, encoder, images, ready, tokens

REAL, INTEGER = bc.quantizers.SBM(), bc.quantizers.SBM(zero="integer")


@pytest.mark.parametrize(
    ("bits", "rule"),
    [("w8a8", REAL), ("w4a4", INTEGER), ("w3a5", REAL), ("w8", "absmax"), ("a8", INTEGER),
     ("w4a4", "pow2")],
)  # fmt: skip
def test_a_model_that_multiplies_from_codes_computes_the_same(bits, rule):
    model = ready(conv_net(), images(), bits, rule)
    frozen = freeze(model, (images(),))
    write_products(frozen)
    other = 1.5 * images(9)  # beyond the observed ranges
    assert_same(frozen.model(other), model(other))


def test_an_attention_that_multiplies_from_codes_computes_the_same():
    model = ready(encoder(), tokens(), "w8a8", REAL)
    frozen = freeze(model, (tokens(),))
    write_products(frozen)
    torch.testing.assert_close(frozen.model(tokens()), model(tokens()), rtol=1e-4, atol=1e-5)


def ways(rule, bits):
    return dict(write_products(freeze(ready(conv_net(), images(), bits, rule), (images(),))))


def test_a_real_offset_is_said_unless_it_is_zero():
    assert ways(REAL, "w8a4") == {
        "inputs of 4 bits: explicit Add of the real offset": 1,
        "inputs of 4 bits: one to one": 2,  # after a ReLU: the minimum is 0
        "weights of 8 bits: explicit Add of the real offset": 3,
    }


def test_other_widths_are_clipped_and_carried_in_8_bits():
    assert ways(INTEGER, "w3a6") == {
        "inputs of 6 bits: one to one, carried in 8 bits, clipped first": 3,
        "weights of 3 bits: one to one, carried in 8 bits": 3,
    }


def test_what_onnx_cannot_say_is_refused():
    with pytest.raises(ValueError, match="layer '0' has 9 bits, and ONNX files"):
        ways(REAL, "w9a8")
    x = torch.randn(2, 4, 5, 5)
    grouped = ready(nn.Sequential(nn.ConvTranspose2d(4, 6, 2, groups=2)), x)
    with pytest.raises(ValueError, match="grouped transposed convolution"):
        write_products(freeze(grouped, (x,)))


def test_a_file_that_is_no_model_is_a_clear_error(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(b"no model")
    with pytest.raises(ValueError, match="ONNX Runtime cannot read"):
        OnnxModel(path)


def test_a_file_that_is_not_ours_is_refused(tmp_path):
    value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1])
    other = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1])
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Neg", ["x"], ["y"])], "g", [value], [other]
    )
    opset = onnx.helper.make_opsetid("", 21)
    onnx.save(
        onnx.helper.make_model(graph, opset_imports=[opset], ir_version=10), tmp_path / "m.onnx"
    )
    with pytest.raises(ValueError, match="is not an exported model"):
        OnnxModel(tmp_path / "m.onnx")


@pytest.mark.slow
def test_it_takes_tensors_and_tells_about_itself(tmp_path):
    from bitcycle.export import export_model

    model = nn.Linear(4, 2)
    export_model(
        model, (torch.ones(2, 4),), to="onnx", path=tmp_path / "m.onnx", source={"run": "mine"}
    )
    loaded = OnnxModel(tmp_path / "m.onnx")
    x = torch.randn(5, 4, requires_grad=True)
    torch.testing.assert_close(loaded(x), model(x).detach())
    assert loaded.about["run"] == "mine"


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
