"""Where the runs were made."""

import json

from bitcycle.report.page.environment import environment_section
from bitcycle.report.page.recorded import record

from .made_up import SCRIPT, Elements


def test_equal_environments_are_one_column(made):
    seen = Elements(environment_section(record(made)))
    assert "6 runs" in seen.text
    assert "9.9" in seen.text
    assert SCRIPT in "".join(seen.texts)
    assert "command" not in seen.text


def test_another_machine_is_another_column(made):
    path = made.methods[0].runs[0].directory / "env.json"
    path.write_text(json.dumps({"torch": "8.8", "device": None}))
    seen = Elements(environment_section(record(made)))
    assert "5 runs 1 run" in seen.text
    assert "9.9 8.8" in seen.text


def test_without_a_run_there_is_none(made):
    assert environment_section(record(made)[3:]) is None
