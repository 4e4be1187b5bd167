"""Reading exported files back."""

import pytest
import torch
from torch import nn

import bitcycle as bc
from bitcycle.export import export_model, load_exported
from tests.export.models import conv_net, encoder, images, ready, tokens


@pytest.mark.parametrize("codes", [False, True])
@pytest.mark.parametrize("rule", [bc.quantizers.SBM(), bc.quantizers.SBM(zero="integer"), "pow2"])
def test_safetensors_in_a_float_model_evaluate_as_the_exported_one(codes, rule, tmp_path):
    model = ready(conv_net(), images(), "w4a6", rule)
    path = tmp_path / "model.safetensors"
    export_model(model, (images(),), to="safetensors", path=path, codes=codes)
    loaded = load_exported(path, conv_net())
    assert not loaded.training
    torch.testing.assert_close(loaded(images()), model(images()), rtol=1e-5, atol=1e-6)


def test_safetensors_of_an_attention_evaluate_as_the_exported_one(tmp_path):
    model = ready(encoder(), tokens())
    path = tmp_path / "model.safetensors"
    export_model(model, (tokens(),), to="safetensors", path=path, codes=True)
    loaded = load_exported(path, encoder())
    torch.testing.assert_close(loaded(tokens()), model(tokens()), rtol=1e-5, atol=1e-6)


def test_layers_that_stayed_float_stay_float(tmp_path):
    model = bc.quantize_model(conv_net(), skip=["6"])
    bc.set_precision(model, {"0": "w8a8", "3": "w4a4"})
    bc.calibrate(model, [images()]).eval()
    path = tmp_path / "model.safetensors"
    export_model(model, (images(),), to="safetensors", path=path)
    loaded = load_exported(path, conv_net())
    assert type(loaded[6]) is nn.Linear
    torch.testing.assert_close(loaded(images()), model(images()), rtol=1e-5, atol=1e-6)


def test_a_layer_without_a_name_is_the_model(tmp_path):
    x = torch.randn(3, 4)
    model = ready(nn.Linear(4, 2), x)
    export_model(model, (x,), to="safetensors", path=tmp_path / "one.safetensors")
    loaded = load_exported(tmp_path / "one.safetensors", nn.Linear(4, 2))
    torch.testing.assert_close(loaded(x), model(x))


def test_without_a_model_there_are_tensors_and_facts(tmp_path):
    path = tmp_path / "model.pt"
    export_model(ready(conv_net(), images()), (images(),), to="torch", path=path)
    exported = load_exported(path)
    assert exported.about["quantizer"]["name"] == "sbm"
    assert exported.state.keys() == conv_net().state_dict().keys()


def test_a_wrong_path_is_a_clear_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="bitcycle export"):
        load_exported(tmp_path / "none.onnx")
    (tmp_path / "model.bin").touch()
    with pytest.raises(ValueError, match="must end in one of .onnx, .safetensors, .pt"):
        load_exported(tmp_path / "model.bin")
