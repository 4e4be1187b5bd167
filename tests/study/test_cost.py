"""What a model or a recipe costs, by name."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import bitcycle as bc
from bitcycle.cost import measure_saved
from bitcycle.models import build_model
from bitcycle.study.cost import price
from bitcycle.study.subject import find_subject

ROLES = {"forward": "CR:3-8:32", "backward": "8"}


def test_the_cost_is_that_of_the_model_itself() -> None:
    priced = price(find_subject("resnet20", roles=ROLES, total_steps=900, batch_size=4))
    model = bc.quantize_model(build_model("resnet20"))
    expected = bc.training_cost(
        model, model.example_inputs(4), forward="CR:3-8:32", backward=8, total_steps=900
    )
    assert priced.cost == expected
    assert priced.saved_bytes is None


def test_a_recipe_by_the_papers_convention_reproduces_the_published_cost() -> None:
    priced = price(find_subject("cifar100-resnet38-cpt-3-8-8", roles={}), convention="paper")
    assert f"{priced.cost.bitops / 1e9:.2e}" == "8.37e+07"  # published .84e8


def test_the_page_has_stages_or_layers_and_the_run() -> None:
    priced = price(find_subject("resnet20", roles=ROLES))
    page = priced.text()
    assert page.startswith("resnet20: forward CR:3-8:32, backward 8; 128 samples a step\n")
    assert "\nlayer1 " in page
    assert "layer1.0" not in page
    assert "\nlayer1.0.conv1 " in priced.text(by_layer=True)


@pytest.mark.parametrize(
    ("asked", "measured"), [("auto", "simulate"), ("simulate", "simulate"), ("int8", "int8")]
)
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


def test_a_dict_of_json_types_has_the_run_and_the_cost() -> None:
    data = price(find_subject("resnet8", roles=ROLES, skip=["fc"])).to_dict()
    assert json.loads(json.dumps(data)) == data
    assert data["model"] == "resnet8"
    assert data["precision"] == {"forward": "CR:3-8:32", "backward": "8"}
    assert data["skip"] == ["fc"]
    assert data["by_stage"]["layer1"] > 0
