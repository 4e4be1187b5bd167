"""Commands as they were typed, without the machine they were typed on."""

import pytest

from bitcycle.study.publish.given import overrides_but, portable, training_command


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--data.root", "/home/me/data"], ["--data.root", "DATA"]),
        (["--data.root=~/data", "--steps", "9"], ["--data.root", "DATA", "--steps", "9"]),
        (["--data.cache_dir", "x"], ["--data.cache_dir", "CACHE"]),
        (["/home/me/mine.yaml", "sub/other.yml"], ["mine.yaml", "other.yml"]),
        (["--eval.precision", "FW8/BW8"], ["--eval.precision", "FW8/BW8"]),
        (["--seeds", "0", "1"], ["--seeds", "0", "1"]),
        (["--model.path", "../big/bert"], ["--model.path", "MODEL"]),
        (["--output"], ["--output", "RUNS"]),
        ([], []),
    ],
)
def test_folders_get_their_place_and_all_else_stays(words, expected):
    assert portable(words) == expected


def test_options_that_stand_elsewhere_are_left_out():
    words = ["--threads", "1", "--range_test.low=3", "--optimizer.lr", "0.02", "--output", "x"]
    assert overrides_but(words, ("threads", "output", "range_test")) == ["--optimizer.lr", "0.02"]


def test_what_began_a_run_is_told_with_its_threads_and_only_if_it_was_ours():
    words = ["/opt/bin/bitcycle", "study", "run", "digits", "--output", "here", "--jobs", "2"]
    assert training_command(words, threads=1) == (
        "bitcycle study run digits --output RUNS --jobs 2 --threads 1"
    )
    assert training_command(["x/__main__.py", "train", "a", "--threads=2"], threads=2) == (
        "bitcycle train a --threads=2 --output RUNS"
    )
    assert training_command(["/home/me/my_script.py", "train"]) is None
    assert training_command([]) is None
