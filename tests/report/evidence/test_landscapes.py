"""The page of loss landscapes."""

import pytest

from bitcycle.report.evidence.landscapes import gather_landscapes, is_landscape, render_landscapes
from tests.report.evidence.made import landscape_file

pytest.importorskip("matplotlib")


def pages(*files):
    return render_landscapes("landscapes", gather_landscapes(files))


def test_one_seed_of_each_cannot_tell():
    page = pages(landscape_file("cpt", 0, 1.0), landscape_file("static", 0, 2.0))
    assert page.sentence == (
        "cpt against static: rise at radius 1 -1.07, n = 1: one seed cannot tell."
    )
    assert page.files["landscapes.svg"].startswith("<?xml")


def test_several_seeds_have_a_spread_and_an_interval():
    steep = {0: 2.0, 1: 2.2, 2: 2.1}
    files = [landscape_file("static", seed, s) for seed, s in steep.items()]
    files += [landscape_file("cpt", seed, s / 2) for seed, s in steep.items()]
    page = pages(*files)
    assert "n = 3: wider, beyond noise." in page.sentence
    text = page.files["landscapes.md"]
    assert "| static | 3 | 0.10 ± 0.00 |" in text
    assert "bitcycle landscape RUNS/cpt-0123456789-seed0" in text or (
        "bitcycle landscape RUNS/static-0123456789-seed0" in text
    )


def test_it_is_known_by_its_keys():
    assert is_landscape(landscape_file("cpt", 0, 1.0))
    assert not is_landscape({"losses": []})
