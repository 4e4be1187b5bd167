"""ONNX files in ONNX Runtime; writing one takes seconds."""

import onnx
import pytest
import torch

import bitcycle as bc
from bitcycle.export import export_model, load_exported
from bitcycle.export.onnx_file import OnnxModel
from bitcycle.models import build_model
from tests.export.models import assert_same, conv_net, encoder, images, ready, tokens

pytestmark = pytest.mark.slow

REAL, INTEGER = bc.quantizers.SBM(), bc.quantizers.SBM(zero="integer")


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
    with pytest.raises(ValueError, match="models that return one tensor"):
        export_model(Pair(), (x,), to="onnx", path=tmp_path / "m.onnx")
    with pytest.raises(ValueError, match="torch.onnx cannot write this model"):
        export_model(Deciding(), (x,), to="onnx", path=tmp_path / "m.onnx")
    with pytest.raises(ValueError, match=r"weight is torch.bfloat16; call model.float\(\)"):
        export_model(torch.nn.Linear(2, 2).bfloat16(), (x,), to="onnx", path=tmp_path / "m.onnx")
    with pytest.raises(ValueError, match=r"input 0 is torch.float64"):
        export_model(torch.nn.ReLU(), (x.double(),), to="onnx", path=tmp_path / "m.onnx")
    assert list(tmp_path.iterdir()) == []
