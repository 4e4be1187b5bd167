"""Safetensors and torch files: weights on their grids, metadata, and damage."""

import json

import pytest
import torch
from torch import nn

import bitcycle as bc
from bitcycle.export import export_model, load_exported
from bitcycle.export.freeze import freeze
from bitcycle.export.metadata import about, check_about
from bitcycle.export.state_file import (
    read_plain,
    read_safetensors,
    state_on_grids,
    weights_on_grids,
    write_plain,
    write_safetensors,
)
from bitcycle.files import write_bytes
from tests.bitcycle.export.models import conv_net, encoder, images, ready, tokens


def test_weights_are_where_the_rule_puts_them_and_nothing_else_moves():
    model = ready(conv_net(), images(), "w3a8")
    state = state_on_grids(freeze(model, (images(),)))
    rule, levels = bc.quantizers.SBM(), torch.tensor(7)
    for name, value in bc.convert.float_state_dict(model).items():
        if name in ("0.weight", "3.weight", "6.weight"):
            within = rule.range_of("weight", value, (0,))
            value = rule.encode("weight", value, levels, within).dequantize()
        torch.testing.assert_close(state[name], value.detach(), rtol=1e-6, atol=1e-7)


def test_a_float_model_with_this_state_computes_what_the_weights_bits_do():
    model = ready(conv_net(), images(), "w4a8")
    state = state_on_grids(freeze(model, (images(),)))
    plain = conv_net().eval()
    plain.load_state_dict(state)
    with bc.at_precision(model, "w4"):
        torch.testing.assert_close(plain(images()), model(images()), rtol=1e-5, atol=1e-6)


def test_a_transposed_convolution_keeps_its_shape():
    x = torch.randn(2, 3, 5, 5)
    model = ready(nn.Sequential(nn.ConvTranspose2d(3, 4, 2)), x)
    weight = weights_on_grids(freeze(model, (x,)))["0.weight"]
    assert tuple(weight.values().shape) == (3, 4, 2, 2)
    assert weight.grid.scale.numel() == 4


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        return self.head(self.embed(x))


def test_a_weight_that_another_module_reads_in_float_is_refused():
    x = torch.tensor([1, 2])
    with pytest.raises(ValueError, match="'embed.weight'"):
        weights_on_grids(freeze(ready(Tied(), x), (x,)))


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "model.pt"
    write_bytes(path, b"old")
    with pytest.raises(TypeError):
        write_bytes(path, "no bytes")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_two_rules_in_one_model_are_refused():
    model = bc.quantize_model(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)), only=["0"])
    bc.quantize_model(model, "absmax", only=["1"])
    with pytest.raises(ValueError, match="AbsMax, SBM"):
        about(model, {})


@pytest.mark.parametrize(
    ("facts", "found"),
    [(None, "no metadata"), ({}, "form None"), ({"form": 99}, "form 99"), ({"form": True}, "True")],
)
def test_a_file_of_another_form_is_refused(facts, found, tmp_path):
    with pytest.raises(ValueError, match=found):
        check_about(facts, tmp_path)


def test_the_state_comes_back_to_the_bit(tmp_path):
    frozen = freeze(ready(conv_net(), images()), (images(),))
    write_plain(frozen, tmp_path / "model.pt", {"run": "mine"})
    about, state = read_plain(tmp_path / "model.pt")
    expected = state_on_grids(frozen)
    assert about["run"] == "mine"
    assert state.keys() == expected.keys() == conv_net().state_dict().keys()
    assert all(torch.equal(state[name], value) for name, value in expected.items())


@pytest.mark.parametrize("content", [b"", b"no archive"])
def test_a_damaged_file_is_a_clear_error(content, tmp_path):
    (tmp_path / "model.pt").write_bytes(content)
    with pytest.raises(ValueError, match="damaged"):
        read_plain(tmp_path / "model.pt")


def test_code_in_a_file_is_not_run(tmp_path):
    torch.save({"about": print}, tmp_path / "model.pt")
    with pytest.raises(ValueError, match="damaged"):
        read_plain(tmp_path / "model.pt")


def written(path, model, x, **options):
    frozen = freeze(model, (x,))
    write_safetensors(frozen, path, {}, **options)
    return frozen


def test_the_json_has_the_grids_of_the_activations(tmp_path):
    model = ready(nn.Linear(2, 1), torch.tensor([[-1.0, 4.1]]))
    written(tmp_path / "model.safetensors", model, torch.ones(1, 2))
    stored = json.loads((tmp_path / "model.json").read_text())
    (row,) = stored["activations"][""]
    assert (row["bits"], row["row"], row["offset"]) == (8, 0, -1.0)
    assert row["scale"] == pytest.approx(5.1 / 255)
    assert stored["weights"]["weight"] == {"bits": 8, "lowest": 0, "shape": [1, 2], "view": [1, 2]}


@pytest.mark.parametrize(("bits", "share"), [("w8a8", 0.25), ("w4a4", 0.125)])
def test_codes_take_a_byte_or_half_a_byte(bits, share, tmp_path):
    x = torch.randn(2, 256)
    path = tmp_path / "model.safetensors"
    written(path, ready(nn.Linear(256, 256, bias=False), x, bits), x, codes=True)
    size = path.stat().st_size
    assert share <= size / (4 * 256 * 256) < share + 0.02


def test_a_file_without_its_grids_is_a_clear_error(tmp_path):
    path = tmp_path / "model.safetensors"
    written(path, ready(conv_net(), images()), images())
    path.with_suffix(".json").unlink()
    with pytest.raises(FileNotFoundError, match=r"model\.json"):
        read_safetensors(path)


def export(path, **options):
    model = ready(conv_net(), images())
    return export_model(model, (images(),), path=path, **options)


def test_sizes_are_those_of_the_files(tmp_path):
    done = export(tmp_path / "a" / "model.safetensors", to="safetensors", codes=True)
    files = list((tmp_path / "a").iterdir())
    assert sorted(file.name for file in files) == ["model.json", "model.safetensors"]
    assert done.num_bytes == sum(file.stat().st_size for file in files)
    values = conv_net().state_dict().values()
    assert done.float_bytes == 4 * sum(value.numel() for value in values)


@pytest.mark.parametrize(
    ("options", "name", "message"),
    [
        ({"to": "tflite"}, "model.onnx", "'tflite'"),
        ({"to": "torch", "codes": True}, "model.pt", "codes"),
        ({"to": "torch"}, "model.onnx", r"must end in \.pt"),
    ],
)
def test_what_does_not_fit_together_is_refused(options, name, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        export(tmp_path / name, **options)
    assert list(tmp_path.iterdir()) == []


def test_a_place_where_no_file_can_be_is_refused(tmp_path):
    (tmp_path / "model.pt").mkdir()
    with pytest.raises(ValueError, match=r"model\.pt is a folder"):
        export(tmp_path / "model.pt", to="torch")
    (tmp_path / "notes").touch()
    with pytest.raises(ValueError, match="notes is a file"):
        export(tmp_path / "notes" / "deeper" / "model.pt", to="torch")


def test_nothing_is_written_for_a_model_without_observed_ranges(tmp_path):
    model = bc.quantize_model(torch.nn.Sequential(torch.nn.Linear(4, 4)))
    bc.set_precision(model, "w8a8")
    with pytest.raises(ValueError, match="never observed"):
        export_model(model, (torch.ones(2, 4),), to="torch", path=tmp_path / "a" / "model.pt")
    assert list(tmp_path.iterdir()) == []  # no folder either


@pytest.mark.parametrize(
    ("codes", "rule"), [(False, "sbm"), (True, bc.quantizers.SBM(zero="integer")), (True, "pow2")]
)
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


def test_a_wrong_path_is_a_clear_error(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.onnx"):
        load_exported(tmp_path / "none.onnx")
    (tmp_path / "model.bin").touch()
    with pytest.raises(ValueError, match=r"model\.bin"):
        load_exported(tmp_path / "model.bin")
