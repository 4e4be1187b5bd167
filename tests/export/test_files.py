"""What exported files have in common."""

import pytest
from torch import nn

import bitcycle as bc
from bitcycle.export.files import about, check_format, describe, write_bytes


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "model.pt"
    write_bytes(path, b"old")
    with pytest.raises(TypeError):
        write_bytes(path, "no bytes")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_rule_is_described_by_name_and_options():
    described = describe(bc.quantizers.SBM(zero="integer"))
    assert described["name"] == "sbm"
    assert described["options"]["zero"] == "integer"


def test_the_forward_bits_of_every_layer_are_told():
    model = bc.quantize_model(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)))
    bc.set_precision(model, {"0": "w8a8e8", "1": "w4a4"})
    facts = about(model, {"run": "mine"})
    assert facts["precision"] == {"0": "w8a8", "1": "w4a4"}
    assert facts["run"] == "mine"


def test_two_rules_in_one_model_are_refused():
    model = bc.quantize_model(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)), only=["0"])
    bc.quantize_model(model, "absmax", only=["1"])
    with pytest.raises(ValueError, match="one quantizer, not AbsMax, SBM"):
        about(model, {})


@pytest.mark.parametrize("facts", [None, {"format": 99}, []])
def test_a_file_of_another_format_is_refused(facts, tmp_path):
    with pytest.raises(ValueError, match="is not an exported model of format 1"):
        check_format(facts, tmp_path)
