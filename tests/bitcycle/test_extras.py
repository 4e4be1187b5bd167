"""Optional dependencies are named with their install command when missing."""

import json

import pytest

from bitcycle.extras import MissingExtraError, require


def test_a_module_that_is_there_is_returned():
    assert require("json", extra="train", purpose="settings") is json


@pytest.mark.parametrize("module", ["no_such_package", "no_such_package.part"])
def test_a_missing_package_names_the_purpose_and_the_install_command(module):
    with pytest.raises(MissingExtraError) as caught:
        require(module, extra="report", purpose="pictures")
    assert isinstance(caught.value, ImportError)
    assert f"pictures need {module!r}" in str(caught.value)
    assert 'pip install "bitcycle[report]"' in str(caught.value)


def test_a_package_that_is_there_but_broken_shows_its_own_error(tmp_path, monkeypatch):
    (tmp_path / "half_installed.py").write_text("import no_such_dependency")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_dependency") as caught:
        require("half_installed", extra="report", purpose="pictures")
    assert not isinstance(caught.value, MissingExtraError)
