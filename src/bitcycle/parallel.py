"""A converted model in several processes: what DDP must leave alone, and what FSDP2 has sharded."""

from __future__ import annotations

import sys

from torch import Tensor, nn

from bitcycle.nn.layer import QuantizedLayer
from bitcycle.nn.loading import OWN_BUFFERS
from bitcycle.patterns import unwrap
from bitcycle.tables import THE_MODEL


def refuse_sharded(model: nn.Module) -> None:
    """Raise a ValueError for a model that fully_shard has changed: conversion swaps classes too."""
    for name, parameter in model.named_parameters():
        if is_sharded(parameter):
            raise ValueError(
                f"parameter {name!r} is sharded already (fully_shard, accelerator.prepare): "
                "convert first, then shard"
            )
    for name, module in model.named_modules():
        if is_fsdp(module):  # between forward and backward its weights are not sharded
            raise ValueError(
                f"module {name or THE_MODEL!r} was passed to fully_shard: convert first, then shard"
            )


def is_sharded(parameter: Tensor | None) -> bool:
    """Whether this is a DTensor (FSDP2, tensor parallelism)."""
    distributed = sys.modules.get("torch.distributed.tensor")  # imported wherever a DTensor exists
    return distributed is not None and isinstance(parameter, distributed.DTensor)


def is_fsdp(module: nn.Module) -> bool:
    """Whether fully_shard (FSDP2) has replaced the module's class."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and isinstance(module, getattr(fsdp, "FSDPModule", ()))


def own_buffers(model: nn.Module) -> list[tuple[str, bool]]:
    """(key, is saved) of every buffer that conversion adds, as in model.named_buffers()."""
    return [
        (f"{name}.{buffer}" if name else buffer, buffer == "act_range")
        for name, module in model.named_modules(remove_duplicate=False)
        if isinstance(module, QuantizedLayer)
        for buffer in OWN_BUFFERS
    ]


def ignore_in_ddp(model: nn.Module) -> None:
    """Exclude bits and clocks from DDP's buffer broadcast: every rank writes its own."""
    model = unwrap(model)
    ignored = list(getattr(model, "_ddp_params_and_buffers_to_ignore", []))
    own = [key for key, is_saved in own_buffers(model) if not is_saved]
    for key in (*own, *(f"_orig_mod.{key}" for key in own)):  # also as DDP(torch.compile(model))
        if key not in ignored:
            ignored.append(key)
    model._ddp_params_and_buffers_to_ignore = ignored  # type: ignore[assignment]
