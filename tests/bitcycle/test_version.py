"""The version is one number everywhere."""

import re
from importlib.metadata import version
from pathlib import Path

import bitcycle

CITATION = Path(__file__).parents[2] / "CITATION.cff"


def test_the_installed_and_the_cited_version_are_the_one_in_the_source():
    assert version("bitcycle") == bitcycle.__version__
    assert re.fullmatch(r"\d+\.\d+\.\d+", bitcycle.__version__)
    assert f"\nversion: {bitcycle.__version__}\n" in CITATION.read_text(encoding="utf-8")
