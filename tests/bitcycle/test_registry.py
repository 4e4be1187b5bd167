"""Registries: names for things, found in the files of a package."""

import sys

import pytest

from bitcycle.registry import Registry, unknown_name


def filled(*names):
    registry = Registry("colour")
    for name in names:
        registry.register(name)(name.upper())
    return registry


def test_names_come_back_sorted_with_their_objects():
    registry = filled("red", "blue")
    assert list(registry) == registry.names() == ["blue", "red"]
    assert registry.items() == [("blue", "BLUE"), ("red", "RED")]
    assert len(registry) == 2
    assert "red" in registry
    assert "green" not in registry


def test_an_unknown_name_gets_the_likely_one_and_then_the_known_ones():
    for name, named in (
        ("rde", "'rde'; did you mean 'red'.*blue, red$"),
        ("RED", "did you mean 'red'"),
        ("xyz", "'xyz'; known: blue, red$"),
        (["red"], "known: blue, red$"),
    ):
        with pytest.raises(ValueError, match=named):
            filled("red", "blue")[name]


def test_names_that_are_too_many_for_an_error_are_left_to_the_command_that_lists_them():
    names = [f"resnet{depth}" for depth in range(8, 25)]
    for name, guess in (("resnte8", "; did you mean 'resnet8'?"), ("bert", "")):
        text = f"unknown model {name!r}{guess} (all: bitcycle ls models)"
        assert str(unknown_name("model", name, names)) == text
    assert ", ".join(sorted(names[1:])) in str(unknown_name("model", "bert", names[1:]))
    assert str(unknown_name("layer", "bert", names)).endswith(" and 1 more")
    # of equally near names the one that begins alike
    assert "'resnet20'?" in str(unknown_name("model", "resnet21", ["resnet14", "resnet20"]))
    assert "(none)" in str(unknown_name("model", "resnet8", []))


def test_a_name_can_be_taken_once():
    with pytest.raises(ValueError, match="'red'"):
        filled("red", "red")


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package `paints` that holds a registry; files dropped into it register colours."""
    folder = tmp_path / "paints"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    text = "from bitcycle.registry import Registry\nCOLOURS = Registry('colour', 'paints')\n"
    (folder / "base.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield folder
    for name in [name for name in sys.modules if name.split(".")[0] == "paints"]:
        del sys.modules[name]


def add_colour(folder, name):
    text = f"from paints.base import COLOURS\nCOLOURS.register('{name}')(1)\n"
    (folder / f"{name}.py").write_text(text)


def test_a_file_in_the_package_is_enough_to_add_an_entry(package):
    add_colour(package, "red")
    from paints.base import COLOURS

    assert "paints.red" not in sys.modules  # nothing is imported before the first lookup
    assert COLOURS.names() == ["red"]
    assert COLOURS["red"] == 1


def test_a_broken_file_shows_its_own_error_at_every_lookup(package):
    (package / "broken.py").write_text("raise TypeError('paint is dry')")
    from paints.base import COLOURS

    for _ in range(2):
        with pytest.raises(TypeError, match="paint is dry"):
            COLOURS["red"]


def test_a_name_from_elsewhere_is_known_at_once_and_imported_when_it_is_asked_for(package):
    text = "from paints.base import COLOURS\nCOLOURS.register('rare')(7)\n"
    (package / "shelf").mkdir()
    (package / "shelf" / "__init__.py").write_text("")
    (package / "shelf" / "rare.py").write_text(text)
    base = "Registry('colour', 'paints', {'rare': 'paints.shelf.rare'})"
    (package / "base.py").write_text(f"from bitcycle.registry import Registry\nCOLOURS = {base}\n")
    from paints.base import COLOURS

    assert "rare" in COLOURS
    assert COLOURS.names() == ["rare"]
    assert len(COLOURS) == 1
    assert "paints.shelf.rare" not in sys.modules
    with pytest.raises(ValueError, match="did you mean 'rare'"):
        COLOURS["rar"]
    assert COLOURS["rare"] == 7
    assert COLOURS.items() == [("rare", 7)]
