"""The cost of models and recipes by name, before a run."""

from __future__ import annotations

from dataclasses import replace

import pytest

import bitcycle as bc
from bitcycle.cost import measure_saved
from bitcycle_lab.cost import spec as specs
from bitcycle_lab.cost.run import estimate_cost
from bitcycle_lab.cost.spec import find_spec, spec_from_config
from bitcycle_lab.data import load_corpus
from bitcycle_lab.models import build_model
from bitcycle_lab.recipes import recipe
from bitcycle_lab.tasks import ModelConfig
from bitcycle_lab.train import run
from tests.bitcycle_lab.train.small import lstm, write_words

ROLES = {"forward": "CR:3-8:32", "backward": "8"}


def test_the_cost_is_that_of_the_model_itself() -> None:
    estimate = estimate_cost(find_spec("resnet20", roles=ROLES, total_steps=900, batch_size=4))
    model = bc.quantize_model(build_model("resnet20"))
    expected = bc.training_cost(
        model, model.example_inputs(4), forward="CR:3-8:32", backward=8, total_steps=900
    )
    assert estimate.cost == expected
    assert estimate.saved_bytes is None


@pytest.mark.parametrize(("asked", "measured"), [("auto", "simulate"), ("native", "native")])
def test_bytes_kept_for_backward_are_measured_and_continued_to_the_batch(
    asked: str, measured: str
) -> None:
    spec = find_spec("resnet8", roles=ROLES, batch_size=6, total_steps=640)
    spec = replace(spec, precision=replace(spec.precision, kernel=asked))
    estimate = estimate_cost(spec, measures_memory=True)
    model = bc.quantize_model(build_model("resnet8"), kernel=measured)
    bc.set_precision(model, "FW8/BW8")
    assert estimate.saved_bytes == measure_saved(model, model.example_inputs(6)).num_bytes
    assert "kept for backward" in estimate.text()
    assert f"(measured with kernel {measured} on small batches)" in estimate.text()
    assert estimate.to_dict()["saved_kernel"] == measured


def test_a_float_model_can_be_priced() -> None:
    estimate = estimate_cost(find_spec("resnet8", roles={"forward": "fp32"}), measures_memory=True)
    assert estimate.cost.relative == 1.0
    assert estimate.saved_bytes > 0
    assert estimate.saved_kernel is None
    assert "(measured on small batches)" in estimate.text()
    assert estimate.text().startswith("resnet8: float32; ")


def test_a_graph_net_is_priced_by_the_follow_up_and_says_what_its_graph_was() -> None:
    pytest.importorskip("torch_geometric")
    spec = find_spec(
        "gcn", roles={"forward": "8", "backward": "8"}, batch_size=169_343, total_steps=500
    )
    assert estimate_cost(spec, convention="followup").cost.bitops == 5_592_383_232_000
    floats = estimate_cost(find_spec("gcn", roles={"forward": "fp32"}, batch_size=16))
    assert "example graph of two edges per node" in floats.text()


@pytest.mark.parametrize(
    ("data", "last"),  # of scikit-learn's 1,437 training images
    [
        ({}, 29),  # 22 x 64 + 29
        ({"validation": 100, "subset": 0.3}, 17),  # 401 = 6 x 64 + 17
        ({"batch_size": 479}, 479),  # three whole batches
    ],
)
def test_the_cost_before_a_run_is_the_one_it_ends_with(tmp_path, data, last) -> None:
    config = replace(recipe("digits-cpt-3-8-8"), steps=50, output=str(tmp_path), threads=1)
    config = replace(
        config,
        model=ModelConfig(name="digits_mlp", options={"width": 8}),
        data=replace(config.data, **data),
        precision=replace(config.precision, forward="CR:3-8:2", skip=("fc3",)),
    )
    spec = spec_from_config(config)
    assert spec.samples_per_step[-1] == last
    assert estimate_cost(spec).cost.bitops == run(config).cost["bitops"]


def test_a_text_in_blocks_has_a_smaller_last_batch_and_one_in_columns_has_none(
    tmp_path, monkeypatch
) -> None:
    text = write_words(tmp_path / "text")
    columns = lstm(tmp_path / "runs", text)
    blocks = replace(
        columns,
        name="blocks",
        model=ModelConfig(name="transformer_lm", options={"dim": 8, "num_layers": 1}),
        precision=replace(columns.precision, only=None),
        data=replace(columns.data, batch_size=7),
    )
    num_words = len(load_corpus(columns.data.name, text).train)
    vocabulary = len(load_corpus(columns.data.name, text).vocabulary)
    monkeypatch.setitem(specs.NUM_SAMPLES, columns.data.name, num_words)
    for config in (columns, blocks):
        options = {**config.model.options, "vocab_size": vocabulary}
        config = replace(config, model=replace(config.model, options=options))
        assert estimate_cost(spec_from_config(config)).cost.bitops == run(config).cost["bitops"]
