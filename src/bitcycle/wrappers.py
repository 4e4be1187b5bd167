"""What DDP, FSDP2 and torch's fast paths must be told of a converted model."""

from __future__ import annotations

import sys

from torch import Tensor, nn

from bitcycle.nn.base import OWN_BUFFERS, QuantizedLayer
from bitcycle.patterns import unwrap


def refuse_sharded(model: nn.Module) -> None:
    """Conversion swaps classes, and fully_shard has put its own in their place."""
    for name, parameter in model.named_parameters():
        if is_sharded(parameter):
            raise ValueError(
                f"parameter {name!r} is sharded already (fully_shard): convert first, then shard. "
                "FSDP2 owns the classes of these modules and a part of each weight by now; call "
                "quantize_model on the plain model, before fully_shard or accelerator.prepare"
            )
    for name, module in model.named_modules():
        if is_fsdp(module):  # its weights are whole for the moment: between forward and backward
            raise ValueError(
                f"module {name or '(the model itself)'!r} was given to fully_shard: convert first, "
                "then shard"
            )


def is_sharded(parameter: Tensor | None) -> bool:
    distributed = sys.modules.get("torch.distributed.tensor")  # who has a DTensor imported this
    return distributed is not None and isinstance(parameter, distributed.DTensor)


def is_fsdp(module: nn.Module) -> bool:
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and isinstance(module, getattr(fsdp, "FSDPModule", ()))


def disable_fast_paths(model: nn.Module) -> None:
    """nn.TransformerEncoderLayer in evaluation reads the weights of its Linears and skips them."""
    for module in model.modules():
        if not any(isinstance(child, QuantizedLayer) for child in module.modules()):
            continue
        if isinstance(module, nn.TransformerEncoderLayer) and module.activation_relu_or_gelu:
            module._float_fast_path = module.activation_relu_or_gelu  # type: ignore[assignment]
            module.activation_relu_or_gelu = 0
        if isinstance(module, nn.TransformerEncoder) and getattr(
            module, "use_nested_tensor", False
        ):
            module._float_fast_path = True  # type: ignore[assignment]
            module.use_nested_tensor = False


def enable_fast_paths(model: nn.Module) -> None:
    for module in model.modules():
        saved = module.__dict__.pop("_float_fast_path", None)
        if saved is None:
            continue
        if isinstance(module, nn.TransformerEncoderLayer):
            module.activation_relu_or_gelu = saved
        elif isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = saved


def own_buffers(model: nn.Module) -> list[tuple[str, bool]]:
    """(key, is saved) of every buffer that conversion added, as in model.named_buffers()."""
    return [
        (f"{name}.{buffer}" if name else buffer, buffer == "act_range")
        for name, module in model.named_modules(remove_duplicate=False)
        if isinstance(module, QuantizedLayer)
        for buffer in OWN_BUFFERS
    ]


def ignore_in_ddp(model: nn.Module) -> None:
    """Keep bits and clocks out of DDP's buffer broadcast: every rank writes its own."""
    model = unwrap(model)
    ignored = list(getattr(model, "_ddp_params_and_buffers_to_ignore", []))
    own = [key for key, is_saved in own_buffers(model) if not is_saved]
    for key in (*own, *(f"_orig_mod.{key}" for key in own)):  # also as DDP(torch.compile(model))
        if key not in ignored:
            ignored.append(key)
    model._ddp_params_and_buffers_to_ignore = ignored  # type: ignore[assignment]
