"""The weights of a frozen model on their grids, by parameter: codes, and the values they stand for.

A parameter may be multiplied in parts, as the packed projections of nn.MultiheadAttention are; the
parts are rows, and so are their grids.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bitcycle.convert import float_state_dict
from bitcycle.export.freeze import Frozen, Product
from bitcycle.export.grids import Grid


@dataclass(frozen=True, kw_only=True)
class WeightOnGrid:
    """codes: whole numbers in the shape against which the grid broadcasts."""

    grid: Grid
    codes: Tensor
    shape: torch.Size  # of the parameter

    def values(self) -> Tensor:
        """What the codes stand for, in the parameter's shape."""
        return self.grid.decode(self.codes).view(self.shape)


def weights_on_grids(frozen: Frozen) -> dict[str, WeightOnGrid]:
    """Every parameter that is multiplied on a grid, by its name in the model."""
    found = {}
    for name, parameter in frozen.model.named_parameters():
        parts = [product for product in frozen.products if _is_part(product, parameter)]
        if not parts:
            continue
        if num_owners(frozen.model, parameter) > 1:
            raise ValueError(
                f"weight {name!r} is shared by modules that may not read it on one grid; "
                "export to onnx, which keeps both forms, or at full precision"
            )
        found[name] = _whole(name, parameter, parts)
    return found


def state_on_grids(frozen: Frozen) -> dict[str, Tensor]:
    """A float model's state whose multiplied weights are already on their grids."""
    state = {name: value.detach().cpu() for name, value in float_state_dict(frozen.model).items()}
    for name, weight in weights_on_grids(frozen).items():
        state[name] = weight.values().detach().cpu()
    return state


def num_owners(model: nn.Module, parameter: Tensor) -> int:
    """How many modules hold this very parameter."""
    return sum(
        any(other is parameter for other in module._parameters.values())
        for module in model.modules()
    )


def _is_part(product: Product, parameter: Tensor) -> bool:
    if product.weight is None or product.second is None:
        return False
    return _storage(product.weight) == _storage(parameter)


def _storage(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()


def _whole(name: str, parameter: Tensor, parts: list[Product]) -> WeightOnGrid:
    """The parts side by side, in the order in which they lie in the parameter."""
    grids, codes = [], []
    for part in sorted(parts, key=_place):
        assert part.weight is not None
        assert part.second is not None
        if not part.weight.is_contiguous():
            raise ValueError(f"weight {name!r} is read transposed, which is exported to onnx only")
        grids.append(part.second)
        codes.append(part.codes)
    if sum(each.numel() for each in codes) != parameter.numel():
        raise ValueError(f"weight {name!r} is multiplied only in part: export to onnx")
    grid = grids[0]
    if len(grids) > 1:
        grid = Grid(
            bits=grid.bits,
            scale=torch.cat([each.scale for each in grids]),
            offset=torch.cat([each.offset for each in grids]),
            lowest=grid.lowest,
        )
    return WeightOnGrid(grid=grid, codes=torch.cat(codes), shape=parameter.shape)


def _place(product: Product) -> int:
    assert product.weight is not None
    return int(product.weight.storage_offset())
