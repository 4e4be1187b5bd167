"""Two processes, DDP or FSDP2, train what one process trains at the same global batch."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.distributed.launch import run_together
from tests.distributed.training import EXACT, train

pytestmark = pytest.mark.slow
STEPS = 60


@pytest.fixture(scope="module", params=["float64", "float32"])
def curves(request, tmp_path_factory):
    """The runs of one dtype: one process, then both ways with two."""
    folder: Path = tmp_path_factory.mktemp(request.param)
    options = {"num_steps": STEPS, "quantizer": EXACT, "dtype": request.param, "kernel": "simulate"}
    one = run_together(train, 1, folder, has_group=False, way="plain", **options)[0]
    two = {way: run_together(train, 2, folder, way=way, **options) for way in ("ddp", "fsdp2")}
    return request.param, one, two


def differences(one: list[float], two: list[float]) -> list[float]:
    return [abs(a - b) / abs(a) for a, b in zip(one, two, strict=True)]


@pytest.mark.parametrize("way", ["ddp", "fsdp2"])
def test_the_loss_curve_is_that_of_one_process(curves, way):
    """In float64 to the end; in float32 until a last digit moves a value across a border."""
    dtype, one, two = curves
    found = differences(one["loss"], two[way][0]["loss"])
    same = next((step for step, value in enumerate(found) if value > 1e-5), STEPS)
    print(f"{way} {dtype}: up to {max(found[:same]):.1e} for {same} steps, {max(found):.1e} in all")
    if dtype == "float64":
        assert max(found) < 1e-12
    else:
        assert same >= 5
        means = [sum(run["loss"][-20:]) for run in (one, two[way][0])]
        assert means[1] == pytest.approx(means[0], rel=0.2)
    assert one["loss"][-1] < 0.5 * one["loss"][0]


@pytest.mark.parametrize("way", ["ddp", "fsdp2"])
def test_bits_and_cost_are_those_of_one_process_on_every_rank(curves, way):
    _, one, two = curves
    for rank in two[way]:
        assert rank["bits"] == one["bits"]
        assert rank["bitops"] == one["bitops"]
    assert len(set(one["bits"])) == 6  # 3 to 8


@pytest.mark.parametrize("way", ["ddp", "fsdp2"])
def test_all_ranks_have_the_same_weights_and_ranges(curves, way):
    first, second = curves[2][way]
    assert first["weights"] == second["weights"]
    assert first["ranges"] == second["ranges"]
