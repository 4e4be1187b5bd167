"""What holds for every schedule that has a name, when it drives a model."""

import copy
import json
import warnings

import pytest

import bitcycle as bc
from bitcycle.bits import order
from bitcycle.schedules import SCHEDULES, schedule_from_dict
from tests.bitcycle.toys import linears

STEPS = 64
FORMS = sorted({info.form for info in bc.list_schedules()} | {
    form for _, kind in SCHEDULES.items() for form in kind.forms
})  # fmt: skip

pytestmark = pytest.mark.filterwarnings("ignore::bitcycle.warnings.BitcycleWarning")
every_form = pytest.mark.parametrize("form", FORMS)


def driven(form, **options):
    """A model of one layer and the scheduler that gives it this forward schedule."""
    model = bc.quantize_model(linears(2, 2))
    return model, bc.PrecisionScheduler(
        model, forward=form, backward=8, total_steps=STEPS, **options
    )


def tell(scheduler):
    """A step of a training that goes nowhere, which makes adaptive schedules rise."""
    scheduler.step(dict.fromkeys(scheduler.needs, 1.0))


@every_form
def test_text_and_json_give_it_back_and_it_describes_itself(form):
    schedule = bc.parse_schedule(form)
    assert bc.parse_schedule(str(schedule)) == schedule
    assert schedule_from_dict(json.loads(json.dumps(schedule.to_dict()))) == schedule
    assert schedule.describe()
    assert "\n" not in schedule.describe()


@every_form
def test_it_drives_a_model_through_every_step_within_its_bounds_and_holds_its_last_bits(form):
    schedule = bc.parse_schedule(form)
    widths = schedule.bit_widths(STEPS)
    assert all(order(schedule.low) <= order(bits) <= order(schedule.high) for bits in widths)
    model, scheduler = driven(form)
    seen = []
    for _ in range(STEPS):
        seen.append(model[0].precision.weight)
        tell(scheduler)
    assert set(seen) <= widths
    assert model[0].precision.act == seen[-1]
    assert scheduler.finished
    assert [scheduler.precision_at(step).weight for step in range(STEPS)] == seen
    if not schedule.is_adaptive:
        assert seen == schedule.values(STEPS)


@every_form
def test_a_scheduler_that_was_saved_in_the_middle_goes_on_with_the_same_bits(form):
    _, whole = driven(form)
    _, first = driven(form)
    for _ in range(STEPS):
        tell(whole)
    for _ in range(STEPS // 2):
        tell(first)
    _, second = driven(form)
    second.load_state_dict(json.loads(json.dumps(copy.deepcopy(first.state_dict()))))
    for _ in range(STEPS - STEPS // 2):
        tell(second)
    assert second.history() == whole.history()
    assert second.state_dict() == whole.state_dict()


@every_form
def test_what_is_known_ahead_is_told_and_what_is_not_is_refused(form):
    schedule = bc.parse_schedule(form)
    assert schedule(0, STEPS) == driven(form)[0][0].precision.weight
    if not schedule.is_adaptive:
        assert schedule.preview(STEPS).total_steps == STEPS
        return
    for ask in (schedule.preview, schedule.values, driven(form)[1].preview):
        with pytest.raises(ValueError, match="follows the training"):
            ask(STEPS) if ask.__self__ is schedule else ask()


@every_form
def test_its_notes_are_the_warnings_of_the_scheduler(form):
    notes = bc.parse_schedule(form).notes(STEPS)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        driven(form)
    assert [str(warning.message) for warning in caught] == notes
