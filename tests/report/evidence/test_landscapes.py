"""The page of loss landscapes."""

import pytest

from bitcycle.report.evidence.landscapes import gather_landscapes, is_landscape, render_landscapes
from tests.report.evidence.made import MACHINE_LINE, landscape_file, without_made

pytest.importorskip("matplotlib")


def pages(*files):
    return render_landscapes("landscapes", gather_landscapes(files))


def test_one_seed_of_each_cannot_tell():
    page = pages(landscape_file("cpt", 0, 1.0), landscape_file("static", 0, 2.0))
    assert page.sentence == (
        "cpt against static: rise at radius 1 differs by -1.07, n = 1: one seed cannot tell; "
        "area by +1.56."
    )
    assert page.files["landscapes.svg"].startswith("<?xml")


def test_several_seeds_have_a_spread_and_an_interval():
    steep = {0: 2.0, 1: 2.2, 2: 2.1}
    files = [landscape_file("static", seed, s) for seed, s in steep.items()]
    files += [landscape_file("cpt", seed, s / 2) for seed, s in steep.items()]
    page = pages(*files)
    assert "n = 3: wider, beyond noise; area by +1.46 (1.22 to 1.69)." in page.sentence
    text = page.files["landscapes.md"]
    assert "| static | 3 | 0.10 ± 0.00 |" in text
    assert "The picture has 2 of 6 surfaces, first seeds." in text


def test_networks_are_not_compared_with_each_other():
    origin = landscape_file("static", 0, 1.0)["origin"]
    other = {"origin": {**origin, "shapes": "xyz", "data": "ptb"}, "model": "lstm_lm"}
    page = pages(
        landscape_file("static", 0, 1.0), landscape_file("cpt", 0, 2.0),
        landscape_file("lm-static", 0, 1.0, **other), landscape_file("lm-cpt", 0, 0.5, **other),
    )  # fmt: skip
    assert page.sentence.count(" against ") == 2
    assert "lm-cpt against lm-static" in page.sentence
    assert set(page.files) == {"landscapes.md", "landscapes.svg", "landscapes-2.svg"}
    assert "## Sharpness of lstm\\_lm on ptb" in page.files["landscapes.md"]


def test_the_commands_train_the_runs_and_say_every_option():
    changes = {"asked": "full", "overrides": ["--data.root", "/home/me/data"]}
    text = pages(
        landscape_file("static", 0, 2.0), landscape_file("cpt", 0, 1.0),
        landscape_file("cpt", 1, 1.0, **changes),
    ).files["landscapes.md"]  # fmt: skip
    assert text.count("bitcycle study run digits --output RUNS --threads 1\n") == 1
    assert (
        "bitcycle landscape RUNS/static-0123456789-seed0 RUNS/cpt-0123456789-seed0 --grid 5 "
        "--extent 1 --samples 1000 --seed 0 --precision high --ranges batch --checkpoint last "
        "--threads 1 --jobs 2 --output FOLDER\n" in text
    )
    assert "--precision full " in text
    assert "--jobs 2 --data.root DATA --output FOLDER\n" in text
    assert "DATA, FOLDER and RUNS stand for folders." in text
    assert "/home" not in text


def test_machine_and_wall_clock_are_told_or_said_to_be_unknown():
    text = pages(landscape_file("static", 0, 2.0)).files["landscapes.md"]
    assert f"{MACHINE_LINE} a process, 2 processes.\n\nWall-clock: 1 min 15 s.\n" in text
    old = pages(without_made(landscape_file("static", 0, 2.0))).files["landscapes.md"]
    assert "Machine: not recorded, torch 2.13.0, 1 thread a process.\n" in old
    assert "Wall-clock: not recorded.\n" in old
    assert "How the runs were trained is not recorded." in old
    assert "--precision w8a8 --ranges batch" in old


def test_runs_of_one_name_are_told_apart_without_the_folders_above():
    items = gather_landscapes([landscape_file("x", 0, 1.0, label="/home/me/more/x-seed0")])["items"]
    assert (items[0]["label"], items[0]["method"]) == ("more/x-seed0", "more/x")


def test_it_is_known_by_its_keys():
    assert is_landscape(landscape_file("cpt", 0, 1.0))
    assert not is_landscape({"losses": []})


def test_surfaces_made_another_way_are_not_compared():
    page = pages(
        landscape_file("static", 0, 1.0), landscape_file("cpt", 0, 2.0),
        landscape_file("static", 0, 3.0, ranges="observed"),
    )  # fmt: skip
    assert page.sentence.count(" against ") == 1
    assert "differs by +1.07" in page.sentence


def test_two_surfaces_of_one_run_are_an_error():
    twice = [landscape_file("static", 0, 1.0), landscape_file("static", 0, 3.0)]
    with pytest.raises(ValueError, match="two surfaces of static, seed 0: give one of each"):
        pages(*twice)


def test_infinite_losses_on_both_sides_can_be_shown():
    def broken(name, seed):
        found = landscape_file(name, seed, 1.0)
        return {**found, "losses": [[float("inf"), *row[1:]] for row in found["losses"]]}

    files = [broken("static", 0), landscape_file("static", 1, 1.0),
             landscape_file("cpt", 0, 1.0), broken("cpt", 1)]  # fmt: skip
    assert "cpt against static: rise at radius 1 differs by" in pages(*files).sentence
