"""BatchNorms that normalize by a quantizer's rule: class swap, bits and state, for any rule.

Only for nn.BatchNorm1d/2d/3d themselves, and only when the quantizer names a rule
(`Quantizer.norm_rule`). Without bits they are exactly the float module. The state dict is a float
BatchNorm's: `running_var` always holds a variance.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from bitcycle.nn.base import OWN_ATTRIBUTES, OWN_BUFFERS, QuantizedLayer
from bitcycle.nn.ranges import is_recomputing
from bitcycle.nn.settings import LayerSettings, ModelState
from bitcycle.registry import Registry

if TYPE_CHECKING:  # the mixin below is only ever combined with these
    _NormBase = nn.modules.batchnorm._BatchNorm
else:
    _NormBase = object

KINDS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class QuantizedNorm(QuantizedLayer, _NormBase):
    """Mixed in before a BatchNorm type; a rule says how a batch is normalized."""

    num_act_inputs: ClassVar[int] = 0
    rule: ClassVar[str]
    rule_roles: ClassVar[tuple[str, ...]] = ()  # whose bits the rule goes by

    def become_quantized(self, settings: LayerSettings, shared: ModelState) -> None:
        """As every layer, but no range is kept, so none is saved."""
        super().become_quantized(settings, shared)
        self._non_persistent_buffers_set.add("act_range")

    def become_float(self) -> None:
        """Be the float BatchNorm again; its statistics stay."""
        self._non_persistent_buffers_set.discard("act_range")
        super().become_float()

    def forward(self, input: Tensor) -> Tensor:
        """(N, C, *) -> (N, C, *); without bits exactly the float module."""
        if not self.quantized_roles:
            return super().forward(input)
        self._check_input_dim(input)  # type: ignore[no-untyped-call]
        wide = input if input.dtype == torch.float64 else input.to(torch.float32)
        with torch.autocast(device_type=input.device.type, enabled=False):
            return self.normalize(wide, self._tick()).to(input.dtype)

    def normalize(self, x: Tensor, control: Tensor) -> Tensor:
        """The rule, for a float32 or float64 batch; `control` holds the level counts."""
        raise NotImplementedError

    @property
    def takes_batch(self) -> bool:
        """Whether statistics are the batch's: in training, or when no running ones are kept."""
        return self.training or self.running_mean is None

    def count_batch(self, share: float) -> Tensor | None:
        """What share of the running statistics this batch is to be; None: they stay.

        With `momentum=None` (`torch.optim.swa_utils.update_bn` sets it) all batches weigh the same.
        """
        if not (self.training and self.track_running_stats) or is_recomputing():
            return None
        assert self.running_mean is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        if self.momentum is None:
            return self.num_batches_tracked.to(self.running_mean.dtype).reciprocal()
        return torch.full_like(self.running_mean[0], share)

    def __reduce_ex__(self, protocol: Any) -> Any:
        _, _, state = super().__reduce_ex__(protocol)
        return _rebuild, (self.rule, self.float_type), state


NORMS: Registry[type[QuantizedNorm]] = Registry("normalization rule", "bitcycle.nn")
_types: dict[tuple[str, type[nn.Module]], type[QuantizedNorm]] = {}


def can_normalize(module: nn.Module) -> bool:
    """Whether a rule applies to this module: a plain BatchNorm, or one converted before."""
    if isinstance(module, QuantizedNorm):
        return True
    taken = any(hasattr(module, name) for name in (*OWN_ATTRIBUTES, *OWN_BUFFERS))
    return type(module) in KINDS and "forward" not in module.__dict__ and not taken


def convert_norm(
    module: nn.Module, rule: str | None, settings: LayerSettings, shared: ModelState
) -> None:
    """Make a BatchNorm follow this rule, or the float one again for None; bits are kept."""
    precision = None
    if isinstance(module, QuantizedNorm):
        precision = module.precision
        module.become_float()
    if rule is None:
        return
    where = next((b.device for b in (*module.parameters(), *module.buffers())), None)
    module.__class__ = _converted_type(rule, type(module))
    assert isinstance(module, QuantizedNorm)
    module.become_quantized(settings, shared)
    if where is not None:
        module.to(where)  # without parameters its device was not known
    if precision is not None:
        module.set_precision(precision)


def _converted_type(rule: str, kind: type[nn.Module]) -> type[QuantizedNorm]:
    if (rule, kind) not in _types:
        mixin = NORMS[rule]
        name = f"{mixin.__name__.removesuffix('Norm')}{kind.__name__}"
        contents = {"float_type": kind, "rule": rule, "__doc__": mixin.__doc__}
        _types[rule, kind] = type(name, (mixin, kind), contents)
    return _types[rule, kind]


def _rebuild(rule: str, kind: type[nn.Module]) -> QuantizedNorm:
    """Unpickles: the class is made on demand."""
    cls = _converted_type(rule, kind)
    return cls.__new__(cls)
