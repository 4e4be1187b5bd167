"""What a run tells its adaptive schedules, and when."""

import json

import pytest

from bitcycle.schedules import parse_schedule
from bitcycle_lab.tasks import DataConfig
from bitcycle_lab.train import EvalConfig, PrecisionConfig, TrackingConfig, run
from bitcycle_lab.train.evaluate import evaluate_run
from bitcycle_lab.train.session import build_session
from tests.bitcycle_lab.train.small import convnet, folder_of, metrics_of, small

EVERY_STEP = TrackingConfig(log_every=1, tensorboard=False)
DIGITS = DataConfig(subset=160, batch_size=32, eval_batch_size=128, validation=40)


def lines_of(config, kind):
    return [line for line in metrics_of(folder_of(config)) if line["kind"] == kind]


def replayed(rule, measured, total):
    """The bits of each step of a run in which these were measured after it; None: nothing."""
    state, bits = rule.start(), []
    for step in range(total):
        bits.append(rule.bits_of(state, step))
        value = measured[step]
        if value is not None and step + 1 < total:
            state = rule.advance(state, step, {rule.reads[0]: value}, total)
    return bits


def state_of(config):
    path = folder_of(config) / "checkpoints" / "step-00000012" / "run.json"
    return json.loads(path.read_text())["bits"]["adaptive"]


def test_the_loss_of_every_step_is_told(tmp_path):
    text = "plateau:3-6:window=2:patience=0:threshold=0.1"
    config = small(
        tmp_path, tracking=EVERY_STEP, accumulate=2,
        precision=PrecisionConfig(forward=text, backward=6),
    )  # fmt: skip
    run(config)
    train = lines_of(config, "train")
    expected = replayed(parse_schedule(text), [line["loss"] for line in train], 12)
    assert [line["bits"]["weight"] for line in train] == expected
    assert len(set(expected)) > 1


def test_a_validation_metric_is_told_once_by_the_step_after_its_evaluation(tmp_path):
    text = "plateau:3-8:patience=0:threshold=0.5:on=validation"
    config = small(
        tmp_path, tracking=EVERY_STEP, data=DIGITS, eval=EvalConfig(every=2),
        precision=PrecisionConfig(forward=text, backward=6),
    )  # fmt: skip
    result = run(config)
    # an accuracy grows as the model gets better: told with its sign turned
    accuracy = {line["step"]: -line["accuracy"] for line in lines_of(config, "eval")}
    expected = replayed(parse_schedule(text), [accuracy.get(step) for step in range(12)], 12)
    bits = [line["bits"]["weight"] for line in lines_of(config, "train")]
    assert bits == expected
    assert bits[-1] > 3
    assert result.eval_precision == "w8a8"  # the top, reached or not
    scheduled = evaluate_run(folder_of(config), precision="scheduled")
    assert scheduled["precision"] == f"w{bits[-1]}a{bits[-1]}"
    best = evaluate_run(folder_of(config), precision="scheduled", checkpoint="best")
    assert best["precision"] == f"w{bits[best['step']]}a{bits[best['step']]}"


def test_noise_is_measured_every_few_steps_and_no_more_at_the_top(tmp_path):
    config = convnet(
        tmp_path, tracking=EVERY_STEP,
        precision=PrecisionConfig(forward=8, backward="noise:1,2,8:every=4:factor=1000"),
    )  # fmt: skip
    run(config)
    bits = [line["bits"]["error"] for line in lines_of(config, "train")]
    assert bits == [1, 2, 2, 2, 2, 8, 8, 8, 8, 8, 8, 8]  # any noise is too much for this factor
    [state] = state_of(config).values()
    assert state == {"turns": [1, 5], "gradient": None, "noise": None}


def test_measuring_the_noise_changes_nothing_of_the_training(tmp_path):
    """A switch that never comes, against static bits."""
    precisions = {
        "measured": PrecisionConfig(forward=8, backward="noise:4,8:every=2:factor=1e-9"),
        "plain": PrecisionConfig(forward=8, backward=4),
    }
    configs = [
        convnet(tmp_path / name, precision=precision) for name, precision in precisions.items()
    ]
    assert run(configs[0]).weights_sha256 == run(configs[1]).weights_sha256


def test_the_cost_is_that_of_the_bits_the_run_came_to(tmp_path):
    config = small(
        tmp_path, tracking=EVERY_STEP,
        precision=PrecisionConfig(forward="pfq:4,8:window=1:eps=9", backward="pfq:6,6:window=1"),
    )  # fmt: skip
    result = run(config)
    twin = small(tmp_path / "twin", precision=PrecisionConfig(forward="stages:4@5,8", backward=6))
    assert result.cost["bitops"] == run(twin).cost["bitops"]
    assert result.cost["static_top"] == "w8a8e6"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"forward": "plateau:3-8:on=validation"}, "data.validation"),
        ({"forward": "noise:4,8", "backward": "fp32"}, "precision.backward"),
        ({"forward": "pfq:3,8:window=100"}, "window = 100"),
        ({"forward": "pfq:3,8:windo=100"}, "'windo'"),
    ],
)
def test_a_schedule_that_would_wait_for_ever_is_an_error_before_step_0(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        build_session(small(tmp_path, precision=PrecisionConfig(**{"backward": 6, **changes})))


@pytest.mark.parametrize("every", [0, 1.0])
def test_validation_that_is_measured_only_at_the_end_is_an_error(tmp_path, every):
    precision = PrecisionConfig(forward="plateau:3-8:on=validation", backward=6)
    with pytest.raises(ValueError, match=rf"eval\.every is {every}"):
        build_session(
            small(tmp_path, data=DIGITS, precision=precision, eval=EvalConfig(every=every))
        )
