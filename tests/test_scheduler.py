"""PrecisionScheduler: the bits of every step of a run."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bitcycle as bc
from tests.toys import linears, net, randn


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
    with pytest.raises(RuntimeError, match=r"total_steps=12 and has been stepped that often"):
        bits.step()
    assert bits_of(model) == ["w8a8e8g8"] * 2


def test_step_0_is_applied_when_built():
    model = bc.quantize_model(linears(4, 4))
    scheduler(model, forward="stages:3@0.5,8")
    assert bits_of(model) == ["w3a3"]


@pytest.mark.parametrize("total_steps", [0, -1, 1.5, None, "6"])
def test_a_run_has_a_whole_positive_number_of_steps(total_steps):
    with pytest.raises((ValueError, TypeError), match="total_steps"):
        scheduler(total_steps=total_steps, forward=4)


def test_what_would_surprise_in_a_schedule_is_a_warning():
    model = bc.quantize_model(linears(4, 4))
    with pytest.warns(bc.BitcycleWarning, match="RR:3-8:8 never gets to 8 bits in 640") as caught:
        scheduler(model, total_steps=640, forward="RR:3-8:8")
    assert len(caught) == 1  # once, though two roles and every layer have it
    assert caught[0].filename == __file__


def test_a_precision_set_elsewhere_is_overwritten_at_the_next_step():
    model = bc.quantize_model(linears(4, 4))
    bits = scheduler(model, forward=4)
    bc.set_precision(model, "w8a8")
    bits.step()
    assert bits_of(model) == ["w4a4"]


def test_history_has_every_stretch_so_far():
    bits = scheduler(forward="stages:3@0.5,8", backward=8)
    assert [(s, str(p)) for s, p in bits.history()] == [(0, "w3a3e8g8")]
    for _ in range(6):
        bits.step()
    assert [(s, str(p)) for s, p in bits.history()] == [(0, "w3a3e8g8"), (3, "w8a8e8g8")]


def test_a_preview_has_every_distinct_schedule_once():
    bits = scheduler(forward={"*": "stages:3@0.5,8", "1": 8}, error=8)
    preview = bits.preview()
    assert list(preview) == [
        "weight, act: stages:3@0.5,8", "error: 8", "grad: fp32", "weight, act: 8",
    ]  # fmt: skip
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
    assert parts["a"][0].control[4] == parts["b"][0].control[4]
    bc.PrecisionScheduler(parts, forward=8, backward=8, total_steps=4)
    assert parts["a"][0].settings.name == "a.0"
    assert parts["a"][0].control[4] != parts["b"][0].control[4]


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
    assert str(scheduler(forward="stages:3@0.5,8").highest) == "w8a8"


def test_the_bits_of_any_step_can_be_asked_for():
    bits = scheduler(forward="stages:3@0.5,8")
    assert [str(bits.precision_at(step)) for step in (2, 3, 6)] == ["w3a3", "w8a8", "w8a8"]


def test_a_layer_that_was_converted_back_under_the_scheduler_is_an_error():
    model = bc.quantize_model(linears(4, 4))
    bits = scheduler(model, forward=4)
    bc.unquantize_model(model)
    with pytest.raises(RuntimeError, match="layer '0' was converted back to float under"):
        bits.step()


def test_a_float_model_cannot_be_scheduled():
    with pytest.raises(ValueError, match="convert it first"):
        scheduler(linears(4, 4), forward=4)


def test_levels_that_someone_wrote_over_between_two_steps_are_put_right():
    model = bc.quantize_model(nn.Sequential(nn.Linear(2, 2)))
    bits = bc.PrecisionScheduler(model, forward=4, backward=8, total_steps=4)
    model(torch.ones(1, 2)).sum().backward()
    model[0].control[:4].fill_(1)  # as an average over buffers would
    bits.step()
    assert model[0].control[:4].tolist() == [15, 15, 255, 255]
