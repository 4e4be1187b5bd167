"""Every quantizer with every kernel and type of layer: as on the CPU, and nothing waits."""

from __future__ import annotations

import pytest

import bitcycle as bc
from bitcycle.bits import Bits
from bitcycle.kernels.base import AUTO, KERNELS, make_kernel
from bitcycle.kernels.geometry import LinearGeometry
from bitcycle.quantizers.base import QUANTIZERS

from .emulated import counted
from .models import MODELS, assert_close, make, optimizer_of, precisions, set_step, state_of
from .models import train_step as train

CASES = [(name, kind) for name in QUANTIZERS for kind in precisions(name)]


def tolerance_of(kernel: str) -> float:
    """Of a step: that of a few products one after another."""
    bits = Bits.of("bf16") if kernel == "bf16" else None
    bound = make_kernel(kernel).error_bound(LinearGeometry(), bits)
    return max(1e-4, 4 * bound)


@pytest.mark.parametrize("kernel", [*KERNELS, AUTO])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("quantizer", "kind"), CASES)
def test_a_step_is_that_of_the_cpu_without_transfers(quantizer, kind, name, kernel):
    states, losses = [], []
    reference = kernel if kernel == "bf16" else "simulate"  # a level of nvfp4 may change with it
    for device, each in (("cuda", kernel), ("cpu", reference)):
        model, x = make(name, device, quantizer, each)
        bc.set_precision(model, precisions(quantizer)[kind])
        optimizer = optimizer_of(model)
        set_step(model, 0)
        losses.append(float(train(model, optimizer, x)))
        states.append(state_of(model))
        if device == "cuda":
            with counted() as counts:
                set_step(model, 1)
                train(model, optimizer, x)
            assert (counts.uploads, counts.reads, counts.waits) == (0, 0, 0)
    assert_close(*states, tolerance_of(kernel))
    assert losses[0] == pytest.approx(losses[1], rel=tolerance_of(kernel))
