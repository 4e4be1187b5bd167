"""The rows of GPUs in the table of kernels are those of the roofline."""

import pytest

from benchmarks.gpu_roofline import GPUS, LAUNCH, STEPS, Gpu, Launch, linear, seconds, table
from bitcycle.kernels.choice import ROOFLINE, SHIPPED_TABLE, read_table

DEVICE = Gpu("round numbers", int8=400, bf16=200, fp8=400, fp32=20, bandwidth=2)
LAYER = linear(8192, 4096, 4096)  # 2^37 multiply-accumulates


def time_of(step):
    return seconds(STEPS[step](LAYER), DEVICE)


def test_the_shipped_rows_are_those_of_the_roofline():
    assert [row for row in read_table(SHIPPED_TABLE) if row.source == ROOFLINE] == table()
    assert {row.processor for row in table()} == set(GPUS)


@pytest.mark.parametrize(
    ("launch", "share", "expected"),
    [
        (Launch(0), 1.0, LAUNCH),
        (Launch(2 * 10**9), 1.0, 1e-3),  # 2 TB/s
        (Launch(2 * 10**9, 10**10, "fp32"), 1.0, 1e-3),  # 20 Tflop/s: as long
        (Launch(0, 10**10, "fp32"), 0.5, 2e-3),
        (Launch(0, 10**11, "int8"), 1.0, 5e-4),
    ],
)
def test_a_launch_takes_the_longest_of_its_bytes_its_operations_and_itself(launch, share, expected):
    assert seconds([launch], DEVICE, share) == pytest.approx(expected)


def test_a_large_step_is_bound_by_the_rate_of_its_products():
    three = 3 * 2 * 2**37 / 1e12
    assert time_of("float32") == pytest.approx(three / 20, rel=0.01)
    assert time_of("bf16") == pytest.approx(three / 200, rel=0.2)
    # grad_input multiplies two planes
    assert time_of("gpu") == pytest.approx(4 / 3 * three / 400, rel=0.25)
