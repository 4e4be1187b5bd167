"""Runs in formats from recipe to result: healed, cycled, killed and resumed, exported, compared."""

import csv
import json
import random
from dataclasses import replace

import pytest

from bitcycle_lab.export import export_run
from bitcycle_lab.recipes import recipe
from bitcycle_lab.study.study_file import find_study
from bitcycle_lab.train import CheckpointConfig, EvalConfig, TrackingConfig, resume, run
from tests.bitcycle_lab.e2e.commands import ENVIRONMENT
from tests.bitcycle_lab.train.small import Killed, folder_of, kill_before_step, metrics_of, traces
from tests.forking import run_command

BASE = "wikitext2-transformer"
STEPS = 12


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A text in the layout of WikiText-2, enough for a dozen steps."""
    folder = tmp_path_factory.mktemp("data") / "wikitext-2"
    folder.mkdir()
    generator = random.Random(0)
    words = [f"w{number}" for number in range(60)]
    for split, lines in (("train", 300), ("valid", 40), ("test", 40)):
        text = "\n".join(" ".join(generator.choices(words, k=10)) for _ in range(lines))
        (folder / f"wiki.{split}.tokens").write_text(text + "\n", encoding="utf-8")
    return folder.parent


def short(name, root, output, **changes):
    """The recipe for a few steps of short batches."""
    config = recipe(f"{BASE}-{name}")
    return replace(
        config,
        data=replace(config.data, root=str(root), batch_size=4, eval_batch_size=4,
                     sequence_length=16, cache_dir=str(root / "cache")),
        eval=EvalConfig(every=4),
        checkpoint=CheckpointConfig(every=3),
        tracking=TrackingConfig(log_every=1, tensorboard=False),
        steps=STEPS,
        output=str(output),
        **changes,
    )  # fmt: skip


def bits_of(config, role):
    lines = [line for line in metrics_of(folder_of(config)) if line["kind"] == "train"]
    return [line["bits"][role] for line in lines]


def test_healing_as_published_changes_the_forward_product_for_the_last_steps(root, tmp_path):
    config = short("nvfp4-heal-forward", root, tmp_path)
    run(config)
    switch = round(0.82 * STEPS)
    mixed = ["nvfp4", "bf16"]  # the head and the last layers are in bf16
    assert bits_of(config, "weight") == [mixed] * switch + [["bf16"]] * (STEPS - switch)
    assert bits_of(config, "error") == [mixed] * STEPS
    result = json.loads((folder_of(config) / "result.json").read_text())
    assert result["eval_precision"] == "w=bf16,a=bf16"
    shared = short("nvfp4-heal", root, tmp_path / "shared")
    run(shared)
    other = json.loads((folder_of(shared) / "result.json").read_text())
    assert result["cost"]["bitops"] < other["cost"]["bitops"]  # backward products stay in nvfp4
    assert result["weights_sha256"] != other["weights_sha256"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "step"),
    [("nvfp4-heal-both", 5), ("nvfp4-heal-forward", 11), ("mx-cpt", 5), ("fp8", 11)],
)
def test_a_run_killed_within_a_schedule_of_formats_resumes_to_the_bit(
    name, step, root, tmp_path, monkeypatch
):
    """At step 11 healing has begun. NVFP4 rounds errors stochastically, and dropout draws too."""
    changes = {}
    if name == "mx-cpt":  # a dozen steps hold fewer cycles
        precision = recipe(f"{BASE}-{name}").precision
        changes["precision"] = replace(precision, forward="CR:mxfp4,mxfp8,bf16:2")
    whole, cut = (short(name, root, tmp_path / each, **changes) for each in ("whole", "cut"))
    run(whole)
    with monkeypatch.context() as patch:
        kill_before_step(patch, step)
        with pytest.raises(Killed):
            run(cut)
    resume(folder_of(cut))
    assert traces(folder_of(cut)) == traces(folder_of(whole))  # weights, optimizer and log


def test_an_export_says_what_it_cannot_express(root, tmp_path):
    config = short("nvfp4", root, tmp_path)
    run(config)
    with pytest.raises(ValueError, match="formats"):
        export_run(folder_of(config), to="onnx")
    done = export_run(folder_of(config), to="safetensors", output=tmp_path / "model.safetensors")
    assert done.check.largest_difference == 0


@pytest.mark.slow
def test_the_study_of_formats_trains_every_method_and_compares_them_with_bf16(root, tmp_path):
    words = [
        "study", "run", "formats-small", "--seeds", "0", "--output", str(tmp_path), "--quiet",
        "--steps", "16", "--data.root", str(root), "--data.batch_size", "4",
        "--data.eval_batch_size", "4", "--data.sequence_length", "16",
        "--data.cache_dir", str(root / "cache"),
    ]  # fmt: skip
    done = run_command(words, tmp_path, env=ENVIRONMENT, timeout=500)
    assert done.returncode == 0, done.stderr
    with (tmp_path / "studies" / "formats-small" / "table.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    labels = [method.label for method in find_study("formats-small").methods]
    assert [row["method"] for row in rows] == labels
    assert {row["baseline"] for row in rows} == {"bf16"}
