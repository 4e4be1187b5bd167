"""The version is one number everywhere."""

import re
from importlib.metadata import version

import bitcycle


def test_the_installed_version_is_the_one_in_the_source():
    assert version("bitcycle") == bitcycle.__version__
    assert re.fullmatch(r"\d+\.\d+\.\d+", bitcycle.__version__)
