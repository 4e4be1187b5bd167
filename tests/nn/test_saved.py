"""What waits for the backward pass: its bytes, and that it comes back as it was."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import bitcycle as bc
from bitcycle.nn.saved import NUM_TENSORS, restore, to_save
from bitcycle.quantizers import SBM
from bitcycle.quantizers.base import Quantized

LAYOUTS = {
    "contiguous": lambda x: x,
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "turned": lambda x: x.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0),
}


def _codes(top: int, carrier: torch.dtype, layout: str = "contiguous") -> Quantized:
    x = LAYOUTS[layout](torch.randn(2, 3, 5, 7, generator=torch.Generator().manual_seed(0)))
    sbm = SBM()
    bits = torch.tensor(2 ** min(top, 8) - 1)
    return replace(sbm.encode("act", x, bits, sbm.range_of("act", x), carrier=carrier), top=top)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("carrier", [torch.uint8, torch.int8])
@pytest.mark.parametrize("top", [2, 4, 7, 8])
def test_an_operand_comes_back_as_it_was(top: int, carrier: torch.dtype, layout: str) -> None:
    q = _codes(top, carrier, layout)
    tensors, form = to_save(q)
    assert len(tensors) == NUM_TENSORS
    back = restore(tensors, form)
    assert torch.equal(back.codes, q.codes)
    assert back.codes.dtype == q.codes.dtype
    assert back.codes.stride() == q.codes.stride()
    assert back.top == q.top
    assert back.values is None
    for ours, theirs in ((back.scale, q.scale), (back.offset, q.offset), (back.half, q.half)):
        assert ours is theirs


@pytest.mark.parametrize(("top", "expected"), [(2, 105), (4, 105), (5, 210), (8, 210)])
def test_codes_of_up_to_4_bits_share_a_byte(top: int, expected: int) -> None:
    tensors, _ = to_save(_codes(top, torch.uint8))  # 210 elements
    codes = tensors[1]
    assert codes.dtype == torch.uint8
    assert codes.numel() == expected


def test_values_and_nothing_are_saved_as_they_are() -> None:
    x = torch.randn(3)
    back = restore(*to_save(Quantized(values=x, top=4)))
    assert back.values is x
    assert back.codes is None
    nothing = restore(*to_save(Quantized()))
    assert nothing.values is nothing.codes is nothing.scale is None


def _saved_bytes(layer: nn.Module, x: Tensor) -> int:
    """Bytes that the forward pass keeps, parameters and the layer's own buffers aside."""
    own = {t.untyped_storage().data_ptr() for t in (*layer.parameters(), *layer.buffers())}
    seen: dict[int, int] = {}

    def pack(t: Tensor) -> Tensor:
        storage = t.untyped_storage()
        if storage.data_ptr() not in own:
            seen[storage.data_ptr()] = storage.nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        output = layer(x)
    total = sum(seen.values())
    del output
    return total


SMALL = 64  # bytes for scales, offsets and halves of one activation


@pytest.mark.parametrize("kernel", ["dequantize", "bf16", "int8"])
@pytest.mark.parametrize(
    ("precision", "act", "weight"),
    [("w8a8e8", 1.0, 1.0), ("w4a4e8", 0.5, 0.5), ("w8a3e8", 0.5, 1.0), ("w8e8", 4.0, 1.0)],
)
def test_a_layer_saves_one_byte_per_code_or_half_a_byte(
    kernel: str, precision: str, act: float, weight: float
) -> None:
    layer = bc.quantize_model(nn.Conv2d(16, 8, 3, bias=False), kernel=kernel)
    bc.set_precision(layer, precision)
    x = torch.randn(4, 16, 12, 12, requires_grad=True)
    expected = act * x.numel() + weight * layer.weight.numel()
    overhead = 4 * SMALL + 2 * 4 * 8  # scales and offsets of 8 channels
    assert expected <= _saved_bytes(layer, x) <= expected + overhead


def test_simulate_saves_four_bytes_per_value() -> None:
    layer = bc.quantize_model(nn.Conv2d(16, 8, 3, bias=False), kernel="simulate")
    bc.set_precision(layer, "w4a4e8")
    x = torch.randn(4, 16, 12, 12, requires_grad=True)
    expected = 4 * (x.numel() + layer.weight.numel())
    assert expected <= _saved_bytes(layer, x) <= expected + 4 * SMALL + 2 * 4 * 8


@pytest.mark.parametrize("kernel", ["simulate", "dequantize", "bf16", "int8"])
def test_only_what_a_gradient_needs_is_saved(kernel: str) -> None:
    layer = bc.quantize_model(nn.Linear(64, 8, bias=False), kernel=kernel)
    bc.set_precision(layer, "w8a8e8")
    x = torch.randn(100, 64)
    size = 4 if kernel == "simulate" else 1
    # no gradient of the input: no weight is kept
    assert _saved_bytes(layer, x) <= size * x.numel() + SMALL
    layer.weight.requires_grad_(False)
    # and none of the weight: no input is
    assert _saved_bytes(layer, x.requires_grad_()) <= size * layer.weight.numel() + SMALL + 8 * 8
    with torch.no_grad():
        assert _saved_bytes(layer, x) == 0


def test_a_second_grid_of_the_weight_is_what_grad_input_keeps() -> None:
    rules = SBM(grad_input_weight="per_input_channel")
    layer = bc.quantize_model(nn.Linear(64, 8, bias=False), rules, kernel="int8")
    bc.set_precision(layer, "w8a8e8")
    x = torch.randn(100, 64, requires_grad=True)
    expected = x.numel() + layer.weight.numel() + 2 * 4 * 64  # a scale and an offset per column
    assert expected <= _saved_bytes(layer, x) <= expected + 2 * SMALL
