"""What a model or a recipe costs, by name."""

from __future__ import annotations

from dataclasses import replace

import pytest

import bitcycle as bc
from bitcycle.analysis.cost import price
from bitcycle.analysis.subject import find_subject
from bitcycle.cost import measure_saved
from bitcycle.models import build_model

ROLES = {"forward": "CR:3-8:32", "backward": "8"}


def test_the_cost_is_that_of_the_model_itself() -> None:
    priced = price(find_subject("resnet20", roles=ROLES, total_steps=900, batch_size=4))
    model = bc.quantize_model(build_model("resnet20"))
    expected = bc.training_cost(
        model, model.example_inputs(4), forward="CR:3-8:32", backward=8, total_steps=900
    )
    assert priced.cost == expected
    assert priced.saved_bytes is None


@pytest.mark.parametrize(("asked", "measured"), [("auto", "simulate"), ("int8", "int8")])
def test_bytes_kept_for_backward_are_measured_and_continued_to_the_batch(
    asked: str, measured: str
) -> None:
    subject = find_subject("resnet8", roles=ROLES, batch_size=6, total_steps=640)
    subject = replace(subject, precision=replace(subject.precision, kernel=asked))
    priced = price(subject, measures_memory=True)
    model = bc.quantize_model(build_model("resnet8"), kernel=measured)
    bc.set_precision(model, "FW8/BW8")
    assert priced.saved_bytes == measure_saved(model, model.example_inputs(6)).num_bytes
    assert "kept for backward" in priced.text()
    assert f"(measured with kernel {measured} on small batches)" in priced.text()
    assert priced.to_dict()["saved_kernel"] == measured


def test_a_float_model_can_be_priced() -> None:
    priced = price(find_subject("resnet8", roles={"forward": "fp32"}), measures_memory=True)
    assert priced.cost.relative == 1.0
    assert priced.saved_bytes > 0
    assert priced.saved_kernel is None
    assert "(measured on small batches)" in priced.text()
    assert priced.text().startswith("resnet8: float32; ")


def test_a_graph_net_is_priced_by_the_follow_up_and_says_what_its_graph_was() -> None:
    pytest.importorskip("torch_geometric")
    subject = find_subject(
        "gcn", roles={"forward": "8", "backward": "8"}, batch_size=169_343, total_steps=500
    )
    assert price(subject, convention="followup").cost.bitops == 5_592_383_232_000
    floats = price(find_subject("gcn", roles={"forward": "fp32"}, batch_size=16))
    assert "example graph of two edges per node" in floats.text()
