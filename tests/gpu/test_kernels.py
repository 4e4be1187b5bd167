"""Steps with Triton kernels on the device, interpreted on the emulated one."""

from __future__ import annotations

import pytest
import torch

import bitcycle as bc
from bitcycle.quantizers.base import QUANTIZERS
from bitcycle.quantizers.sbm import SBM

from .conftest import use
from .emulated import counted, is_emulated
from .models import assert_close, make, optimizer_of, precisions, set_step, state_of
from .models import train_step as train

triton = pytest.mark.parametrize("rounding", ["triton"], indirect=True)
CASES = [(name, kind) for name in QUANTIZERS for kind in precisions(name)]


def steps(monkeypatch, name, quantizer, kind, kernel, rounding):
    use(monkeypatch, rounding)
    model, x = make(name, "cuda", quantizer, kernel)
    bc.set_precision(model, precisions(quantizer)[kind])
    optimizer = optimizer_of(model)
    set_step(model, 0)
    train(model, optimizer, x)
    with counted() as counts:
        set_step(model, 1)
        loss = train(model, optimizer, x)
    assert (counts.uploads, counts.reads, counts.waits) == (0, 0, 0)
    return {"loss": loss.cpu(), **state_of(model)}, counts


@pytest.mark.parametrize("name", ["linear", "convolutions"])
@pytest.mark.parametrize(("quantizer", "kind"), CASES)
def test_kernels_round_as_torch_to_the_bit(quantizer, kind, name, monkeypatch):
    (ours, with_kernels), (theirs, without) = (
        steps(monkeypatch, name, quantizer, kind, "simulate", each) for each in ("triton", "torch")
    )
    if is_emulated():
        assert with_kernels.launches < without.launches
    assert ours.keys() == theirs.keys()
    if name == "convolutions" and not is_emulated():
        assert_close(ours, theirs, 5e-2)  # cuDNN may sum in any order
        return
    for key, value in ours.items():
        assert torch.equal(value, theirs[key]), key


class Salted(SBM):
    """Makes another key from the words of a key."""

    def encode(self, role, x, levels, within, key=None, as_codes=False):
        return super().encode(role, x, levels, within, None if key is None else key ^ 1, as_codes)


def test_a_quantizer_with_own_rules_has_the_noise_of_torch(monkeypatch):
    states = []
    for quantizer, rounding in ((Salted(), "triton"), (Salted(), "torch"), (SBM(), "torch")):
        use(monkeypatch, rounding)
        model, x = make("linear", "cuda", quantizer)
        bc.set_precision(model, "FW8/BW3")
        train(model, optimizer_of(model), x)
        states.append(state_of(model)["2.weight.grad"])
    assert torch.equal(states[0], states[1])
    assert not torch.equal(states[1], states[2])


@triton
@pytest.mark.parametrize(
    "quantizer", [name for name in QUANTIZERS if "integer" in precisions(name)]
)
def test_products_of_codes_are_those_of_values(quantizer, monkeypatch):
    ours, theirs = (
        steps(monkeypatch, "linear", quantizer, "integer", kernel, "triton")[0]
        for kernel in ("gpu", "simulate")
    )
    assert_close(ours, theirs, 2**-6)  # an error that is rounded to another level counts
