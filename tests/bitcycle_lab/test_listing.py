"""What registries hold, read from the source and compared with what importing it registers."""

import sys
from importlib import import_module

import pytest

from bitcycle_lab.listing import Entry, read_entries


@pytest.fixture
def paints(tmp_path, monkeypatch):
    """A package `paints`, whose files register colours."""
    folder = tmp_path / "paints"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "base.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    yield folder
    for name in [name for name in sys.modules if name.split(".")[0] == "paints"]:
        del sys.modules[name]
    read_entries.cache_clear()


SOURCE = """
import not_installed
from paints.base import COLOURS, mix

_BOX = "box of 12"
_DARK = 0.5 * not_installed.LIGHT

@COLOURS.register("red")
@not_installed.cache
class Red(not_installed.Colour):
    \"\"\"The colour of fire.

    And of roses.
    \"\"\"

    wavelength: int = 700
    darkness: float = _DARK
    price: float

    def __init__(self, *, gloss=1, coats=2): ...

@mix(box=f"a {_BOX}", dark=_DARK)
def orange(red, *, yellow=1):
    \"\"\"Red and yellow.\"\"\"

for _name, _number in (("cyan", 1), ("magenta", 2)):
    mix(name=_name, box=f"{_name}, no. {_number}")(not_installed.print)
"""


def test_registrations_are_read_from_the_source_without_importing_it(paints):
    (paints / "shelf").mkdir()
    (paints / "shelf" / "mixed.py").write_text(SOURCE)
    red = Entry(
        name="red",
        summary="The colour of fire.",
        parameters=("gloss", "coats"),
        attributes={"wavelength": 700},  # what is not a constant is left out
    )
    orange = Entry(
        name="orange",
        summary="Red and yellow.",
        arguments={"box": "a box of 12"},
        parameters=("red", "yellow"),
    )
    cyan, magenta = (
        Entry(name=name, arguments={"name": name, "box": f"{name}, no. {number}"})
        for number, name in enumerate(("cyan", "magenta"), start=1)
    )
    assert read_entries("paints", "COLOURS.register") == {"red": red}
    mixed = read_entries("paints", "mix")
    assert mixed == {"cyan": cyan, "magenta": magenta, "orange": orange}
    assert list(mixed) == sorted(mixed)
    assert not {name for name in sys.modules if name.startswith("paints")}


def test_only_a_package_can_be_read(paints):
    for name in ("paints.base", "paints.shelf"):
        with pytest.raises(ValueError, match=name):
            read_entries(name, "COLOURS.register")


@pytest.mark.parametrize(
    ("home", "name"),
    [
        ("bitcycle.schedules.base", "SCHEDULES"),
        ("bitcycle.quantizers.base", "QUANTIZERS"),
        ("bitcycle.nn.class_swap", "LAYERS"),
        ("bitcycle.nn.norm", "NORMS"),
        ("bitcycle.nn.activations", "MASKED_MODULES"),
        ("bitcycle.cost.count", "COUNTERS"),
    ],
)
def test_the_source_of_a_package_says_what_importing_it_registers(home, name):
    registry = getattr(import_module(home), name)
    read = read_entries(home.rpartition(".")[0], f"{name}.register")
    assert list(read) == registry.names() != []
    for key, entry in read.items():
        if not key.startswith(("torch_geometric.", "transformers.")):  # slow to import
            assert entry.summary == registry[key].__doc__.strip().partition("\n")[0]
