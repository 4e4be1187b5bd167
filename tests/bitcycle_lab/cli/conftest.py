"""What the tests of commands share."""

import pytest

from bitcycle_lab.cli.main import main

from .runs import write_config


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """A finished run of a second; read it, or copy it."""
    folder = tmp_path_factory.mktemp("finished")
    assert main(["train", str(write_config(folder)), "--quiet"]) == 0
    return folder / "runs" / "tiny-seed0"
