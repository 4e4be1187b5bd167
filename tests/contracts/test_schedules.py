"""What holds for every schedule that has a name, when it drives a model."""

import warnings

import pytest

import bitcycle as bc
from bitcycle.schedules import SCHEDULES, schedule_from_dict
from tests.toys import linears

STEPS = 64
FORMS = sorted({info.form for info in bc.list_schedules()} | {
    form for _, kind in SCHEDULES.items() for form in kind.forms
})  # fmt: skip

pytestmark = [
    pytest.mark.parametrize("form", FORMS),
    pytest.mark.filterwarnings("ignore::bitcycle.warnings.BitcycleWarning"),
]


def test_text_and_json_give_it_back_and_it_describes_itself(form):
    schedule = bc.parse_schedule(form)
    assert bc.parse_schedule(str(schedule)) == schedule
    assert schedule_from_dict(schedule.to_dict()) == schedule
    assert schedule.describe()
    assert "\n" not in schedule.describe()


def test_it_drives_a_model_through_every_step_and_holds_its_last_bits(form):
    schedule = bc.parse_schedule(form)
    model = bc.quantize_model(linears(2, 2))
    scheduler = bc.PrecisionScheduler(model, forward=form, total_steps=STEPS)
    for step in range(STEPS):
        assert model[0].precision.weight == schedule(step, STEPS)
        scheduler.step()
    assert model[0].precision.act == schedule(STEPS - 1, STEPS)


def test_its_notes_are_the_warnings_of_the_scheduler(form):
    notes = bc.parse_schedule(form).notes(STEPS)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        bc.PrecisionScheduler(bc.quantize_model(linears(2, 2)), weight=form, total_steps=STEPS)
    assert [str(warning.message) for warning in caught] == notes
