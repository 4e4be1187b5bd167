"""Products are float32 on a GPU: TF32 is off within them, and as it was after them."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch

import bitcycle as bc
from bitcycle.kernels.geometry import without_tf32

from .models import assert_close, make, optimizer_of, state_of, train_step

CUDA = torch.backends.cuda.matmul


def settings() -> tuple[object, ...]:
    read = torch._C._get_fp32_precision_getter
    pairs = [("cuda", name) for name in ("matmul", "conv", "rnn")]
    return tuple(read(*each) for each in (*pairs, ("mkldnn", "matmul"), ("mkldnn", "conv")))


def set_legacy() -> None:
    CUDA.allow_tf32 = torch.backends.cudnn.allow_tf32 = True


def set_medium() -> None:
    torch.set_float32_matmul_precision("medium")


def set_new() -> None:
    torch.backends.cudnn.rnn.fp32_precision = "ieee"  # the older setting is of both
    CUDA.fp32_precision = torch.backends.cudnn.conv.fp32_precision = "tf32"


@pytest.fixture(autouse=True)
def _restored():
    yield
    CUDA.fp32_precision = "none"
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = True


@pytest.mark.parametrize("allow", [set_legacy, set_medium, set_new])
@pytest.mark.parametrize("name", ["linear", "convolutions", "attention"])
def test_simulate_is_float32_whatever_is_allowed(name: str, allow: Callable[[], None]):
    allow()
    before, states = settings(), []
    for device in ("cuda", "cpu"):
        model, x = make(name, device)
        bc.set_precision(model, "FW8/BW8")
        train_step(model, optimizer_of(model), x)
        states.append(state_of(model))
    assert_close(*states, 1e-5)
    assert settings() == before


@pytest.mark.parametrize("allow", [set_legacy, set_medium, set_new])
@pytest.mark.parametrize("product", ["matmul", "conv"])
def test_an_error_within_leaves_the_settings_as_they_were(product, allow):
    allow()
    before = settings()

    def fail() -> None:
        with without_tf32(product):
            assert settings() != before
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert settings() == before


@pytest.mark.parametrize(
    ("name", "allow", "setting"),
    [("linear", set_medium, "cuda.matmul.allow_tf32"), ("convolutions", set_new, "cudnn")],
)
def test_tracing_a_graph_warns_of_tf32(name: str, allow: Callable[[], None], setting: str):
    for is_allowed in (False, True):
        torch._dynamo.reset()
        CUDA.fp32_precision = torch.backends.cudnn.conv.fp32_precision = "ieee"
        if is_allowed:
            allow()
        model, x = make(name, "cuda")
        bc.set_precision(model, "FW8/BW8")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.compile(model, backend="aot_eager")(x).sum().backward()
        found = [str(each.message) for each in caught if each.category is bc.BitcycleWarning]
        assert any(setting in message for message in found) is is_allowed, found


def test_a_float_product_follows_the_setting():
    x = torch.randn(64, 64, device="cuda", generator=torch.Generator("cuda").manual_seed(0))
    exact = x.double() @ x.double()
    errors = []
    for is_allowed in (False, True):
        CUDA.allow_tf32 = is_allowed
        errors.append(float((x @ x - exact).abs().max()))
    assert errors[0] < 1e-4
    assert errors[1] > 1e-3  # else the tests above show nothing
