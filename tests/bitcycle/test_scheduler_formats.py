"""PrecisionScheduler with formats: the bits of every step, states, limits; tools that read them."""

import json
import math

import pytest

import bitcycle as bc
from bitcycle.formats.catalogue import FORMATS
from bitcycle.precision import Precision
from bitcycle.role_schedules import quantizer_for
from bitcycle.snapshot import Snapshot
from tests.bitcycle.toys import linears, randn

MXFP4, MXFP8, BF16, NVFP4 = (FORMATS[name] for name in ("mxfp4", "mxfp8", "bf16", "nvfp4"))
HEALING = {"forward": "stages:mxfp4@0.5,bf16", "backward": "mxfp8"}


def make(quantizer="mx", total_steps=4, model=None, **roles):
    model = model or bc.quantize_model(linears(32, 32, 32, 32), quantizer)
    return model, bc.PrecisionScheduler(model, total_steps=total_steps, **(roles or HEALING))


def test_a_schedule_of_formats_sets_them_step_by_step():
    model, bits = make()
    seen = []
    for _ in range(4):
        seen.append(str(bc.get_precision(model)))
        bits.step()
    assert seen == ["w=mxfp4,a=mxfp4,e=mxfp8"] * 2 + ["w=bf16,a=bf16,e=mxfp8"] * 2
    assert bits.finished
    assert str(bits.highest) == str(bits.top) == "w=bf16,a=bf16,e=mxfp8"
    assert [(step, str(row)) for step, row in bits.history()] == [
        (0, "w=mxfp4,a=mxfp4,e=mxfp8"), (2, "w=bf16,a=bf16,e=mxfp8"),
    ]  # fmt: skip


def test_a_ladder_is_a_schedule_of_a_role():
    model, bits = make(forward="CR:mxfp4,mxfp8,bf16:2", backward="bf16", total_steps=8)
    names = {"mxfp4", "mxfp8", "bf16"}
    seen = [str(bits.precision_at(step).weight) for step in range(8)]
    assert set(seen) == names
    assert seen[:4] == seen[4:]
    assert (seen[0], seen[3]) == ("mxfp4", "bf16")


def test_formats_and_numbers_mix_and_tops_are_those_of_integers():
    model, bits = make(
        weight="stages:4@0.25,mxfp4@0.5,6@0.75,bf16", act=8, backward="bf16", total_steps=4
    )
    assert [str(bits.precision_at(step).weight) for step in range(4)] == ["4", "mxfp4", "6", "bf16"]
    tops = model[0].tops
    assert (tops["weight"], tops["act"], tops["error"]) == (6, 8, 0)
    assert bits.top == Precision(weight=BF16, act=8, error=BF16)


def test_a_state_goes_through_json_and_continues_exactly():
    _, bits = make()
    for _ in range(3):
        bits.step()
    state = json.loads(json.dumps(bits.state_dict()))
    assert state["step_count"] == 3
    assert "weight=stages:mxfp4@0.5,bf16" in state["schedules"]
    model, other = make()
    other.load_state_dict(state)
    assert str(bc.get_precision(model)) == "w=bf16,a=bf16,e=mxfp8"
    assert other.state_dict() == bits.state_dict()


@pytest.mark.parametrize(
    ("quantizer", "roles"),
    [
        ("sbm", {"forward": "mxfp8", "backward": 8}),
        ("sbm", {"forward": 8, "backward": "nvfp4"}),
        ("sbm", {"forward": "stages:8@0.5,mxfp4@0.75,16", "backward": 8}),  # in the middle
        ("mx", {"forward": "nvfp4", "backward": "bf16"}),
        ("mx", {"forward": "bf16", "backward": {"*": "bf16", "1": "nvfp4"}}),
    ],
)
def test_a_format_that_the_quantizer_does_not_take_is_an_error_when_built(quantizer, roles):
    with pytest.raises(ValueError, match=r"mx|nvfp4"):
        make(quantizer, **roles)


def test_every_quantizer_of_integers_takes_plain_floats():
    for quantizer in ("sbm", "dorefa", "absmax"):
        model, bits = make(quantizer, forward="stages:8@0.5,bf16", backward="fp16")
        assert str(bits.precision_at(2).weight) == "bf16"


def test_backward_must_be_given_with_formats():
    with pytest.raises(ValueError, match="backward"):
        make(forward="mxfp8")


def test_the_quantizer_follows_from_the_formats():
    assert quantizer_for([8, None, BF16]) == "sbm"
    assert quantizer_for([NVFP4, BF16]) == "nvfp4"
    assert quantizer_for([FORMATS["fp8"], FORMATS["e5m2"]]) == "fp8"
    with pytest.raises(ValueError, match="mxfp4 and nvfp4"):
        quantizer_for([MXFP4, NVFP4])


@pytest.mark.parametrize("quantizer", ["mx", "nvfp4", "sbm"])
def test_formats_of_two_quantizers_on_a_layer_are_one_error(quantizer):
    for forward, backward in (
        ("stages:nvfp4@0.5,mxfp8", "nvfp4"), ("nvfp4", "mxfp8"), ("bf16", "stages:mxfp8@2,nvfp4"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="(nvfp4|mxfp8) and "):
            make(quantizer, forward=forward, backward=backward)


def test_formats_of_two_quantizers_on_two_layers_name_the_layer():
    forward = {"*": "nvfp4", "0": "mxfp8"}
    with pytest.raises(ValueError, match="'0' .*mxfp8"):
        make("nvfp4", forward=forward, backward="bf16")


def test_a_snapshot_restores_formats():
    model, bits = make()
    before = Snapshot(model, [bits])
    bits.step()
    bits.step()
    before.restore()
    assert str(bc.get_precision(model)) == "w=mxfp4,a=mxfp4,e=mxfp8"
    assert bits.step_count == 0


def test_the_audit_shows_formats_by_role():
    model, _ = make(forward="mxfp4", backward=8)
    row = bc.audit(model).rows[0]
    assert {role: row.bits[role] for role in ("weight", "act", "error")} == {
        "weight": "mxfp4", "act": "mxfp4", "error": "8",
    }  # fmt: skip
    assert row.precision == "w=mxfp4,a=mxfp4,e=8"
    assert "w=mxfp4,a=mxfp4,e=8" in str(bc.audit(model))


def test_collect_measures_the_noise_of_a_format_and_not_its_saturation():
    model, _ = make(forward="mxfp4", backward="mxfp8")
    with bc.collect(model) as statistics:
        model(randn(4, 32)).square().mean().backward()
    for role, least, most in (("weight", 14, 24), ("act", 14, 24), ("error", 24, 40)):
        row = statistics["0", role]
        assert least < row.sqnr_db < most
        assert math.isnan(row.saturation)
    line = next(line for line in str(statistics).splitlines() if "weight" in line)
    assert line.split()[3] == "-"


def test_a_range_test_takes_numbers_of_bits_only():
    model = bc.quantize_model(linears(4, 4), "mx")
    for bounds in ({"low": "mxfp4", "high": 8}, {"low": 4, "high": BF16}):
        with pytest.raises(ValueError, match="mxfp4|bf16"):
            bc.precision_range_test(model, lambda: 0.0, restore=[], steps_per_precision=8, **bounds)


# -- backward operands ----------------------------------------------------------------------------

OWN = {**HEALING, "backward": "mxfp4", "backward_operands": "backward"}
STAYS, HEALED = "w=mxfp4,a=mxfp4,e=mxfp4", "w=bf16/mxfp4,a=bf16/mxfp4,e=mxfp4"


def test_backward_operands_follow_the_backward_schedule():
    model, bits = make(**OWN)
    seen = []
    for _ in range(4):
        seen.append(str(bc.get_precision(model)))
        bits.step()
    assert seen == [STAYS] * 2 + [HEALED] * 2
    assert str(bits.highest) == str(bits.top) == str(bits.precision) == HEALED
    assert [(step, str(row)) for step, row in bits.history()] == [(0, STAYS), (2, HEALED)]
    assert "backward_operands='backward'" in repr(bits)


def test_the_default_is_that_of_cpt():
    _, bits = make(forward="stages:mxfp4@0.5,bf16", backward="mxfp4")
    assert str(bits.precision_at(3)) == "w=bf16,a=bf16,e=mxfp4"
    assert "backward_operands" not in repr(bits)
    assert "backward_operands" not in json.dumps(bits.state_dict())


def test_a_resumed_state_has_the_backward_operands_and_another_setting_is_noticed():
    model, bits = make(**OWN)
    for _ in range(3):
        bits.step()
    state = json.loads(json.dumps(bits.state_dict()))
    model, other = make(**OWN)
    other.load_state_dict(state)
    assert str(bc.get_precision(model)) == HEALED
    _, shared = make(**{**OWN, "backward_operands": "forward"})
    with pytest.warns(bc.BitcycleWarning, match="backward_operands"):
        shared.load_state_dict(state)


def test_at_precision_and_set_precision_take_and_restore_backward_operands():
    model, bits = make(**OWN)
    with bc.at_precision(model, HEALED):
        assert str(bc.get_precision(model)) == HEALED
        bc.set_precision(model, bc.get_precision(model))
        assert str(bc.get_precision(model)) == HEALED
    assert str(bc.get_precision(model)) == STAYS
    bc.set_precision(model, {"*": "bf16", "1": HEALED})
    assert {name: str(p) for name, p in bc.get_precision(model).items()} == {
        "0": "w=bf16,a=bf16,e=bf16", "1": HEALED, "2": "w=bf16,a=bf16,e=bf16",
    }  # fmt: skip


def test_layer_patterns_and_roles_go_with_backward_operands():
    model, bits = make(
        forward={"*": "stages:mxfp4@0.5,bf16", "2": "bf16"}, backward={"*": "mxfp4", "2": "bf16"},
        backward_operands="backward",
    )  # fmt: skip
    found = {name: str(each) for name, each in bits.precision_at(3).items()}
    assert found == {"0": HEALED, "1": HEALED, "2": "w=bf16,a=bf16,e=bf16"}
    _, bits = make(weight="mxfp8", act="bf16", error="mxfp4", backward_operands="backward")
    assert str(bits.precision) == "w=mxfp8/mxfp4,a=bf16/mxfp4,e=mxfp4"


@pytest.mark.parametrize(
    "roles",
    [
        {"forward": 8, "backward": "bf16"},
        {"forward": "bf16", "backward": 8},
        {"forward": "stages:bf16@0.5,8", "backward": "bf16"},  # at some step
        {"forward": {"*": "bf16", "1": "CR:3-8:1"}, "backward": "bf16"},  # on some layer
    ],
)
def test_an_integer_grid_at_any_step_is_an_error_when_built(roles):
    with pytest.raises(ValueError, match="8|CR:3-8:1"):
        make(**roles, backward_operands="backward")
    with pytest.raises(ValueError, match="'both'"):
        make(**HEALING, backward_operands="both")


def test_the_preview_counts_backward_products_at_backward_bits():
    _, bits = make(**OWN)
    forward = bits.preview()["weight, act: stages:mxfp4@0.5,bf16"]
    # output: (4 x 4 + 16 x 16) / 2; the two backward products: 4 x 4 each; at the top 16 x 16
    assert forward.relative_cost == (136 + 32) / (256 + 32)


def test_the_audit_shows_what_each_pass_reads():
    model, bits = make(**OWN)
    assert bc.audit(model).rows[0].precision == STAYS
    bits.step()
    bits.step()
    row = bc.audit(model).rows[0]
    assert {role: row.bits[role] for role in ("weight", "act", "error")} == {
        "weight": "bf16/mxfp4", "act": "bf16/mxfp4", "error": "mxfp4",
    }  # fmt: skip
    assert HEALED in str(bc.audit(model))
