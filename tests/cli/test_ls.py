"""bitcycle ls."""

import json

import pytest

from bitcycle.cli.ls import KINDS, table
from bitcycle.cli.main import main


@pytest.mark.parametrize("kind", KINDS.names())
def test_every_kind_lists_something(kind, capsys):
    assert main(["ls", kind]) == 0
    assert len(capsys.readouterr().out.splitlines()) >= 2


def test_schedules_come_with_cost_example_and_one_line(capsys):
    assert main(["ls", "schedules", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["CR"]["cost"] == "medium"
    assert rows["CR"]["example"] == "CR:3-8:32"
    assert "CPT" in rows["CR"]["what"]


def test_layers_are_listed_under_their_float_type(capsys):
    assert main(["ls", "layers", "--json"]) == 0
    rows = {row["float type"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["torch.nn.modules.linear.Linear"]["converted"] == "QuantizedLinear"


def test_quantizers_are_listed_by_name(capsys):
    assert main(["ls", "quantizers", "--json"]) == 0
    assert "sbm" in [row["name"] for row in json.loads(capsys.readouterr().out)]


def test_an_unknown_kind_names_the_known_ones(capsys):
    assert main(["ls", "schedule"]) == 2
    assert "did you mean 'schedules'?" in capsys.readouterr().err


def test_the_last_column_wraps_to_the_width():
    rows = [{"name": "a", "what": "one two three four five six seven"}]
    assert table(rows, width=30).splitlines() == [
        "name  what",
        "a     one two three four five",
        "      six seven",
    ]
