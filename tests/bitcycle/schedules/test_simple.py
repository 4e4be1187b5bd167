"""Static, Ramp and Stages, as literal lists."""

import pytest

from bitcycle.formats import parse_format
from bitcycle.schedules import Ramp, Stages, Static


def test_static_is_the_same_at_every_step():
    for bits in (1, 8, 32, None):
        schedule = Static(bits)
        assert schedule.values(5) == [bits] * 5
        assert (schedule.low, schedule.high) == (bits, bits)


def test_static_takes_the_name_of_a_format():
    nvfp4 = parse_format("nvfp4")
    assert Static("NVFP4").values(2) == [nvfp4, nvfp4]
    assert repr(Static("nvfp4")) == "Static(bits=nvfp4)"
    assert Static("int8") == Static(8) != Static("mxint8")
    assert Static("fp32") == Static(None)
    with pytest.raises(ValueError, match="did you mean 'nvfp4'"):
        Static("nvpf4")


def test_stages_of_formats_are_this_list():
    # the published healing: NVFP4, and BF16 for the last 18% (0.82 x 50 = 41)
    nvfp4, bf16 = parse_format("nvfp4"), parse_format("bf16")
    healing = Stages([("nvfp4", 0.82), ("bf16", 1.0)])
    assert healing.values(50) == [nvfp4] * 41 + [bf16] * 9
    assert (healing.low, healing.high) == (nvfp4, bf16)


def test_of_formats_with_equal_bits_the_last_is_the_top():
    stages = Stages([("nvfp4", 0.5), ("mxfp4", 1.0)])
    assert (str(stages.low), str(stages.high)) == ("nvfp4", "mxfp4")
    assert stages.preview(10, backward="bf16").ends_at_top


def test_static_bits_are_checked():
    for bits in (0, 33, 8.0, True, "8"):
        with pytest.raises(ValueError, match="bits"):
            Static(bits)


def test_a_ramp_is_this_list():
    for until, total, expected in (
        (0.5, 12, [3, 4, 5, 6, 7, 8, 8, 8, 8, 8, 8, 8]),
        (1.0, 12, [3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8]),
        (12, 14, [3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8, 8, 8]),
        (8, 8, [3, 3, 4, 5, 6, 6, 7, 8]),  # 3 + 6 t // 8
        (0.0, 3, [8, 8, 8]),
        (0, 3, [8, 8, 8]),
        (3, 5, [3, 5, 7, 8, 8]),
    ):
        assert Ramp(3, 8, until=until).values(total) == expected


def test_a_ramp_takes_half_of_the_run_unless_told():
    assert Ramp(3, 8) == Ramp(3, 8, until=0.5)


def test_a_ramp_too_short_for_its_stages_is_noted():
    assert len(Ramp(3, 8, until=3).notes(5)) == 1
    assert Ramp(3, 8).notes(12) == []


def test_a_ramp_is_checked_at_birth():
    with pytest.raises(ValueError, match="until.*1.5"):
        Ramp(3, 8, until=1.5)
    with pytest.raises(ValueError, match="low"):
        Ramp(8, 3)


def test_stages_are_this_list():
    for stages, total, expected in (
        ([(3, 0.5), (8, 1.0)], 6, [3, 3, 3, 8, 8, 8]),
        ([(16, 2), (8, 4), (4, 1.0)], 6, [16, 16, 8, 8, 4, 4]),  # a ladder
        ([(8, 2), (3, 4), (8, 1.0)], 6, [8, 8, 3, 3, 8, 8]),  # a deficit of 2 steps from step 2
        ([(4, 0.8), (None, 1.0)], 5, [4, 4, 4, 4, None]),  # a late switch to full precision
        ([(6, 1.0)], 2, [6, 6]),
    ):
        schedule = Stages(stages)
        assert schedule.values(total) == expected
        assert [schedule(step, total) for step in range(total)] == expected


def test_float32_is_the_top_of_stages():
    stages = Stages([(4, 0.5), (None, 1.0)])
    assert (stages.low, stages.high) == (4, None)


def test_a_stage_without_a_step_is_noted():
    [note] = Stages([(3, 0.5), (4, 0.51), (8, 1.0)]).notes(10)
    assert "stage 2" in note


def test_stages_must_be_pairs_of_bits_and_end_points():
    for stages in (None, 8, "3@0.5", [3, 8], [(3,)], [(3, 0.5, 1)], [("3", 1.0)]):
        with pytest.raises(ValueError, match="stage"):
            Stages(stages)
