"""Two processes, DDP or FSDP2, train what one process trains at the same global batch."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bitcycle.distributed.launch import run_together
from tests.bitcycle.distributed.training import EXACT, train

pytestmark = pytest.mark.slow
STEPS = 60


@pytest.fixture(scope="module")
def curves(tmp_path_factory):
    """One process, then both ways with two; in float64, where no last digit crosses a border."""
    folder: Path = tmp_path_factory.mktemp("curves")
    options = {"num_steps": STEPS, "quantizer": EXACT, "dtype": "float64", "kernel": "simulate"}
    one = run_together(train, 1, folder, has_group=False, way="plain", **options)[0]
    two = {way: run_together(train, 2, folder, way=way, **options) for way in ("ddp", "fsdp2")}
    return one, two


@pytest.mark.parametrize("way", ["ddp", "fsdp2"])
def test_the_loss_curve_is_that_of_one_process(curves, way):
    one, two = curves
    assert two[way][0]["loss"] == pytest.approx(one["loss"], rel=1e-12, abs=0)
    assert one["loss"][-1] < 0.5 * one["loss"][0]


@pytest.mark.parametrize("way", ["ddp", "fsdp2"])
def test_bits_and_cost_are_those_of_one_process_on_every_rank(curves, way):
    one, two = curves
    for rank in two[way]:
        assert rank["bits"] == one["bits"]
        assert rank["bitops"] == one["bitops"]
    assert len(set(one["bits"])) == 6  # 3 to 8


@pytest.mark.parametrize("way", ["ddp", "fsdp2"])
def test_all_ranks_have_the_same_weights_and_ranges(curves, way):
    first, second = curves[1][way]
    assert first["weights"] == second["weights"]
    assert first["ranges"] == second["ranges"]


@pytest.mark.parametrize("way", ["ddp", "fsdp2"])
def test_in_float32_it_is_until_a_last_digit_crosses_a_border(tmp_path, way):
    options = {"num_steps": STEPS, "quantizer": EXACT, "kernel": "simulate"}
    one = run_together(train, 1, tmp_path, has_group=False, way="plain", **options)[0]["loss"]
    first, second = run_together(train, 2, tmp_path, way=way, **options)
    assert first["loss"][:5] == pytest.approx(one[:5], rel=1e-5)
    assert sum(first["loss"][-20:]) == pytest.approx(sum(one[-20:]), rel=0.2)
    assert (first["weights"], first["ranges"]) == (second["weights"], second["ranges"])
