"""Real Hugging Face trainers on small models."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    T5Config,
    T5ForConditionalGeneration,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

import bitcycle as bc
from bitcycle.cost import training_cost
from bitcycle.integrations.transformers import PrecisionCallback
from tests.bitcycle.toys import randn

ROLES = dict(forward="CR:3-5:1", backward=8)


class Net(nn.Module):
    def __init__(self, *, converts: bool = True) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))
        if converts:
            bc.quantize_model(self)
        self.seen: list[tuple[str, str]] = []

    def forward(self, x, labels):
        if hasattr(self, "seen"):
            kind = "train" if self.training else "val"
            self.seen.append((kind, str(bc.get_precision(self))))
        logits = self.net(x)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


def data(num: int = 24) -> list[dict]:
    return [{"x": x, "labels": i % 3} for i, x in enumerate(randn(num, 4))]


def trainer(folder, model, *callbacks, **options) -> Trainer:
    quiet = dict(
        output_dir=folder, use_cpu=True, report_to="none", disable_tqdm=True, save_strategy="no",
        per_device_train_batch_size=4, logging_steps=1, learning_rate=0.05, num_train_epochs=2,
    )  # fmt: skip
    return Trainer(
        model, TrainingArguments(**(quiet | options)), train_dataset=data(), eval_dataset=data(4),
        callbacks=list(callbacks),
    )  # fmt: skip


def bits_of(model: Net, kind: str) -> list[str]:
    return [bits for seen, bits in model.seen if seen == kind]


def scheduled(total: int) -> list[str]:
    schedule = bc.parse_schedule(ROLES["forward"])
    return [f"w{b}a{b}e8" for b in (schedule(step, total) for step in range(total))]


class StopAt(TrainerCallback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step >= self.step


@pytest.mark.parametrize(
    ("options", "total"),
    [
        (dict(max_steps=7), 7),
        (dict(num_train_epochs=2, gradient_accumulation_steps=4), 4),  # 6 batches: 4 and 2
    ],
)
def test_the_total_is_the_trainers_and_bits_move_on_optimizer_steps(tmp_path, options, total):
    model, bits = Net(), PrecisionCallback(**ROLES, example_inputs=dict(
        x=randn(4, 4), labels=torch.arange(4) % 3))  # fmt: skip
    model.seen.clear()
    trainer(tmp_path, model, bits, **options).train()
    assert (bits.scheduler.total_steps, bits.scheduler.finished) == (total, True)
    accumulate = options.get("gradient_accumulation_steps", 1)
    steps = [i % 6 // accumulate + i // 6 * -(-6 // accumulate) for i in range(12)]
    expected = [scheduled(total)[step] for step in steps if step < total]
    assert bits_of(model, "train") == expected


@pytest.mark.parametrize(("asked", "expected"), [("high", "w5a5e8"), ("w4a4", "w4a4")])
def test_evaluation_has_its_own_bits_and_training_does_not_notice(tmp_path, asked, expected):
    plain, evaluated = Net(), Net()
    for model, precision in ((plain, "scheduled"), (evaluated, asked)):
        bits = PrecisionCallback(**ROLES, eval_precision=precision)
        run = trainer(tmp_path, model, bits, eval_strategy="steps", eval_steps=2)
        run.train()
    assert set(bits_of(evaluated, "val")[1:]) == {expected}  # the first is traced for the cost
    assert bits_of(evaluated, "train") == bits_of(plain, "train")
    for name, value in plain.state_dict().items():
        assert torch.equal(value, evaluated.state_dict()[name]), name
    run.evaluate()  # after training, too
    assert evaluated.seen[-1] == ("val", expected)
    assert not evaluated._forward_pre_hooks
    assert "train" not in vars(evaluated)


def test_generation_calls_the_encoder_alone_and_at_the_evaluation_bits(tmp_path):
    config = T5Config(
        vocab_size=20, d_model=8, d_kv=4, d_ff=16, num_layers=1, num_heads=2,
        decoder_start_token_id=0,
    )  # fmt: skip
    model = bc.quantize_model(T5ForConditionalGeneration(config))
    seen = set()

    def note(block, _):
        if not block.training:
            seen.add(str(bc.get_precision(block)))

    model.encoder.block[0].register_forward_pre_hook(note)
    rows = [{"input_ids": torch.arange(1, 6), "labels": torch.arange(1, 5)} for _ in range(8)]
    arguments = Seq2SeqTrainingArguments(
        tmp_path, use_cpu=True, report_to="none", max_steps=4, eval_strategy="steps", eval_steps=2,
        predict_with_generate=True, save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    Seq2SeqTrainer(
        model, arguments, train_dataset=rows, eval_dataset=rows[:2], compute_metrics=lambda _: {},
        callbacks=[PrecisionCallback(forward=4, backward=8, eval_precision="w7a7")],
    ).train()  # fmt: skip
    assert seen == {"w7a7", "fp32"}  # float32: traced for the cost


def test_a_copy_of_the_model_has_a_mode_and_bits_of_its_own(tmp_path):
    class Copies(TrainerCallback):
        def on_step_end(self, args, state, control, model=None, **kwargs):
            other = copy.deepcopy(model)
            before = str(bc.get_precision(model))
            assert not other.eval().training
            assert model.training
            assert (str(bc.get_precision(other)), str(bc.get_precision(model))) == ("w7a7", before)

    bits = PrecisionCallback(forward=4, backward=8, eval_precision="w7a7")
    trainer(tmp_path, Net(), bits, Copies(), max_steps=2).train()


def bert() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = BertConfig(
            vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
            intermediate_size=16, max_position_embeddings=8, num_labels=3,
        )  # fmt: skip
        return bc.quantize_model(BertForSequenceClassification(config))


def sentences(num: int = 24) -> list[dict]:
    tokens = torch.randint(1, 20, (num, 6), generator=torch.Generator().manual_seed(0))
    return [{"input_ids": row, "labels": i % 3} for i, row in enumerate(tokens)]


@pytest.mark.slow
@pytest.mark.parametrize(("make", "restores_callbacks"), [("net", True), ("bert", False)])
def test_an_interrupted_run_resumed_by_the_trainer_ends_bit_identical(
    tmp_path, make, restores_callbacks
):
    def train(name, *callbacks, resume=None):
        model = Net() if make == "net" else bert()
        run = trainer(
            tmp_path / name, model, *callbacks, save_strategy="steps", save_steps=5,
            eval_strategy="steps", eval_steps=4, gradient_accumulation_steps=2, num_train_epochs=4,
            restore_callback_states_from_checkpoint=restores_callbacks,
        )  # fmt: skip
        if make == "bert":
            run.train_dataset, run.eval_dataset = sentences(), sentences(4)
        run.train(resume_from_checkpoint=resume)
        (ours,) = (c for c in run.callback_handler.callbacks if isinstance(c, PrecisionCallback))
        return model, ours

    expected, whole = train("whole", PrecisionCallback(**ROLES))
    train("stopped", PrecisionCallback(**ROLES), StopAt(5))
    resume = str(tmp_path / "stopped" / "checkpoint-5")
    actual, resumed = train("resumed", PrecisionCallback(**ROLES), resume=resume)
    assert resumed.state() == whole.state()  # cost and kernels, too
    assert resumed.state()["attributes"]["saved"]["meter"]["num_samples"] == 4 * 24
    for name, value in expected.state_dict().items():
        assert torch.equal(value, actual.state_dict()[name]), name


def test_the_best_model_has_the_ranges_that_it_was_saved_with(tmp_path):
    """The weights' file is one of a float model; the ranges are in the trainer's state."""
    model = bert()
    run = trainer(
        tmp_path, model, PrecisionCallback(**ROLES), save_strategy="steps", save_steps=2,
        eval_strategy="steps", eval_steps=2, load_best_model_at_end=True, max_steps=6,
        metric_for_best_model="distance", greater_is_better=False,
    )  # fmt: skip
    run.train_dataset, run.eval_dataset = sentences(), sentences(4)
    seen: dict[int, dict[str, torch.Tensor]] = {}

    class Score(TrainerCallback):
        """The checkpoint of step 4 is the best."""

        def on_evaluate(self, args, state, control, metrics, **kwargs):
            metrics["eval_distance"] = abs(state.global_step - 4)

        def on_save(self, args, state, control, **kwargs):
            seen[state.global_step] = copy.deepcopy(model.state_dict())

    run.add_callback(Score())
    run.train()
    assert run.state.best_model_checkpoint.endswith("checkpoint-4")
    for name, value in model.state_dict().items():
        assert torch.equal(value, seen[4][name]), name
    assert any(not torch.equal(seen[4][name], seen[6][name]) for name in seen[4])


def test_a_callback_of_ones_own_kind_finds_its_state_again(tmp_path):
    class Own(PrecisionCallback):
        pass

    saves = dict(save_strategy="steps", save_steps=5)
    trainer(tmp_path, Net(), Own(**ROLES), StopAt(5), **saves).train()
    bits = Own(**ROLES)
    trainer(tmp_path, Net(), bits, **saves).train(resume_from_checkpoint=True)
    assert bits.state()["attributes"]["saved"]["meter"]["num_samples"] == 48


def test_a_checkpoint_without_the_callback_resumes_by_its_step(tmp_path):
    trainer(tmp_path, Net(), StopAt(5), save_strategy="steps", save_steps=5).train()
    model, bits = Net(), PrecisionCallback(**ROLES)
    run = trainer(tmp_path, model, bits, save_strategy="steps", save_steps=5)
    with pytest.warns(bc.BitcycleWarning, match="step 5"):
        run.train(resume_from_checkpoint=True)
    assert bits_of(model, "train") == scheduled(12)[5:]


def rise(step, total):
    return 3 + 3 * step // total


def test_a_function_is_a_schedule_that_resumes_and_is_not_restored_from_text(tmp_path):
    options = dict(save_strategy="steps", save_steps=5)
    whole, cut = Net(), Net()
    trainer(tmp_path, whole, PrecisionCallback(rise, 8), **options).train()
    assert bits_of(whole, "train") == [f"w{rise(s, 12)}a{rise(s, 12)}e8" for s in range(12)]
    trainer(tmp_path, cut, PrecisionCallback(rise, 8)).train(
        resume_from_checkpoint=str(tmp_path / "checkpoint-5")
    )
    assert bits_of(cut, "train") == bits_of(whole, "train")[5:]
    for resumed, options, named in (
        (PrecisionCallback(lambda step, total: 4, 8), {}, "weight and act"),
        (PrecisionCallback(rise, 8), dict(restore_callback_states_from_checkpoint=True), "Python"),
    ):
        with pytest.raises(ValueError, match=named):
            trainer(tmp_path, Net(), resumed, **options).train(
                resume_from_checkpoint=str(tmp_path / "checkpoint-5")
            )


class Listener(TrainerCallback):
    """Stands for a logger, which a Trainer puts before the callbacks it is given."""

    def __init__(self) -> None:
        self.logs: list[dict] = []

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.logs.append(dict(logs))


def test_bits_and_cost_reach_the_trainers_loggers(tmp_path):
    model, listener = Net(), Listener()
    run = trainer(tmp_path, model, listener, PrecisionCallback(**ROLES))
    run.train()
    for lines in (listener.logs, run.state.log_history):
        rows = [line for line in lines if "loss" in line]
        shown = [f"w{row['bits/forward']:.0f}a{row['bits/forward']:.0f}e8" for row in rows]
        assert shown == scheduled(12)
        inputs = dict(x=randn(4, 4), labels=torch.arange(4) % 3)
        cost = training_cost(model, inputs, **ROLES, total_steps=12)
        assert rows[-1]["cost/bitops"] == cost.bitops
        assert rows[-1]["cost/saved"] == pytest.approx(cost.saving)


@pytest.mark.parametrize(
    ("callbacks", "converts", "message"),
    [
        ([PrecisionCallback(**ROLES)], False, "quantize_model"),
        ([PrecisionCallback(**ROLES, total_steps=5)], True, "total_steps=5.*12"),
        ([PrecisionCallback(**ROLES), PrecisionCallback(**ROLES)], True, "two"),
        ([PrecisionCallback("plateau:3-5", 8)], True, "plateau"),
    ],
)  # fmt: skip
def test_mistakes_are_clear_errors_before_the_first_step(tmp_path, callbacks, converts, message):
    model = Net(converts=converts)
    with pytest.raises(ValueError, match=message):
        trainer(tmp_path, model, *callbacks).train()
    assert model.seen == []


def test_a_pattern_that_the_checkpoints_cannot_hold_is_an_error():
    with pytest.raises(ValueError, match="Linear"):
        PrecisionCallback({nn.Linear: 4}, 8)


def test_a_batch_that_cannot_be_traced_costs_the_cost_and_not_the_run(tmp_path):
    class Odd(Net):
        def forward(self, x, labels):
            if not self.training:
                raise RuntimeError("only trains")
            return super().forward(x, labels)

    bits = PrecisionCallback(**ROLES)
    with pytest.warns(bc.BitcycleWarning, match="only trains"):
        trainer(tmp_path, Odd(), bits).train()
    assert bits.scheduler.finished


class Interrupt(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        raise KeyboardInterrupt


def test_a_run_that_was_broken_off_leaves_nothing_to_the_next_on_the_same_model(tmp_path):
    model, first = Net(), PrecisionCallback(**ROLES, eval_precision="full")
    with pytest.raises(KeyboardInterrupt):
        trainer(tmp_path, model, first, Interrupt()).train()
    model.eval()  # as an interrupted evaluation leaves it
    model.seen.clear()
    options = dict(eval_strategy="steps", eval_steps=2)
    trainer(tmp_path, model, PrecisionCallback(**ROLES), **options).train()
    assert bits_of(model, "train") == scheduled(12)
    assert set(bits_of(model, "val")[1:]) == {"w5a5e8"}
    assert not model._forward_pre_hooks


# -- formats --------------------------------------------------------------------------------------

LEFT_IN_BF16 = {"lm_head": "bf16", "model.layers.1.mlp": "bf16"}
HEALING = dict(
    forward={"*": "stages:nvfp4@0.82,bf16", **LEFT_IN_BF16},
    backward={"*": "nvfp4", **LEFT_IN_BF16},
)


def causal_lm(folder, *callbacks, **options) -> Trainer:
    """A small Llama with random weights, converted for NVFP4, and its trainer."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=20, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2,
    )  # fmt: skip
    model = bc.quantize_model(LlamaForCausalLM(config), "nvfp4")
    tokens = torch.randint(20, (24, 8), generator=torch.Generator().manual_seed(0))
    lines = [{"input_ids": line, "labels": line} for line in tokens]
    quiet = dict(
        output_dir=folder, use_cpu=True, report_to="none", disable_tqdm=True, save_strategy="no",
        per_device_train_batch_size=4, logging_steps=1, learning_rate=0.01, max_steps=11,
    )  # fmt: skip
    return Trainer(
        model, TrainingArguments(**(quiet | options)), train_dataset=lines, eval_dataset=lines[:4],
        callbacks=list(callbacks),
    )  # fmt: skip


def test_a_causal_lm_is_healed_and_says_so_in_the_log(tmp_path):
    bits = PrecisionCallback(**HEALING)
    run = causal_lm(tmp_path, bits)
    run.train()
    lines = run.state.log_history[:-1]
    switch = 9  # 0.82 x 11
    assert {line["bits/forward/*"] for line in lines[:switch]} == {4}
    assert 4 < lines[0]["bits/forward"] < 8  # a mean: lm_head and the last mlp have 16
    assert {line["bits/forward"] for line in lines[switch:]} == {16}
    assert len({line["bits/backward"] for line in lines}) == 1
    assert 0 < lines[-1]["cost/saved"] < 1
    assert run.evaluate()["eval_loss"] > 0
    assert str(bc.get_precision(run.model.lm_head)) == "w=bf16,a=bf16,e=bf16"


@pytest.mark.slow
def test_a_run_resumed_within_healing_ends_to_the_bit_as_one_without_a_break(tmp_path):
    whole = causal_lm(tmp_path / "whole", PrecisionCallback(**HEALING))
    whole.train()
    saving = dict(save_strategy="steps", save_steps=5)
    cut = causal_lm(tmp_path / "cut", PrecisionCallback(**HEALING), StopAt(5), **saving)
    cut.train()
    resumed = causal_lm(tmp_path / "cut", PrecisionCallback(**HEALING), **saving)
    resumed.train(resume_from_checkpoint=True)
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[name]), name
