"""BatchNorms that normalize by a quantizer's rule: class swap, bits and state, for any rule.

Only for nn.BatchNorm1d/2d/3d themselves, and only when the quantizer names a rule
(`Quantizer.norm_rule`). Without bits they are exactly the float module. The state dict is a float
BatchNorm's: `running_var` always holds a variance.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bitcycle.nn.layer import (
    OWN_ATTRIBUTES,
    OWN_BUFFERS,
    LayerSettings,
    ModelState,
    QuantizedLayer,
    is_recomputing,
)
from bitcycle.nn.product import LEVELS
from bitcycle.ops.affine import value_range
from bitcycle.quantizers.base import largest
from bitcycle.quantizers.wageubn import activation_error, fixed_point, halves
from bitcycle.registry import Registry

if TYPE_CHECKING:
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


_FINER = 256.0  # statistics have 8 bits more


class _Rounded(torch.autograd.Function):
    """Q(x, k), with the gradient of x itself."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, half: Tensor) -> Tensor:
        return fixed_point(x, half)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return g, None


class _RoundedError(torch.autograd.Function):
    """y itself; its error on a grid."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, levels: Tensor) -> Tensor:
        ctx.levels = levels
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, e: Tensor) -> tuple[Tensor, None]:
        return activation_error(e, ctx.levels, largest(*value_range(e))), None


def _rounded(x: Tensor, half: Tensor) -> Tensor:
    result: Tensor = _Rounded.apply(x, half)  # type: ignore[no-untyped-call]
    return result


@NORMS.register("grid")
class GridNorm(QuantizedNorm):
    """A BatchNorm whose statistics, values and parameters are on power-of-two grids."""

    rule_roles = ("weight", "act", "error")

    def normalize(self, x: Tensor, control: Tensor) -> Tensor:
        """Q(gamma) Q((x - Q(mean)) / Q(std)) + Q(beta)."""
        mean, std = self._statistics(x)
        shape = [1, -1] + [1] * (x.dim() - 2)
        if "act" in self.quantized_roles:
            half = halves(control[LEVELS["act"]], x.dtype)
            finer = half * _FINER
            mean, std = _rounded(mean, finer), _rounded(std, finer).clamp_min(1 / finer)
            y = _rounded((x - mean.view(shape)) / std.view(shape), half)
        else:
            y = (x - mean.view(shape)) / std.view(shape)
        if self.affine:
            gamma: Tensor = self.weight
            beta: Tensor = self.bias
            if "weight" in self.quantized_roles:
                half = halves(control[LEVELS["weight"]], x.dtype)
                gamma, beta = _rounded(gamma, half), _rounded(beta, half)
            y = y * gamma.view(shape) + beta.view(shape)
        if "error" in self.quantized_roles:
            y = _RoundedError.apply(y, control[LEVELS["error"]])  # type: ignore[no-untyped-call]
        return y

    def _statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and sqrt(var + eps) of each channel: the batch's, or the running ones."""
        if not self.takes_batch:
            assert self.running_mean is not None
            assert self.running_var is not None
            return self.running_mean, (self.running_var + self.eps).sqrt()
        F._verify_batch_size(list(x.shape))  # type: ignore[attr-defined]
        dims = [d for d in range(x.dim()) if d != 1]
        var, mean = torch.var_mean(x, dims, correction=0)
        n = x.numel() // x.shape[1]
        self._run(mean.detach(), var.detach() * (n / (n - 1)))
        return mean, (var + self.eps).sqrt()

    def _run(self, mean: Tensor, var: Tensor) -> None:
        if (share := self.count_batch(self.momentum or 0.0)) is None:
            return
        assert self.running_mean is not None
        assert self.running_var is not None
        dtype = self.running_mean.dtype
        self.running_mean.lerp_(mean.to(dtype), share)
        self.running_var.lerp_(var.to(dtype), share)


MAX_CHUNKS = 16
SHARE = 0.9  # of the new batch in the running statistics


def range_factor(m: int) -> float:
    """k(m): a Gaussian's deviation over the expected range of m samples, as published.

    >>> [round(range_factor(m), 5) for m in (8192, 2048, 512)]
    [0.12725, 0.13834, 0.15294]
    """
    return 0.5 * 0.35 * (1 + math.sqrt(math.pi * math.log(4))) / math.sqrt(2 * math.log(m))


def num_chunks(n: int) -> int:
    """The most chunks, up to 16, that divide n and hold at least two values each.

    >>> [num_chunks(n) for n in (512, 24, 17, 16)]
    [16, 12, 1, 8]
    """
    return next(c for c in range(min(MAX_CHUNKS, n // 2), 0, -1) if n % c == 0)


def range_scale(x: Tensor) -> Tensor:
    """The estimated deviation of each channel of (N, C, *); at least two values per channel."""
    channels = x.transpose(0, 1).flatten(1).contiguous()  # (C, n)
    num_channels, n = channels.shape
    chunks = channels.view(num_channels, num_chunks(n), -1)  # (C, c, m)
    spread = chunks.amax(2).mean(1) - chunks.amin(2).mean(1)
    return spread * range_factor(chunks.shape[2])


@NORMS.register("range")
class RangeNorm(QuantizedNorm):
    """A BatchNorm whose deviation is estimated from ranges (Range BN)."""

    def normalize(self, x: Tensor, control: Tensor) -> Tensor:
        """gamma * (x - mean) / (scale + eps) + beta."""
        if self.takes_batch:
            F._verify_batch_size(list(x.shape))  # type: ignore[attr-defined]
            mean, scale = x.mean([d for d in range(x.dim()) if d != 1]), range_scale(x)
            self._run(mean.detach(), scale.detach())
        else:
            assert self.running_mean is not None
            assert self.running_var is not None
            mean, scale = self.running_mean, self.running_var.sqrt()
        shape = [1, -1] + [1] * (x.dim() - 2)
        y = (x - mean.view(shape)) / (scale + self.eps).view(shape)
        if self.affine:
            y = y * self.weight.view(shape) + self.bias.view(shape)
        return y

    def _run(self, mean: Tensor, scale: Tensor) -> None:
        if (share := self.count_batch(SHARE)) is None:
            return
        assert self.running_mean is not None
        assert self.running_var is not None
        dtype = self.running_mean.dtype
        self.running_mean.lerp_(mean.to(dtype), share)
        self.running_var.copy_(self.running_var.sqrt().lerp(scale.to(dtype), share).square())
