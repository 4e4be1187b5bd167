"""The runner is the plain loop: the same weights, to the last bit, as one written by hand."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F

import bitcycle as bc
from bitcycle.precision import Precision
from bitcycle_lab.models import build_model
from bitcycle_lab.tasks import TASKS, DataConfig
from bitcycle_lab.train import (
    EvalConfig,
    LrConfig,
    OptimizerConfig,
    PrecisionConfig,
    TrackingConfig,
)
from bitcycle_lab.train.final_evaluation import weights_digest
from bitcycle_lab.train.loop import bits_by_role
from bitcycle_lab.train.run import run
from bitcycle_lab.train.session import preserve_torch_settings
from tests.bitcycle_lab.train.small import convnet, float32, folder_of, metrics_of, small


def train_by_hand(config):
    """What a user would write for such a configuration."""
    with preserve_torch_settings():
        torch.set_num_threads(config.threads)
        torch.manual_seed(config.seed)
        options = config.model.options
        model = build_model(config.model.name, num_classes=10, in_channels=1, **options)
        bits = None
        if not config.precision.is_float:
            bc.quantize_model(model, seed=config.seed)
            bits = bc.PrecisionScheduler(
                model, forward=config.precision.forward, backward=config.precision.backward,
                total_steps=config.steps,
            )  # fmt: skip
        task = TASKS["images"](config.model, config.data, seed=config.seed)
        batches = task.train_batches(num_micro=config.accumulate)
        optimizer = torch.optim.SGD(
            model.parameters(), lr=config.optimizer.lr, momentum=0.9, weight_decay=1e-4
        )
        middle = config.steps // 2
        lr = torch.optim.lr_scheduler.MultiStepLR(optimizer, [middle], gamma=0.1)
        for step in range(config.steps):
            for micro in range(config.accumulate):
                batch = batches.batch_at(step, micro)
                with torch.autocast("cpu", torch.bfloat16, enabled=config.autocast == "bf16"):
                    logits = model(batch.inputs)
                (F.cross_entropy(logits.float(), batch.targets) * batch.share).backward()
            if config.clip_norm is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip_norm)
            optimizer.step()
            optimizer.zero_grad()
            lr.step()
            if bits is not None:
                bits.step()
    return model


@pytest.mark.parametrize(
    "changes",
    [
        {"precision": float32()},
        {"accumulate": 2},
        {"clip_norm": 0.05, "seed": 5},
        {"autocast": "bf16"},
    ],
    ids=["float32", "micro-batches", "clipped", "bf16"],
)
def test_a_run_is_the_plain_loop(tmp_path, changes):
    config = small(tmp_path, **changes)
    assert run(config).weights_sha256 == weights_digest(train_by_hand(config))


def test_what_is_compared_above_depends_on_each_setting(tmp_path):
    bf16 = {"autocast": "bf16", "precision": float32()}
    changes = [{}, {"precision": float32()}, {"clip_norm": 0.05}, bf16, {"seed": 5}]
    configs = [small(tmp_path, steps=3, **change) for change in changes]
    assert len({weights_digest(train_by_hand(config)) for config in configs}) == len(changes)


def test_micro_batches_add_up_to_the_batch(tmp_path):
    whole = train_by_hand(small(tmp_path, precision=float32()))
    parts = train_by_hand(small(tmp_path, precision=float32(), accumulate=4))
    for a, b in zip(whole.parameters(), parts.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_a_float32_run_has_no_bits_and_is_not_converted(tmp_path):
    config = small(tmp_path, precision=float32(), steps=2)
    result = run(config)
    assert (result.eval_precision, result.kernels) == ("fp32", {})
    assert result.cost["relative_to_float32"] == 1
    first = metrics_of(folder_of(config))[0]
    assert first["bits"] == {"weight": None, "act": None, "error": None, "grad": None}


def test_epochs_are_counted_in_steps_of_the_data(tmp_path):
    """160 samples in batches of 32 are 5 steps an epoch."""
    config = small(tmp_path, steps=None, epochs=1.5, precision=PrecisionConfig(forward=4))
    assert run(config).steps == 8  # 7.5, rounded to even


def test_metrics_have_a_line_per_log_and_one_per_evaluation(tmp_path):
    config = small(tmp_path, eval=EvalConfig(every=5), tracking=TrackingConfig(log_every=4,
                   tensorboard=False))  # fmt: skip
    run(config)
    lines = metrics_of(folder_of(config))
    assert [(line["step"], line["kind"]) for line in lines] == [
        (4, "train"), (5, "eval"), (8, "train"), (10, "eval"), (12, "train"), (12, "eval"),
    ]  # fmt: skip


def test_a_metrics_line_has_the_bits_the_rate_and_the_cost_of_its_step(tmp_path):
    config = small(tmp_path, tracking=TrackingConfig(log_every=1, tensorboard=False))
    result = run(config)
    lines = [line for line in metrics_of(folder_of(config)) if line["kind"] == "train"]
    schedule = bc.parse_schedule("CR:3-8:2")
    assert [line["bits"]["weight"] for line in lines] == [schedule(s, 12) for s in range(12)]
    assert {line["bits"]["error"] for line in lines} == {6}
    assert {line["bits"]["grad"] for line in lines} == {None}  # sbm has no rule for it
    log = (folder_of(config) / "log.txt").read_text(encoding="utf-8")
    assert "bits w3a3e6  saved" in log
    # the rate is what the next step takes: it falls after 6 of 12 steps
    assert [line["lr"] for line in lines] == pytest.approx([0.05] * 5 + [0.005] * 7)
    costs = [line["bitops"] for line in lines]
    assert costs == sorted(costs)
    assert costs[-1] == result.cost["bitops"]


def test_the_loss_of_a_line_is_the_mean_since_the_line_before(tmp_path):
    every = small(tmp_path / "1", tracking=TrackingConfig(log_every=1, tensorboard=False))
    thirds = small(tmp_path / "3", tracking=TrackingConfig(log_every=3, tensorboard=False))
    run(every)
    run(thirds)

    def losses(config):
        lines = metrics_of(folder_of(config))
        return [line["loss"] for line in lines if line["kind"] == "train"]

    single = losses(every)
    means = [sum(single[i : i + 3]) / 3 for i in range(0, 12, 3)]
    assert losses(thirds) == pytest.approx(means)


def test_the_best_is_the_evaluation_with_the_highest_metric(tmp_path):
    data = DataConfig(subset=160, batch_size=32, validation=60)
    config = small(tmp_path, data=data, eval=EvalConfig(every=1),
                   optimizer=OptimizerConfig(lr=0.5), lr=LrConfig(policy="constant"))  # fmt: skip
    result = run(config)
    lines = [line for line in metrics_of(folder_of(config)) if line["kind"] == "eval"]
    assert {line["split"] for line in lines} == {"validation"}
    best = max(lines, key=lambda line: line["accuracy"])  # the first of equals
    assert (result.best["step"], result.best["validation"]) == (best["step"], best["accuracy"])


def test_the_evaluation_changes_nothing_in_the_training(tmp_path):
    often = run(small(tmp_path / "a", eval=EvalConfig(every=1)))
    never = run(small(tmp_path / "b", eval=EvalConfig(every=0)))
    assert often.weights_sha256 == never.weights_sha256


def test_bits_by_role_lists_the_distinct_ones_where_layers_differ():
    assert bits_by_role(Precision(weight=4, error=8)) == {
        "weight": 4, "act": None, "error": 8, "grad": None,
    }  # fmt: skip
    rows = {"a": Precision(weight=4), "b": Precision(weight=8), "c": Precision()}
    assert bits_by_role(rows)["weight"] == [4, 8, 32]


def test_layers_may_have_schedules_of_their_own(tmp_path):
    precision = PrecisionConfig(forward={"fc1": 4, "fc2": 6}, backward=8)
    config = small(tmp_path, steps=2, precision=precision)
    run(dataclasses.replace(config))
    assert metrics_of(folder_of(config))[0]["bits"]["weight"] == [4, 6, 32]


def test_channels_last_changes_the_layout_and_not_the_training(tmp_path):
    plain = run(convnet(tmp_path / "a", precision=float32()))
    last = run(convnet(tmp_path / "b", precision=float32(), channels_last=True))
    assert last.final["loss"] == pytest.approx(plain.final["loss"], rel=1e-3)
