"""The plain torch state."""

import pytest
import torch

from bitcycle.export.freeze import freeze
from bitcycle.export.plain import read_plain, write_plain
from bitcycle.export.state import state_on_grids
from tests.export.models import conv_net, images, ready


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
