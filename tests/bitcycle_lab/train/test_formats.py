"""Runs with formats: what their files say, and that they are read back as they were."""

import json

import pytest
import yaml

from bitcycle.precision import Precision
from bitcycle_lab.export import export_run
from bitcycle_lab.report.runs import _most_bits
from bitcycle_lab.study.progress import forward_backward_text
from bitcycle_lab.train import PrecisionConfig, resume, run
from bitcycle_lab.train.config_file import from_dict, override, to_dict
from bitcycle_lab.train.evaluate import evaluate_run
from bitcycle_lab.train.loop import _write_events, bits_by_role
from bitcycle_lab.train.range_test import find_precision_range
from bitcycle_lab.train.run_directory import RunDirectory
from tests.bitcycle_lab.train.small import (
    Killed,
    folder_of,
    kill_before_step,
    metrics_of,
    small,
    traces,
)


def healing(quantizer="mx"):
    return PrecisionConfig(quantizer=quantizer, forward="stages:mxfp4@0.5,bf16", backward="mxfp8")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    config = small(tmp_path_factory.mktemp("formats"), precision=healing())
    run(config)
    return folder_of(config)


def test_the_log_has_formats_by_name(finished):
    bits = {line["step"]: line["bits"] for line in metrics_of(finished) if line["kind"] == "train"}
    assert {step: (row["weight"], row["act"], row["error"]) for step, row in bits.items()} == {
        **dict.fromkeys((2, 4, 6), ("mxfp4", "mxfp4", "mxfp8")),
        **dict.fromkeys((8, 10, 12), ("bf16", "bf16", "mxfp8")),
    }


def test_the_configuration_and_the_result_are_read_back(finished):
    written = yaml.safe_load((finished / "config.yaml").read_text())
    assert written["precision"]["forward"] == "stages:mxfp4@0.5,bf16"
    assert written["precision"]["backward"] == "mxfp8"
    config = RunDirectory(finished).read_config()
    assert config.precision == healing()
    result = json.loads((finished / "result.json").read_text())
    assert result["eval_precision"] == "w=bf16,a=bf16"


def test_a_run_that_died_is_resumed_to_the_last_bit(finished, tmp_path, monkeypatch):
    config = small(tmp_path, precision=healing())
    with monkeypatch.context() as patch:
        kill_before_step(patch, 8)
        with pytest.raises(Killed):
            run(config)
    resume(folder_of(config))
    assert traces(folder_of(config)) == traces(finished)


def test_a_run_is_evaluated_at_formats_and_at_float32(finished):
    for text, shown in (
        ("high", "w=bf16,a=bf16"), ("w=mxfp4,a=mxfp4", "w=mxfp4,a=mxfp4"), ("full", "fp32"),
    ):  # fmt: skip
        assert evaluate_run(finished, precision=text)["precision"] == shown


def test_float_weights_and_the_name_of_the_format_are_exported(finished, tmp_path):
    done = export_run(
        finished, to="safetensors", output=tmp_path / "m.safetensors", precision="w=mxfp4,a=mxfp4"
    )
    assert done.precision == "w=mxfp4,a=mxfp4"
    assert done.check.run == done.check.exported
    assert done.check.largest_difference == 0
    assert "NOT within" not in str(done)
    facts = json.loads((tmp_path / "m.json").read_text())
    assert set(facts["precision"].values()) == {"w=mxfp4,a=mxfp4"}
    for options in ({"to": "onnx"}, {"to": "safetensors", "codes": True}):
        with pytest.raises(ValueError, match="bf16"):
            export_run(finished, **options)


def test_a_configuration_takes_formats_wherever_it_takes_bits():
    config = PrecisionConfig(
        quantizer="mx",
        forward={"*": "mxfp4", "head": "bf16"},
        error="CR:mxfp4,mxfp8:2",
        grad="fp32",
    )
    assert not config.is_float
    assert PrecisionConfig(forward="int8").schedule_texts() == {"forward": "int8", "backward": 8}
    for wrong, message in (
        ({"forward": "mxfp4"}, "precision.backward is not given"),
        ({"forward": {"*": "mxfp4", "head": 8}}, "precision.backward is not given"),
        ({"forward": "mxfp5", "backward": 8}, "precision.forward: "),
    ):
        with pytest.raises(ValueError, match=message):
            PrecisionConfig(quantizer="mx", **wrong)


def test_options_of_the_command_line_take_formats(tmp_path):
    config = override(
        small(tmp_path),
        ["--precision.quantizer", "nvfp4", "--precision.forward", "stages:nvfp4@0.82,bf16",
         "--precision.backward", "nvfp4", "--eval.precision", "w=nvfp4,a=nvfp4"],
    )  # fmt: skip
    assert config.precision.forward == "stages:nvfp4@0.82,bf16"
    assert from_dict(to_dict(config)) == config


def test_a_format_that_the_quantizer_does_not_take_stops_a_run_before_it(tmp_path):
    config = small(tmp_path, precision=healing("sbm"))
    with pytest.raises(ValueError, match="mx"):
        run(config)


def test_a_range_test_of_formats_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="stages:mxfp4@0.5,bf16"):
        find_precision_range(small(tmp_path, precision=healing()))


# -- without a run --------------------------------------------------------------------------------


def test_the_bits_of_layers_that_differ_are_sorted_by_their_elements():
    layers = {
        "a": Precision.parse("FWbf16/BW8"), "b": Precision.parse("FWnvfp4/BW8"), "c": Precision(),
    }  # fmt: skip
    found = bits_by_role(layers)
    assert found["weight"] == ["nvfp4", "bf16", 32]
    assert found["error"] == [8, 32]
    assert forward_backward_text(found) == "nvfp4-fp32/8-fp32"
    assert _most_bits(found["weight"]) is None
    assert str(_most_bits(["nvfp4", "bf16"])) == "bf16"
    assert _most_bits([4, 8]) == 8
    assert str(_most_bits("nvfp4")) == "nvfp4"


def test_tensorboard_gets_the_bits_of_an_element():
    class Events:
        def __init__(self):
            self.seen = {}

        def add_scalar(self, name, value, step):
            self.seen[name] = value

    events = Events()
    _write_events(events, "train", 3, {"step": 3, "bits": {"weight": "nvfp4", "act": 8, "e": None}})
    assert events.seen == {"bits/weight": 4, "bits/act": 8}
