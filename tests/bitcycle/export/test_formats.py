"""Models at a format: what a file can hold of them."""

import json

import pytest
import torch

import bitcycle as bc
from bitcycle.export import export_model, load_exported
from tests.bitcycle.toys import linears, randn


def at_format(bits="w=mxfp4,a=mxfp8"):
    model = bc.quantize_model(linears(32, 32, 4), "mx")
    bc.set_precision(model, bits)
    return model.eval()


def test_safetensors_have_float_weights_and_the_formats_name(tmp_path):
    model, x = at_format(), randn(3, 32)
    path = tmp_path / "model.safetensors"
    done = export_model(model, x, to="safetensors", path=path)
    assert not done.codes
    facts = json.loads(path.with_suffix(".json").read_text())
    assert facts["precision"] == {"0": "w=mxfp4,a=mxfp8", "1": "w=mxfp4,a=mxfp8"}
    assert (facts["weights"], facts["activations"]) == ({}, {})
    assert facts["quantizer"]["name"] == "mx"
    state = load_exported(path).state
    assert torch.equal(state["0.weight"], model[0].weight)
    loaded = load_exported(path, linears(32, 32, 4, seed=9))
    assert torch.equal(loaded(x), model(x))


def test_a_torch_file_has_the_float_weights(tmp_path):
    model = at_format()
    export_model(model, randn(3, 32), to="torch", path=tmp_path / "model.pt")
    found = load_exported(tmp_path / "model.pt")
    assert torch.equal(found.state["0.weight"], model[0].weight)
    assert found.about["precision"]["0"] == "w=mxfp4,a=mxfp8"


@pytest.mark.parametrize("options", [{"to": "onnx"}, {"to": "safetensors", "codes": True}])
def test_files_of_integers_refuse_a_format_and_say_what_to_do(tmp_path, options):
    suffix = {"onnx": ".onnx", "safetensors": ".safetensors"}[options["to"]]
    with pytest.raises(
        ValueError,
        match="'0' at weight mxfp4, act mxfp8",
    ):
        export_model(at_format(), randn(3, 32), path=tmp_path / f"model{suffix}", **options)
