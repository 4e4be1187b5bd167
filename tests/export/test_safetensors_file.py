"""Safetensors with float weights or codes, and the JSON of grids."""

import json

import pytest
import torch
from torch import nn

from bitcycle.export.freeze import freeze
from bitcycle.export.safetensors_file import read_safetensors, write_safetensors
from bitcycle.export.state import state_on_grids
from tests.export.models import conv_net, encoder, images, ready, tokens


def written(path, model, x, **options):
    frozen = freeze(model, (x,))
    write_safetensors(frozen, path, {}, **options)
    return frozen


@pytest.mark.parametrize("bits", ["w1a8", "w3a8", "w4a4", "w8a8", "w12a12"])
@pytest.mark.parametrize("codes", [False, True])
def test_weights_come_back_to_the_bit(bits, codes, tmp_path):
    path = tmp_path / "model.safetensors"
    frozen = written(path, ready(conv_net(), images(), bits), images(), codes=codes)
    about, state = read_safetensors(path)
    assert about["codes"] is codes
    for name, value in state_on_grids(frozen).items():
        assert torch.equal(state[name], value), name


def test_packed_projections_come_back_from_codes(tmp_path):
    path = tmp_path / "model.safetensors"
    frozen = written(path, ready(encoder(), tokens()), tokens(), codes=True)
    _, state = read_safetensors(path)
    name = "self_attn.in_proj_weight"
    assert torch.equal(state[name], state_on_grids(frozen)[name])


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


def test_a_damaged_file_is_a_clear_error(tmp_path):
    path = tmp_path / "model.safetensors"
    written(path, ready(conv_net(), images()), images())
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(ValueError, match="damaged"):
        read_safetensors(path)


def test_a_file_without_its_grids_is_a_clear_error(tmp_path):
    path = tmp_path / "model.safetensors"
    written(path, ready(conv_net(), images()), images())
    path.with_suffix(".json").unlink()
    with pytest.raises(FileNotFoundError, match=r"model\.json does not exist; model.safetensors"):
        read_safetensors(path)
