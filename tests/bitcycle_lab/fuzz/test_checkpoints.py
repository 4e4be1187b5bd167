"""Run folders to which something happened: the same result, or a message and nothing written."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from bitcycle_lab.train.checkpoint import file_digest, manifest_digest
from tests.bitcycle_lab.cli.runs import write_config
from tests.bitcycle_lab.train.small import files_below
from tests.damage import Damage, damages, json_values, little_memory, paths_in, replaced

from .commands import Outcome, assert_graceful, run

quick = settings(max_examples=5, derandomize=True, suppress_health_check=list(HealthCheck))
deep = settings(quick, max_examples=25)
ALWAYS_WRITTEN = (".lock", "log.txt")  # by whoever resumes a run


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fuzz")
    outcome = run(["train", write_config(folder), "--quiet"])
    assert outcome.code == 0, outcome
    return folder / "runs" / "tiny-seed0"


@contextmanager
def copy_of(folder: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(shutil.copytree(folder, Path(name) / "run"))


def files_of(folder: Path) -> list[str]:
    return sorted(files_below(folder))


def commands(folder: Path) -> dict[str, list[Any]]:
    return {
        "eval": ["eval", folder, "--json"],
        "export": ["export", folder, "--to", "safetensors", "--output", "OUT", "--json"],
        "resume": ["resume", folder, "--quiet"],
        "report": ["report", folder, "--output", "OUT"],
    }


def do(what: str, folder: Path) -> Outcome:
    with tempfile.TemporaryDirectory() as name, little_memory(2):
        out = Path(name) / ("report.html" if what == "report" else "model.safetensors")
        outcome = run([out if word == "OUT" else word for word in commands(folder)[what]])
        assert outcome.code == 0 or not out.exists() or what == "export", outcome
    return outcome


def check(what: str, folder: Path, result: Any) -> None:
    """One command on a folder that may be damaged."""
    before = files_below(folder)
    outcome = do(what, folder)
    assert_graceful(outcome)
    after = files_below(folder)
    if what == "resume":
        after = {name: data for name, data in after.items() if name not in ALWAYS_WRITTEN}
        before = {name: data for name, data in before.items() if name not in ALWAYS_WRITTEN}
    if what != "resume" or outcome.code:
        assert after == before, outcome
    is_said = "skipped" in outcome.err
    if what == "eval" and outcome.code == 0 and not is_said and "config.yaml" in result["same"]:
        assert json.loads(outcome.out)["metrics"] == result["metrics"], outcome


@st.composite
def accidents(draw: Any) -> tuple[float, Damage | None]:
    """Which file, and what happens to it; None: it is deleted."""
    return draw(st.floats(0, 0.999)), draw(st.one_of(damages, st.none()))


def expected(folder: Path) -> dict[str, Any]:
    return {"metrics": json.loads((folder / "result.json").read_text())["final"], "same": []}


def after_an_accident(what: str, finished: Path, accident: tuple[float, Damage | None]) -> None:
    place, damage = accident
    with copy_of(finished) as folder:
        if what == "resume":
            (folder / "result.json").unlink()
        names = files_of(folder)
        name = names[int(place * len(names))]
        content = (folder / name).read_bytes()
        (folder / name).unlink()
        if damage is not None:
            (folder / name).write_bytes(damage.to(content))
        same = [] if name == "config.yaml" else ["config.yaml"]  # another one may be valid too
        check(what, folder, expected(finished) | {"same": same})


@given(accidents())
@quick
def test_eval_is_right_or_says_what_is_wrong(finished, accident):
    after_an_accident("eval", finished, accident)


@given(accidents())
@quick
def test_resume_works_or_says_what_is_wrong(finished, accident):
    after_an_accident("resume", finished, accident)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["eval", "resume", "export", "report"])
@given(accidents())
@deep
def test_that_holds_for_every_command_and_many_accidents(what, finished, accident):
    after_an_accident(what, finished, accident)


# -- files that someone wrote with a manifest that fits them ---------------------------------------


def sign(folder: Path) -> None:
    """Make the manifest of a checkpoint fit its files."""
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    files = sorted(path for path in folder.iterdir() if path.name != "manifest.json")
    sums = {path.name: file_digest(path) for path in files}
    content = {**manifest, "sha256": sums, "manifest": manifest_digest(manifest["step"], sums)}
    (folder / "manifest.json").write_text(json.dumps(content), encoding="utf-8")


def newest(folder: Path) -> Path:
    return max((folder / "checkpoints").glob("step-*"))


@st.composite
def forgeries(draw: Any) -> tuple[str, float, Any]:
    """A file of JSON, a place in it, and what stands there instead."""
    name = draw(st.sampled_from(["run.json", "model.json", "optimizer.json"]))
    return name, draw(st.floats(0, 0.999)), draw(json_values())


def forged(what: str, finished: Path, forgery: tuple[str, float, Any]) -> None:
    name, place, new = forgery
    with copy_of(finished) as folder:
        (folder / "result.json").unlink()
        path = newest(folder) / name
        value = json.loads(path.read_text(encoding="utf-8"))
        places = paths_in(value)
        value = replaced(value, places[int(place * len(places))], new)
        path.write_text(json.dumps(value), encoding="utf-8")
        sign(path.parent)
        before = files_below(folder)
        outcome = do(what, folder)
        assert_graceful(outcome)
        if outcome.code:
            kept = {n: data for n, data in files_below(folder).items() if n not in ALWAYS_WRITTEN}
            assert kept == {n: before[n] for n in kept}


@pytest.mark.slow
@pytest.mark.parametrize("what", ["eval", "resume"])
@given(forgeries())
@deep
def test_a_forged_state_is_taken_or_refused_in_words(what, finished, forgery):
    forged(what, finished, forgery)


CHANGES = {
    "another shape": lambda tensor: torch.cat([tensor, tensor]),
    "another dtype": lambda tensor: tensor.to(torch.int64),
    "no numbers": lambda tensor: torch.full_like(tensor, float("nan")),
    "nothing": lambda tensor: tensor[:0],
}


@pytest.mark.parametrize("what", ["eval", "resume"])
@pytest.mark.parametrize(
    ("part", "change"),
    [*(("model", change) for change in CHANGES), ("optimizer", "another shape")],
)
def test_tensors_of_another_model_are_refused_in_words(part, change, what, finished):
    with copy_of(finished) as folder:
        (folder / "result.json").unlink()
        path = newest(folder) / f"{part}.safetensors"
        tensors = load_file(path)
        name = sorted(tensors)[0]
        save_file({**tensors, name: CHANGES[change](tensors[name])}, path)
        sign(path.parent)
        outcome = do(what, folder)
        assert_graceful(outcome)
        if change in ("another shape", "nothing") and part == "model":
            assert outcome.code == 1, outcome


def test_a_checkpoint_under_the_name_of_another_step_is_passed_over(finished):
    with copy_of(finished) as folder:
        newest(folder).rename(folder / "checkpoints" / "step-00000099")
        outcome = run(["eval", folder, "--json"])
        assert_graceful(outcome)
        assert "step 12" in outcome.err


def test_a_manifest_that_is_nested_without_end_is_damage(finished):
    with copy_of(finished) as folder:
        for checkpoint in (folder / "checkpoints").glob("step-*"):
            (checkpoint / "manifest.json").write_text("[" * 100_000)
        outcome = run(["eval", folder])
        assert_graceful(outcome)
        assert outcome.code == 1
        assert "manifest.json" in outcome.err
