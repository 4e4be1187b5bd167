"""Running a model once, with gradients, and leaving it and the world exactly as they were."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import nn


@contextmanager
def preserved(model: nn.Module) -> Iterator[None]:
    """Gradients on; random states and buffers as they were afterwards, whatever the model does."""
    buffers = [
        (module, name, buffer, None if buffer.is_meta else buffer.detach().clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    devices = {p.device for p in model.parameters() if p.device.type == "cuda"}
    has_fast_path = torch.backends.mha.get_fastpath_enabled()
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(list(devices)))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        torch.backends.mha.set_fastpath_enabled(False)  # it skips the modules it runs
        try:
            yield
        finally:
            torch.backends.mha.set_fastpath_enabled(has_fast_path)
            for module, name, buffer, values in buffers:
                module._buffers[name] = buffer
                if values is not None and not torch.equal(buffer, values):
                    with torch.no_grad():
                        buffer.copy_(values)
