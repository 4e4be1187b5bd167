"""PrecisionScheduler: bits of every role at every step, states, and equality with static bits."""

import copy
import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bitcycle as bc
from bitcycle.nn.control import CLOCK
from tests.bitcycle.toys import linears, net, randn


def scheduler(model=None, total_steps=6, **roles):
    model = bc.quantize_model(linears(4, 4, 4)) if model is None else model
    return bc.PrecisionScheduler(model, total_steps=total_steps, **roles)


def bits_of(model):
    return [str(layer.precision) for layer in model.modules() if hasattr(layer, "precision")]


def test_the_usual_loop_ends_with_the_final_bits_still_set():
    model = bc.quantize_model(net(), skip=["head.2"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    bits = bc.PrecisionScheduler(model, forward="CR:3-8:2", backward=8, total_steps=12)
    seen = []
    for step in range(12):
        seen.append(model.conv.precision.weight)
        x, y = randn(4, 2, 6, 6, seed=step), torch.tensor([0, 1, 2, 0])
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        bits.step()
    # spec: 3 + 5 (1 - cos(pi t / 6)) / 2, rounded, for t = 0..5, twice
    assert seen == [3, 3, 4, 6, 7, 8] * 2
    assert bits.finished
    assert bits.step_count == 12
    assert bits_of(model) == ["w8a8e8g8"] * 2


def test_a_step_too_many_warns_once_and_holds_the_final_bits():
    model = bc.quantize_model(linears(4, 4))
    bits = scheduler(model, total_steps=2, forward="stages:4@0.5,8", nonfinite="raise")
    bits.step()
    bits.step()
    with pytest.warns(bc.BitcycleWarning, match="total_steps=2") as caught:
        bits.step()
    bits.step()  # a second warning would be an error
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert (bits.step_count, bits.finished) == (4, True)
    assert bits_of(model) == ["w8a8e8g8"]
    assert model[0].control[CLOCK][1] == 4  # steps beyond the end have noise of their own
    assert [(s, str(p)) for s, p in bits.history()] == [(0, "w4a4e8"), (1, "w8a8e8")]


def test_a_run_that_went_on_resumes_where_it_was_and_warns_no_more():
    def make():
        return scheduler(forward="plateau:3-5:window=1:patience=0", backward=8)

    first, second = make(), make()
    for _ in range(6):
        first.step(1.0)
    with pytest.warns(bc.BitcycleWarning, match="total_steps=6"):
        first.step()  # without a loss: nothing follows it any more
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert second.step_count == 7
    assert second.precision == first.precision
    second.step()
    assert second.step_count == 8


def test_what_would_surprise_in_a_schedule_is_a_warning():
    model = bc.quantize_model(linears(4, 4))
    with pytest.warns(bc.BitcycleWarning, match="RR:3-8:8") as caught:
        scheduler(model, total_steps=640, forward="RR:3-8:8")
    assert len(caught) == 1  # once, though two roles and every layer have it
    assert caught[0].filename == __file__


def test_a_precision_set_elsewhere_is_overwritten_at_the_next_step():
    model = bc.quantize_model(linears(4, 4))
    bits = scheduler(model, forward=4)
    bc.set_precision(model, "w8a8")
    bits.step()
    assert bits_of(model) == ["w4a4e8g8"]


def test_history_has_every_stretch_so_far():
    bits = scheduler(forward="stages:3@0.5,8", backward=8)
    assert [(s, str(p)) for s, p in bits.history()] == [(0, "w3a3e8")]
    for _ in range(6):
        bits.step()
    assert [(s, str(p)) for s, p in bits.history()] == [(0, "w3a3e8"), (3, "w8a8e8")]


def test_a_preview_has_every_distinct_schedule_once():
    bits = scheduler(forward={"*": "stages:3@0.5,8", "1": 8}, error=8)
    preview = bits.preview()
    assert list(preview) == ["weight, act: stages:3@0.5,8", "error: 8", "weight, act: 8"]
    assert preview["weight, act: stages:3@0.5,8"].shares == {3: 0.5, 8: 0.5}


def test_the_cost_of_cycled_errors_has_the_forward_bits_fixed():
    bits = scheduler(forward=6, error="stages:6@0.5,16")
    # (36 + 12 b) / (36 + 12 * 16), b = 6 for half of the steps, 16 for the others
    assert bits.preview()["error: stages:6@0.5,16"].relative_cost == pytest.approx(
        (108 / 228 + 1) / 2
    )


def test_parts_that_were_converted_alone_take_their_full_names_and_draw_different_noise():
    parts = nn.ModuleDict({name: nn.Sequential(nn.Linear(2, 2)) for name in "ab"})
    for part in parts.values():
        bc.quantize_model(part)
    assert parts["a"][0].control[CLOCK.start] == parts["b"][0].control[CLOCK.start]
    bc.PrecisionScheduler(parts, forward=8, backward=8, total_steps=4)
    assert parts["a"][0].settings.name == "a.0"
    assert parts["a"][0].control[CLOCK.start] != parts["b"][0].control[CLOCK.start]


def test_a_new_scheduler_does_not_report_what_went_wrong_before_it():
    model = bc.quantize_model(nn.Sequential(nn.Linear(2, 2)))
    old = bc.PrecisionScheduler(model, forward=8, total_steps=4, nonfinite="ignore")
    model(torch.tensor([[float("nan"), 0.0]]))
    old.step()
    bc.PrecisionScheduler(model, forward=8, total_steps=4).step()


def test_a_numpy_number_of_steps_is_saved_as_a_plain_one():
    model = bc.quantize_model(nn.Sequential(nn.Linear(2, 2)))
    bits = bc.PrecisionScheduler(model, forward=8, total_steps=np.int64(4))
    assert type(bits.state_dict()["total_steps"]) is int


def test_the_top_has_the_most_bits_of_each_role_on_any_layer():
    forward = {"0": "stages:3@0.5,8", "1": 6}
    bits = scheduler(forward=forward, act={"0": 4}, error="seq(4@0.5, fp32)")
    assert str(bits.top) == "w8a6"
    by_layer = {name: str(precision) for name, precision in bits.highest.items()}
    assert by_layer == {"0": "w8a4", "1": "w6a6"}


def test_a_float_layer_does_not_make_the_others_float():
    bits = scheduler(forward={"*": "stages:3@0.5,8", "1": None}, backward=8)
    highest = bits.highest
    assert (highest["0"].weight, highest["0"].act) == (8, 8)
    assert highest["1"].weight is None
    assert str(scheduler(forward="stages:3@0.5,8").highest) == "w8a8e8"


def test_a_layer_that_was_converted_back_under_the_scheduler_is_an_error():
    model = bc.quantize_model(linears(4, 4))
    bits = scheduler(model, forward=4)
    bc.unquantize_model(model)
    with pytest.raises(RuntimeError, match="'0'"):
        bits.step()


def test_a_float_model_cannot_be_scheduled():
    with pytest.raises(ValueError, match="quantize_model"):
        scheduler(linears(4, 4), forward=4)


def test_levels_that_someone_wrote_over_between_two_steps_are_put_right():
    model = bc.quantize_model(nn.Sequential(nn.Linear(2, 2)))
    bits = bc.PrecisionScheduler(model, forward=4, backward=8, total_steps=4)
    model(torch.ones(1, 2)).sum().backward()
    model[0].control[:4].fill_(1)  # as an average over buffers would
    bits.step()
    assert model[0].control[:4].tolist() == [15, 15, 255, 255]


def test_roles_inherit_forward_and_backward():
    for roles, expected in (
        ({"forward": 4, "backward": None}, "w4a4"),
        ({"backward": 8}, "e8g8"),
        ({"forward": 4, "backward": 8}, "w4a4e8g8"),
        ({"forward": 4, "act": 6, "backward": None}, "w4a6"),
        ({"forward": 4, "act": None, "backward": "fp32"}, "w4"),
        ({"forward": 4, "act": "fp32", "error": "8"}, "w4e8"),
        ({"weight": bc.Static(5), "backward": 7, "error": 6}, "w5e6g7"),
        ({"forward": "fp32"}, "fp32"),
    ):
        model = bc.quantize_model(linears(4, 4))
        scheduler(model, **roles)
        assert bits_of(model) == [expected]


@pytest.mark.parametrize(
    ("roles", "expected"),
    [
        ({"forward": 4}, "w4a4e8"),
        ({"forward": "CR:3-8:1"}, "w3a3e8"),
        ({"forward": bc.Static(8)}, "w8a8e8"),
        ({"forward": "plateau:3-8"}, "w3a3e8"),  # by its top
        ({"forward": "pfq:3,4,6,8"}, "w3a3e8"),
        ({"weight": 4, "act": 6}, "w4a6e8"),
        ({"forward": 8, "act": 6}, "w8a6e8"),
        ({"forward": 4, "error": 6}, "w4a4e6"),
        ({"forward": 16, "error": 6}, "w16a16e6"),  # sbm has no rule for grad
        ({"forward": 4, "backward": None}, "w4a4"),
        ({"forward": None}, "fp32"),
        ({"forward": 32}, "fp32"),  # not rounded either
    ],
)
def test_backward_is_8_bits_by_default_where_forward_has_at_most_8(roles, expected):
    assert str(scheduler(total_steps=64, **roles).precision) == expected


def test_the_default_of_backward_follows_the_forward_bits_of_each_layer():
    bits = scheduler(forward={"0": 4})  # the other layer is float32
    assert {n: str(p) for n, p in bits.precision.items()} == {"0": "w4a4e8", "1": "fp32"}
    bits = scheduler(forward=4, backward={"0": 6})
    assert {n: str(p) for n, p in bits.precision.items()} == {"0": "w4a4e6", "1": "w4a4e8"}
    bits = scheduler(forward=4, error={"0": "fp32"})
    assert {n: str(p) for n, p in bits.precision.items()} == {"0": "w4a4", "1": "w4a4e8"}


def test_other_forward_bits_need_backward():
    for roles, forward in (
        ({"forward": 9}, "9"),
        ({"forward": "CR:3-12:1"}, "CR:3-12:1"),
        ({"forward": "stages:8@0.5,fp32"}, "stages:8@0.5,fp32"),
        ({"weight": 4}, "4 and fp32"),
        ({"forward": {"*": 8, "1": 16}}, "16"),
    ):
        model = bc.quantize_model(linears(4, 4, 4))
        with pytest.raises(ValueError, match=f"backward .*{forward}"):
            scheduler(model, **roles)
        assert bits_of(model) == ["fp32"] * 2
        scheduler(model, total_steps=12, **roles, backward=None)


def test_a_quantizer_without_rules_for_backward_needs_no_backward_bits():
    model = bc.quantize_model(linears(4, 4), OnlyForward())
    assert str(scheduler(model, forward=16).precision) == "w16a16"


class OnlyForward(bc.quantizers.SBM):
    """SBM for weights and activations alone."""

    roles = frozenset({"weight", "act"})


WITH_GRAD = bc.quantizers.WAGEUBN(first_last="quantized")


def test_bits_in_force_are_shown_and_the_given_ones_are_kept():
    for quantizer, shown in (("sbm", "w8a8e8"), (WITH_GRAD, "w8a8e8g8"), (OnlyForward(), "w8a8")):
        model = bc.quantize_model(linears(4, 4), quantizer)
        bits = scheduler(model, forward=8, backward=8)
        assert str(bc.get_precision(model)) == shown
        assert str(bits.precision) == str(bits.top) == str(bits.highest) == shown
        assert [str(p) for _, p in bits.history()] == [shown]
        assert f"precision={shown}," in repr(model)
        assert bits_of(model) == ["w8a8e8g8"]
        assert "grad=8" in bits.state_dict()["schedules"]
    assert list(bits.preview()) == ["weight, act: 8"]  # no error is rounded
    assert bits.preview()["weight, act: 8"].backward is None


def test_a_role_that_some_layers_have_a_rule_for_is_shown():
    model = nn.ModuleList(
        [bc.quantize_model(linears(4, 4), "sbm"), bc.quantize_model(linears(4, 4), WITH_GRAD)]
    )
    bits = scheduler(model, forward=8, backward=8)
    assert str(bits.precision) == str(bc.get_precision(model)) == "w8a8e8g8"
    assert "precision=w8a8e8," in repr(model[0])


@pytest.mark.parametrize(
    ("roles", "text"),
    [
        ({"forward": "CR:3-8:1", "backward": 8}, "w4a4e8; forward=CR:3-8:1, backward=8"),
        ({"forward": 4}, "w4a4e8; forward=4, backward=8 by default"),
        (
            {"forward": {nn.Linear: 4, "1": None}},
            "fp32 / w4a4e8 by layer; forward={Linear: 4, 1: fp32}, backward=8 / fp32 by default",
        ),
        (
            {"forward": 4, "backward": {"0": 6}},
            "w4a4e6 / w4a4e8 by layer; forward=4, backward={0: 6}, on other layers 8 by default",
        ),
    ],
)
def test_the_repr_is_one_line_with_step_bits_and_keywords(roles, text):
    bits = scheduler(**roles)
    bits.step()
    bits.step()
    assert repr(bits) == f"PrecisionScheduler(step 2 of 6: {text})"


def test_a_schedule_that_no_role_is_left_to_is_an_error():
    for roles, named in (
        ({}, "role"),
        ({"forward": 4, "weight": 8, "act": 8}, "forward="),
        ({"backward": 4, "error": 8, "grad": None}, "backward="),
    ):
        with pytest.raises(ValueError, match=named):
            scheduler(**roles)


def test_a_dict_gives_layers_schedules_of_their_own_and_later_patterns_win():
    bits = scheduler(forward={"*": "stages:3@0.5,8", "1": 8}, backward=8)
    assert {n: str(p) for n, p in bits.precision.items()} == {"0": "w3a3e8", "1": "w8a8e8"}
    for _ in range(3):
        bits.step()
    assert str(bits.precision) == "w8a8e8"


def test_layers_that_a_role_does_not_match_inherit():
    bits = scheduler(forward=4, weight={"0": 8}, act={nn.Linear: 6})
    assert {n: str(p) for n, p in bits.precision.items()} == {"0": "w8a6e8", "1": "w4a6e8"}
    bits = scheduler(weight={"0": 8}, backward=None)
    assert {n: str(p) for n, p in bits.precision.items()} == {"0": "w8", "1": "fp32"}


def test_a_mistake_in_a_schedule_is_an_error_before_bits_are_set():
    for roles, named in (
        ({"forward": {"fc": 4}}, "forward: pattern 'fc'"),
        ({"act": {"0": 4, "*": 8}}, "act: pattern '0'"),
        ({"act": "CR:8-3:32"}, "low .8."),
        ({"act": 0}, "got 0"),
        ({"act": {"0": "rump:3-8"}}, "did you mean 'ramp'"),
        ({"forward": "CR:3-8:8"}, "cycles .8."),
    ):
        model = bc.quantize_model(linears(4, 4, 4))
        with pytest.raises(ValueError, match=named):
            scheduler(model, **roles)
        assert bits_of(model) == ["fp32"] * 2


def test_bits_for_a_role_without_a_rule_raise_only_when_it_is_named():
    with pytest.raises(ValueError, match="grad=8"):
        scheduler(grad=8)
    with pytest.raises(ValueError, match="SBM"):
        scheduler(backward=8, grad={"1": 8})
    assert str(scheduler(backward=8).precision) == "e8"
    assert str(scheduler(backward=8, grad="fp32").precision) == "e8"


def test_a_schedule_that_will_exceed_max_bits_is_an_error_now():
    for forward in (9, "CR:3-9:1", "seq(4@0.5, 12@0.9, fp32)", {"0": 4, "1": 9}):
        model = bc.quantize_model(linears(4, 4, 4), max_bits=8)
        with pytest.raises(ValueError, match="max_bits=8"):
            scheduler(model, total_steps=12, forward=forward, backward=8)
        assert bits_of(model) == ["fp32"] * 2


def test_float32_is_not_above_max_bits():
    model = bc.quantize_model(linears(4, 4), max_bits=8)
    bits = scheduler(model, total_steps=4, forward="seq(8@0.5, fp32)", error=8, backward=16)
    for _ in range(4):
        bits.step()
    assert bits_of(model) == ["e8g16"]


def new_run(total_steps=8, forward="CR:3-8:1", model=None):
    model = bc.quantize_model(linears(8, 8, 8) if model is None else model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    bits = bc.PrecisionScheduler(model, forward=forward, backward=4, total_steps=total_steps)
    return model, optimizer, bits


def train(model, optimizer, bits, steps):
    for step in steps:
        for micro_batch in range(2):
            x = randn(16, 8, seed=10 * step + micro_batch)
            model(x).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        bits.step()


def test_a_resumed_run_has_the_same_bits_noise_and_weights():
    whole, first, second = new_run(), new_run(), new_run(model=linears(8, 8, 8, seed=3))
    train(*whole, range(8))
    train(*first, range(3))
    for old, new in zip(first, second, strict=True):
        new.load_state_dict(copy.deepcopy(old.state_dict()))
    assert str(second[2].precision) == str(first[2].precision) != "w8a8e4g4"
    train(*second, range(3, 8))
    assert torch.equal(whole[0][0].weight, second[0][0].weight)
    assert torch.equal(whole[0][1].act_range, second[0][1].act_range)
    assert whole[2].history() == second[2].history()


@pytest.mark.filterwarnings("ignore:.*never observed")
def test_evaluation_between_steps_does_not_change_the_training():
    plain, evaluated = new_run(), new_run()
    train(*plain, range(4))
    for step in range(4):
        model = evaluated[0].eval()
        with torch.no_grad():
            model(randn(16, 8))
        model.train()
        train(*evaluated, [step])
    assert torch.equal(plain[0][0].weight, evaluated[0][0].weight)


def test_steps_and_micro_batches_have_noise_of_their_own():
    model, _, bits = new_run(forward=8)
    x, gradients = randn(16, 8), []
    for _ in range(2):
        for _ in range(2):
            model.zero_grad()
            model(x).square().sum().backward()
            gradients.append(model[0].weight.grad.clone())
        bits.step()
    assert all(not torch.equal(gradients[i], gradients[j]) for i in range(4) for j in range(i))


def test_the_state_is_one_integer_and_what_it_belongs_to():
    _, _, bits = new_run(total_steps=8)
    bits.step()
    state = json.loads(json.dumps(bits.state_dict()))
    assert state["step_count"] == 1
    assert state["total_steps"] == 8
    assert state["schedules"] == "weight=CR:3-8:1 act=CR:3-8:1 error=4 grad=4"


def test_loading_applies_the_bits_at_once():
    model, _, bits = new_run()
    bits.load_state_dict({"step_count": 8})
    assert str(model[0].precision) == "w8a8e4g4"
    assert bits.finished
    bits.load_state_dict({"step_count": 0})
    assert str(model[0].precision) == "w3a3e4g4"


def test_a_state_of_another_run_is_a_warning():
    saved = new_run()[2].state_dict()
    with pytest.warns(bc.BitcycleWarning, match="total_steps 8"):
        new_run(total_steps=16)[2].load_state_dict(saved)
    with pytest.warns(bc.BitcycleWarning, match="weight=CR:3-8:1"):
        new_run(forward=4)[2].load_state_dict(saved)


def test_a_state_of_something_else_is_said_not_to_be_one_of_a_scheduler():
    optimizer = torch.optim.SGD(linears(2, 2).parameters(), lr=0.1)
    foreign = torch.optim.lr_scheduler.StepLR(optimizer, 3).state_dict()
    for state in (foreign, {}, [1]):
        bits = new_run()[2]
        with pytest.raises(ValueError, match="PrecisionScheduler"):
            bits.load_state_dict(state)
        assert bits.step_count == 0


def test_a_step_outside_the_run_is_an_error():
    for step in (-1, 9, None, 1.0, True):
        bits = new_run()[2]
        with pytest.raises(ValueError, match=f"step_count .*{step}"):
            bits.load_state_dict({"step_count": step})
        assert bits.step_count == 0


def test_a_scheduler_of_two_models_in_one_module_drives_both():
    both = nn.ModuleDict({"a": net(), "b": linears(4, 4)})
    for model in both.values():
        bc.quantize_model(model)
    bits = bc.PrecisionScheduler(both, forward="stages:3@0.5,8", total_steps=2)
    bits.step()
    assert str(both["a"].conv.precision) == str(both["b"][0].precision) == "w8a8e8g8"


STEPS = 12


class Net(nn.Module):
    """Convolution, BatchNorm, Linear, and a product of activations."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(6)
        self.fc = nn.Linear(6, 5)
        self.product = bc.MatMul()

    def forward(self, x):
        x = self.norm(self.conv(x)).relu().mean((2, 3))  # (N, 6)
        x = self.fc(x)
        return self.product(x, x.t())  # (N, N)


def make(weights=None):
    torch.manual_seed(0)
    model = Net()
    if weights is not None:
        model.load_state_dict(weights, strict=True)
    return bc.quantize_model(model, seed=7)


def static_at(weights, step, **bits):
    """A model that has never known other bits, at this step of its run."""
    model = make(weights)
    scheduler = bc.PrecisionScheduler(model, **bits, total_steps=STEPS)
    scheduler.load_state_dict({"step_count": step})
    return model


def output_and_gradients(model, step, num_micro_batches=2):
    model.zero_grad()
    outputs = []
    for micro_batch in range(num_micro_batches):
        outputs.append(model(randn(4, 2, 5, 5, seed=100 * step + micro_batch)))
        outputs[-1].square().mean().backward()
    return outputs + [p.grad.clone() for p in model.parameters()]


@pytest.mark.parametrize(
    ("forward", "backward"),
    [("CR:3-8:2", 8), ("CR:3-8:2", "stages:3@0.5,6"), ("seq(4@0.5, fp32)", "seq(fp32@0.25, 4)")],
)
def test_outputs_and_gradients_are_equal_at_every_step(forward, backward):
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    bits = bc.PrecisionScheduler(model, forward=forward, backward=backward, total_steps=STEPS)
    seen = set()
    for step in range(STEPS):
        weights = copy.deepcopy(bc.float_state_dict(model))
        seen.add(bits.precision)
        static = static_at(
            weights, step, forward=bits.precision.weight, backward=bits.precision.error
        )
        expected = output_and_gradients(static, step)
        for ours, theirs in zip(output_and_gradients(model, step), expected, strict=True):
            assert torch.equal(ours, theirs)
        optimizer.step()
        bits.step()
    assert len(seen) > 2  # the schedule did change the bits


def test_the_equality_is_not_empty_bits_steps_and_seeds_all_matter():
    weights = bc.float_state_dict(make())
    base = output_and_gradients(static_at(weights, 3, forward=4, backward=4), 0)
    other_bits = output_and_gradients(static_at(weights, 3, forward=5, backward=4), 0)
    other_step = output_and_gradients(static_at(weights, 4, forward=4, backward=4), 0)
    assert not torch.equal(base[0], other_bits[0])
    assert torch.equal(base[0], other_step[0])  # outputs take no noise
    assert not torch.equal(base[2], other_step[2])  # gradients do


def test_bits_by_default_above_the_limit_of_a_layer_are_named_as_such():
    model = bc.quantize_model(nn.Linear(4, 4), max_bits=4)
    with pytest.raises(ValueError, match="e8"):
        bc.PrecisionScheduler(model, forward=4, total_steps=3)
    assert str(bc.PrecisionScheduler(model, forward=4, backward=4, total_steps=3).top) == "w4a4e4"
