"""An exported run answers as the run does, and says how closely."""

import json

import pytest
from torch import nn

import bitcycle as bc
from bitcycle.export import load_exported
from bitcycle_lab.cli.main import main
from bitcycle_lab.export import Check, compare, export_run
from bitcycle_lab.tasks import TASKS, DataConfig, ModelConfig
from bitcycle_lab.train.evaluate import evaluate_run
from tests.bitcycle_lab.cli.runs import write_config
from tests.bitcycle_lab.data.pair_layouts import write_snli


def trained(folder, **changes):
    assert main(["train", str(write_config(folder, **changes)), "--quiet"]) == 0
    return folder / "runs" / "tiny-seed0"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("export"))


def test_safetensors_evaluate_as_the_run(finished, tmp_path):
    path = tmp_path / "model.safetensors"
    done = export_run(finished, to="safetensors", output=path, codes=True)
    metrics = evaluate_run(finished, split="validation")["metrics"]
    assert done.check.run == done.check.exported == metrics["accuracy"]
    assert done.check.mean_difference < 1e-6
    assert (done.precision, done.step, done.check.split) == ("w8a8", 12, "validation")


def test_torch_is_compared_at_the_bits_of_the_weights(finished, tmp_path):
    done = export_run(finished, to="torch", output=tmp_path / "m.pt", precision="w3a3")
    metrics = evaluate_run(finished, split="validation", precision="w3")["metrics"]
    assert done.check.exported == metrics["accuracy"]
    assert done.check.is_within
    assert done.precision == "w3a3"
    about = load_exported(tmp_path / "m.pt").about
    assert (about["run"], about["step"], about["model"]) == ("tiny", 12, "digits_mlp")


def test_a_float_run_is_exported_too(tmp_path):
    run = trained(tmp_path, precision={"forward": None, "backward": None})
    done = export_run(run, to="safetensors")
    assert done.precision == "fp32"
    assert done.check.largest_difference == 0.0
    assert (run / "export" / "model.safetensors").exists()


def test_a_run_that_never_observed_ranges_is_refused(tmp_path):
    run = trained(tmp_path, precision={"forward": None, "backward": 8})
    with pytest.raises(ValueError, match="never observed"):
        export_run(run, to="torch", precision="w8a8")
    assert not (run / "export").exists()


@pytest.mark.slow
def test_onnx_evaluates_as_the_run(tmp_path):
    options = {"quantizer_options": {"zero": "integer"}}
    run = trained(tmp_path, precision=options, model={"name": "digits_convnet", "options": {}})
    done = export_run(run, to="onnx")
    metrics = json.loads((run / "result.json").read_text())
    assert metrics["eval_precision"] == done.precision == "w8a8"
    assert done.check.is_within
    assert done.check.exported == pytest.approx(done.check.run, rel=0.01)
    assert "explicit Add" not in " ".join(done.file.ways)


@pytest.mark.slow
def test_a_bert_that_learned_evaluates_as_the_run_in_onnx(tmp_path):
    write_snli(tmp_path, train=120, test=60)
    run = trained(
        tmp_path,
        task="pairs",
        model={"name": "bert", "options": {"dim": 32, "ffn_dim": 64, "vocab_size": 300}},
        data={"name": "snli", "root": str(tmp_path), "subset": None, "sequence_length": 24},
        optimizer={"name": "adam", "lr": 0.003},
        steps=60,
    )
    done = export_run(run, to="onnx")
    assert done.check.run > 50  # chance is 33
    assert done.check.is_within
    assert done.check.exported == done.check.run
    assert export_run(run, to="safetensors", codes=True).check.is_within


@pytest.fixture(scope="module")
def task():
    data = DataConfig(name="digits", subset=60, batch_size=16, validation=20)
    return TASKS["images"](ModelConfig(name="digits_mlp", options={"width": 8}), data)


def test_differences_are_those_of_the_outputs(task):
    class Shifted(nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, x):
            return self.model(x) + 0.25

    model = task.build_model()
    check = compare(task, model, bc.Precision(), Shifted(model), "validation")
    assert check.mean_difference == pytest.approx(0.25, rel=1e-5)
    assert check.largest_difference == pytest.approx(0.25, rel=1e-5)
    assert check.run == check.exported
    assert not check.is_within


@pytest.mark.parametrize(("exported", "mean", "expected"), [
    (90.0, 0.0, True), (89.2, 0.01, True), (89.0, 0.0, False), (90.0, 0.02, False),
])  # fmt: skip
def test_both_the_metric_and_the_outputs_must_be_near(exported, mean, expected):
    check = Check(
        split="test", metric="accuracy", run=90.0, exported=exported, largest_output=1.0,
        largest_difference=0.1, mean_difference=mean, tolerance=0.01,
    )  # fmt: skip
    assert check.is_within is expected


def test_a_float32_run_has_no_grids_to_export_at(tmp_path):
    run = trained(tmp_path, precision={"forward": "fp32", "backward": "fp32"})
    for options in ({"precision": "w8a8"}, {"codes": True}):
        with pytest.raises(ValueError, match="float32"):
            export_run(run, to="safetensors", **options)
