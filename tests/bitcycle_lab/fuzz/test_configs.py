"""Configuration and study files: whatever is in them, one message or a whole run."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.bitcycle_lab.cli.runs import TINY
from tests.bitcycle_lab.train.small import files_below
from tests.damage import damages, json_values, little_memory, paths_in, replaced

from .commands import assert_graceful, run

STUDY: dict[str, Any] = {
    "name": "study",
    "description": "a",
    "baseline": "a",
    "seeds": 2,
    "base": {key: value for key, value in TINY.items() if key != "name"},
    "methods": {"a": {}, "b": {"optimizer.lr": 0.5, "precision": {"forward": 4}}},
    "grid": {"steps": [3, 4]},
    "notes": ["n"],
}
COMMANDS = {"train": ["train", "--print-config"], "study": ["study", "status"]}
FILES = {"train": TINY, "study": STUDY}
quick = settings(max_examples=8, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
deep = settings(quick, max_examples=200)


def check(what: str, content: bytes) -> None:
    """The command says yes or says what is wrong, and writes nothing."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "file.yaml"
        path.write_bytes(content)
        command, *options = COMMANDS[what]
        output = [] if what == "train" else ["--output", f"{name}/runs"]
        with little_memory():
            outcome = run([command, *options, path, *output])
        assert_graceful(outcome)
        assert files_below(Path(name)) == {"file.yaml": content}
        if outcome.code:
            assert "file.yaml" in outcome.err, outcome


@st.composite
def changed_files(draw: Any) -> tuple[str, bytes]:
    """A file in which one value is another, or one key more."""
    what = draw(st.sampled_from(sorted(FILES)))
    value = FILES[what]
    path = draw(st.sampled_from(paths_in(value)))
    new = draw(json_values())
    if draw(st.booleans()) and path:
        path = (*path[:-1], draw(st.text(max_size=6)))  # another key
        if not isinstance(path[-1], str) or any(isinstance(part, int) for part in path):
            path = path[:1]
    try:
        value = replaced(value, path, new)
    except (TypeError, KeyError, IndexError):
        value = new
    return what, yaml.safe_dump(value, allow_unicode=True).encode("utf-8", "surrogatepass")


@st.composite
def damaged_files(draw: Any) -> tuple[str, bytes]:
    """A file to whose bytes something happened."""
    what = draw(st.sampled_from(sorted(FILES)))
    return what, draw(damages).to(yaml.safe_dump(FILES[what]).encode())


@given(changed_files())
@quick
def test_any_value_anywhere_is_taken_or_refused_in_words(file):
    check(*file)


@given(damaged_files())
@quick
def test_any_damage_is_harmless_or_said(file):
    check(*file)


@pytest.mark.slow
@given(st.one_of(changed_files(), damaged_files()))
@deep
def test_that_holds_for_many_more(file):
    check(*file)


WORDS = {
    "deep nesting": "steps: " + "[" * 1_000,
    "an alias of itself": "model: {options: &q {x: *q}}",
    "a number of 5,000 digits": f"steps: {'9' * 5_000}",
    "a python call": "steps: !!python/object/apply:os.system ['touch executed']",
    "bytes": "steps: !!binary AAAA",
    "a date": "name: 2026-11-16",
    "two documents": "steps: 3\n---\nsteps: 4",
    "a key that is a list": "? [a, b]\n: 1",
    "a key that is a number": "1: 2",
    "a byte order mark": "\ufeffsteps: 3",
    "no number at all": "epochs: .nan",
    "a long name": f"steps: 3\nname: {'x' * 400}",
    "null for a part": "steps: 3\nprecision: null",
    "a path for a number": "steps: /etc/hostname",
    "a variable": "steps: ${oc.env:HOME}",
    "a class path": "steps: 3\n"
    "model: {class_path: os.system, init_args: {command: 'touch executed'}}",
    "a billion seeds": "name: x\nseeds: 1000000000\nbase: digits-cpt-3-8-8\nmethods: {a: {}}",
    "a grid without end": "name: x\nbase: digits-cpt-3-8-8\ngrid:\n"
    + "\n".join(f"  optimizer.k{n}: [1, 2, 3, 4, 5, 6, 7, 8, 9]" for n in range(30)),
    "a key of a thousand parts": "name: x\nbase: digits-cpt-3-8-8\n"
    f"methods: {{a: {{{'a.' * 2000}b: 1}}}}",
    "a date on a grid": "name: x\nbase: digits-cpt-3-8-8\ngrid: {steps: [2026-11-16]}",
}


@pytest.mark.parametrize("words", WORDS)
def test_yaml_that_is_made_to_hurt_does_not(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for what in FILES:
        check(what, WORDS[words].encode("utf-8"))
    assert list(tmp_path.iterdir()) == []  # nothing was executed
