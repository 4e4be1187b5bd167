"""Layers of other packages: found by name, imported when met."""

import importlib.util

import pytest
from torch import nn

from bitcycle.nn import LAYERS
from bitcycle.nn.class_swap import qualified_name, registered_base
from bitcycle.nn.third_party import FILES, FINDERS, find_layer


@pytest.mark.parametrize("name", FILES)
def test_a_file_registers_what_the_table_says(name):
    package, kind = name.partition(".")[0], name.rpartition(".")[2]
    pytest.importorskip(package, reason=f"needs {package}")
    assert name in LAYERS
    own_name = LAYERS[name].__name__
    assert own_name.startswith("Quantized")
    assert own_name.endswith(kind)
    assert any(qualified_name(base) == name for base in LAYERS[name].__mro__)


def test_a_finder_is_there():
    for file in FINDERS.values():
        assert importlib.util.find_spec(f"bitcycle.nn.third_party.{file}") is not None


def test_a_type_of_a_package_that_nobody_imported_is_not_looked_for(monkeypatch):
    monkeypatch.setitem(FINDERS, "unheard_of", "no_such_file")
    kind = type("Layer", (nn.Module,), {"__module__": "unheard_of.layers"})
    assert find_layer(kind) is None
    assert registered_base(kind) is None
