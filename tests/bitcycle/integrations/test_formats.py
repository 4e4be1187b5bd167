"""The callbacks take formats as they take bits."""

import json

import pytest

import bitcycle as bc
from bitcycle.integrations.base import PrecisionRun, Settings
from tests.bitcycle.toys import linears, randn


def make_run(**options):
    given = {"forward": "stages:mxfp4@0.5,bf16", "backward": "mxfp8", **options}
    return PrecisionRun(Settings(**given), bc.quantize_model(linears(32, 32, 8), "mx"), 4)


def test_the_metrics_are_the_bits_of_elements():
    run = make_run()
    run.start_meter(randn(2, 32))
    seen = []
    for _ in range(4):
        run.step()
        metrics = run.metrics()
        seen.append((metrics["bits/forward"], metrics["bits/backward"]))
    assert seen == [(4, 8)] * 2 + [(16, 8)] * 2
    assert 0 < metrics["cost/saved"] < 1


def test_a_state_goes_through_json():
    run = make_run()
    run.start_meter(randn(2, 32))
    run.step()
    saved = json.loads(json.dumps(run.state_dict()))
    other = make_run()
    other.start_meter(randn(2, 32))
    other.resume_at(1, saved)
    assert other.metrics() == run.metrics()


def test_an_evaluation_can_have_a_format():
    run = make_run(eval_precision="w=mxfp4,a=mxfp4")
    run.step()
    assert str(run.eval_bits) == "w=mxfp4,a=mxfp4"
    with pytest.raises(ValueError, match="nvfp4"):
        make_run(eval_precision="w=nvfp4,a=nvfp4")


def test_backward_operands_reach_the_scheduler():
    run = make_run(backward_operands="backward")
    assert str(run.scheduler.precision_at(3)) == "w=bf16/mxfp8,a=bf16/mxfp8,e=mxfp8"
    assert str(make_run().scheduler.precision_at(3)) == "w=bf16,a=bf16,e=mxfp8"
