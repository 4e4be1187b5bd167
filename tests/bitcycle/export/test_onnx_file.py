"""ONNX files: the operators of grids, the file, and ONNX Runtime's answer."""

import onnx
import pytest
import torch
from torch import nn

import bitcycle as bc
from bitcycle.export import export_model, load_exported
from bitcycle.export.freeze import freeze
from bitcycle.export.onnx_file import OnnxModel, dequantize, fake_quantize, use_codes
from bitcycle_lab.models import build_model
from tests.bitcycle.export.models import assert_same, conv_net, encoder, images, ready, tokens

REAL, INTEGER = bc.quantizers.SBM(), bc.quantizers.SBM(zero="integer")


@pytest.mark.parametrize(
    ("bits", "rule"),
    [("w8a8", REAL), ("w4a4", INTEGER), ("w3a5", REAL), ("w8", "absmax"), ("a8", INTEGER),
     ("w4a4", "pow2")],
)  # fmt: skip
def test_a_model_that_multiplies_from_codes_computes_the_same(bits, rule):
    model = ready(conv_net(), images(), bits, rule)
    frozen = freeze(model, (images(),))
    use_codes(frozen)
    other = 1.5 * images(9)  # beyond the observed ranges
    assert_same(frozen.model(other), model(other))


def test_an_attention_that_multiplies_from_codes_computes_the_same():
    model = ready(encoder(), tokens(), "w8a8", REAL)
    frozen = freeze(model, (tokens(),))
    use_codes(frozen)
    torch.testing.assert_close(frozen.model(tokens()), model(tokens()), rtol=1e-4, atol=1e-5)


def ways(rule, bits):
    return dict(use_codes(freeze(ready(conv_net(), images(), bits, rule), (images(),))))


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
    with pytest.raises(ValueError, match="'0' has 9 bits"):
        ways(REAL, "w9a8")
    x = torch.randn(2, 4, 5, 5)
    grouped = ready(nn.Sequential(nn.ConvTranspose2d(4, 6, 2, groups=2)), x)
    with pytest.raises(ValueError, match="grouped transposed convolution"):
        use_codes(freeze(grouped, (x,)))


def test_a_file_that_is_no_model_or_not_ours_is_refused(tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"no model")
    with pytest.raises(ValueError, match=r"model\.onnx"):
        OnnxModel(tmp_path / "model.onnx")
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
    assert fake_quantize(x, scale, zero, 4).tolist() == expected


def test_weights_have_a_scale_and_a_zero_for_each_entry_of_an_axis():
    codes = torch.tensor([[0, 255], [3, 4]], dtype=torch.uint8)
    scale, zero = torch.tensor([0.5, 2.0]), torch.tensor([0, 3], dtype=torch.uint8)
    assert dequantize(codes, scale, zero, 0).tolist() == [[0.0, 127.5], [0.0, 2.0]]
    assert dequantize(codes, scale, zero, 1).tolist() == [[0.0, 504.0], [1.5, 2.0]]


pytestmark = pytest.mark.slow


def nodes(path):
    return [node.op_type for node in onnx.load(path).graph.node]


@pytest.mark.parametrize(
    ("bits", "rule"),
    [("w8a8", REAL), ("w4a8", INTEGER), ("w3a5", "absmax")],
    ids=["w8a8-real", "w4a8-integer", "w3a5-absmax"],
)
def test_the_runtime_computes_what_the_model_does(bits, rule, tmp_path):
    model = ready(conv_net(), images(), bits, rule)
    path = tmp_path / "model.onnx"
    export_model(model, (images(1),), to="onnx", path=path)
    other = 1.5 * images(9)  # another batch size, beyond the observed ranges
    for optimize in (True, False):
        output = OnnxModel(path, optimize=optimize)(other)
        assert_same(output, model(other))


def test_whole_zero_points_need_nothing_but_the_two_nodes(tmp_path):
    path = tmp_path / "model.onnx"
    export_model(ready(conv_net(), images(), "w8a8", INTEGER), (images(),), to="onnx", path=path)
    found = nodes(path)
    assert found.count("QuantizeLinear") == 3
    assert found.count("DequantizeLinear") == 6
    assert not {"Add", "Sub", "Clip"} & set(found)


def test_a_real_offset_is_an_add_and_other_widths_a_clip(tmp_path):
    path = tmp_path / "model.onnx"
    export_model(ready(conv_net(), images(), "w8a6", REAL), (images(),), to="onnx", path=path)
    found = nodes(path)
    assert found.count("Sub") == 1  # the inputs after a ReLU begin at 0
    assert found.count("Add") == 4  # that input and three weights
    assert found.count("Clip") == 3


def test_four_bits_are_four_bits_in_the_file(tmp_path):
    path = tmp_path / "model.onnx"
    export_model(ready(conv_net(), images(), "w4a4"), (images(),), to="onnx", path=path)
    kinds = {tensor.name: tensor.data_type for tensor in onnx.load(path).graph.initializer}
    codes = {name: kind for name, kind in kinds.items() if "_codes" in name}
    assert len(codes) == 3
    assert set(codes.values()) == {onnx.TensorProto.UINT4}


def test_an_encoder_layer_of_torch_matches(tmp_path):
    model = ready(encoder(), tokens())
    path = tmp_path / "model.onnx"
    export_model(model, (tokens(),), to="onnx", path=path)
    output = load_exported(path)(tokens()[:2])
    torch.testing.assert_close(output, model(tokens()[:2]), rtol=1e-4, atol=1e-5)


def observed(model, bits="w8a8"):
    """After a few training steps' worth of observations."""
    bc.quantize_model(model)
    bc.set_precision(model, bits)
    model.train()
    with torch.no_grad():
        for seed in range(4):
            model(*model.example_inputs(8, seed=seed))
    return model.eval()


def compared(model, path):
    inputs = model.example_inputs(16, seed=9)
    done = export_model(model, model.example_inputs(2), to="onnx", path=path)
    with torch.no_grad():
        expected = model(*inputs)
    output = load_exported(path)(*inputs)
    error = (output - expected).abs().mean() / expected.abs().max()
    return done, error.item(), (output.argmax(1) == expected.argmax(1)).float().mean().item()


def test_a_cifar_resnet20_at_w8a8_matches_in_a_quarter_of_the_size(tmp_path):
    torch.manual_seed(0)
    done, error, agreement = compared(observed(build_model("resnet20")), tmp_path / "model.onnx")
    assert error < 2**-8
    assert agreement > 0.9
    assert 0.25 < done.num_bytes / done.float_bytes < 0.3


def test_a_bert_encoder_at_w8a8_matches(tmp_path):
    torch.manual_seed(0)
    model = build_model("bert", max_length=16, vocab_size=512)
    done, error, agreement = compared(observed(model), tmp_path / "model.onnx")
    assert error < 2**-8
    assert agreement > 0.9
    embeddings = sum(p.numel() for n, p in model.named_parameters() if "embeddings" in n)
    rest = done.num_bytes - 4 * embeddings  # embeddings stay float32
    assert rest / (done.float_bytes - 4 * embeddings) < 0.3


class Pair(torch.nn.Module):
    def forward(self, x):
        return x, x


class Deciding(torch.nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


def test_models_that_no_file_is_written_of_are_refused(tmp_path):
    x = torch.ones(2, 2)
    for model, inputs, message in (
        (Pair(), x, "one tensor"),
        (Deciding(), x, "cannot export"),
        (nn.Linear(2, 2).bfloat16(), x, "weight is torch.bfloat16"),
        (nn.ReLU(), x.double(), "input 0 is torch.float64"),
    ):
        with pytest.raises(ValueError, match=message):
            export_model(model, (inputs,), to="onnx", path=tmp_path / "m.onnx")
    assert list(tmp_path.iterdir()) == []
