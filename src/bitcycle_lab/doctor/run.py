"""Examine a device: machine, choices of `auto`, self-test, times."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence

import torch

from bitcycle.gpu import driver
from bitcycle.warnings import BitcycleWarning
from bitcycle_lab.doctor.check import Check, Device
from bitcycle_lab.doctor.choices import choose_kernels, count_sizes
from bitcycle_lab.doctor.machine import describe_machine, reason_without_gpu
from bitcycle_lab.doctor.products import check_products, count_products
from bitcycle_lab.doctor.report import Report
from bitcycle_lab.doctor.rounding import check_rounding, count_rounding
from bitcycle_lab.doctor.times import LayerTime, TimedLayer, measure_times, timed_layers


def find_device(name: str | None) -> torch.device:
    """The device of this name; None: a GPU if torch sees one, else the CPU."""
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"unknown device {name!r}; give cpu, cuda or cuda:1") from None
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type != "cuda":
        raise ValueError(f"bitcycle has no kernels for {name!r}; give cpu, cuda or cuda:1")
    if why := reason_without_gpu():
        raise ValueError(f"there is no device {name!r}: {why}")
    index, count = device.index or 0, torch.cuda.device_count()
    if index >= count:
        raise ValueError(f"there is no device {name!r}: torch sees {count}, from cuda:0 on")
    return torch.device("cuda", index)


def count_steps(device: torch.device, layers: Sequence[TimedLayer]) -> int:
    """The number that the last call of `advance` has."""
    own = count_sizes(device) + count_rounding() + count_products(device)
    return own + len(layers)


def examine(
    device: torch.device,
    *,
    layers: Sequence[TimedLayer] | None = None,
    say: Callable[[str], None] = lambda line: None,
    advance: Callable[[int], None] = lambda done: None,
) -> Report:
    """The report of a device; layers: to time, none of them for no times."""
    began, done = time.monotonic(), 0

    def step() -> None:
        nonlocal done
        done += 1
        advance(done)

    own = timed_layers(device) if layers is None else layers
    examined = Device(device)
    with warnings.catch_warnings(), torch.random.fork_rng([]), torch.enable_grad():
        warnings.simplefilter("ignore", BitcycleWarning)  # the report has what they say
        say(f"[1/4] kernels that auto chooses on {device}")
        choices, checks = choose_kernels(examined, step)
        say("[2/4] rounding")
        checks += check_rounding(examined, step)
        say("[3/4] products")
        checks += check_products(examined, step)
        times: list[LayerTime] = []
        if own and not examined.lost_by:
            say("[4/4] times")
            times, failed = measure_times(examined, own, advance=step)
            checks += failed
    checks += [
        Check(by=f"GPU kernel {name}", what="start", outcome="failed", reason=reason)
        for name, reason in driver.failures().items()
    ]
    return Report(
        device=str(device),
        machine=describe_machine(),
        choices=tuple(choices),
        checks=tuple(checks),
        times=tuple(times),
        seconds=round(time.monotonic() - began, 3),
    )
