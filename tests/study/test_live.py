"""A study on a terminal."""

import io

import pytest

from bitcycle.study.live import Live
from bitcycle.study.moment import Moment
from bitcycle.study.results import read_study
from tests.study.small_studies import tiny_study

rich_console = pytest.importorskip("rich.console")


@pytest.fixture
def live(tmp_path):
    console = rich_console.Console(file=io.StringIO(), width=100, force_terminal=True)
    return Live(console), console.file


def text_of(live, table):
    console = rich_console.Console(file=io.StringIO(), width=100)
    console.print(table)
    return [" ".join(line.split()) for line in console.file.getvalue().splitlines()]


def test_the_table_has_the_whole_and_every_run_at_work(live, tmp_path):
    watcher, _ = live
    study = tiny_study()
    runs = list(study.runs(str(tmp_path)))
    watcher.begin(read_study(study, tmp_path), runs, num_jobs=2)
    moment = Moment(step=2, total_steps=4, bits="3/8", metric="accuracy", value=50.0)
    whole, first, second = text_of(
        live, watcher.table([(runs[0], moment), (runs[1], Moment(total_steps=None))], 75.0)
    )
    assert whole.startswith("0/2 runs")
    assert whole.endswith("left 1:15")
    assert first.startswith("8 seed 0")
    assert first.endswith("step 2/4 bits 3/8 accuracy 50.00")
    assert second.endswith("step 0 bits -")


def test_lines_stay_above_and_the_table_goes(live, tmp_path):
    watcher, file = live
    study = tiny_study()
    with watcher:
        watcher.begin(read_study(study, tmp_path), list(study.runs(str(tmp_path))), num_jobs=2)
        watcher.look(list(study.runs(str(tmp_path)))[:1])
        watcher.say("[1/2] odd [text] stays")
    assert "tiny: 2 runs: 2 to begin; 2 at a time" in file.getvalue()
    assert "[1/2] odd [text] stays" in file.getvalue()
