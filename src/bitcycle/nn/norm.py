"""Quantized BatchNorm: on power-of-two grids (WAGEUBN), or with ranges for deviations (Range BN).

nn.BatchNorm1d, 2d and 3d are converted when the quantizer names a rule (`Quantizer.norm_rule`);
subclasses stay float. Without bits a converted BatchNorm is exactly the float module. The state
dict is a float BatchNorm's, and for Range BN the running range of its input: `running_var` always
holds a variance.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bitcycle.kernels.geometry import LinearGeometry
from bitcycle.nn.class_swap import swap_class
from bitcycle.nn.control import LEVELS, is_recomputing
from bitcycle.nn.layer import AUTOCAST_DTYPES, OWN_ATTRIBUTES, QuantizedLayer
from bitcycle.nn.loading import OWN_BUFFERS
from bitcycle.nn.plan import make_plan
from bitcycle.nn.product import without_autocast
from bitcycle.nn.rounding import round_error_straight_through, round_straight_through
from bitcycle.nn.settings import LayerSettings, ModelState
from bitcycle.ops.affine import value_range
from bitcycle.quantizers.base import Range, max_abs
from bitcycle.quantizers.wageubn import activation_error, fixed_point, halves
from bitcycle.registry import Registry

if TYPE_CHECKING:
    _NormBase = nn.modules.batchnorm._BatchNorm
else:
    _NormBase = object


KINDS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_STATISTICS_STEPS = 256.0  # GridNorm: mean and deviation have 8 bits more than activations
RANGE_MOMENTUM = 0.9  # RangeNorm: the weight of a new batch in the running statistics
MAX_CHUNKS = 16


class QuantizedNorm(QuantizedLayer, _NormBase):
    """Mixed in before a BatchNorm type; subclasses define `normalize`."""

    num_act_inputs: ClassVar[int] = 0
    multiplies: ClassVar[bool] = False
    rule: ClassVar[str]
    own_roles: ClassVar[tuple[str, ...]] = ()  # the roles whose bits the rule uses

    def forward(self, input: Tensor) -> Tensor:
        """(N, C, *) -> (N, C, *); without bits exactly the float module."""
        wide = input if input.dtype == torch.float64 else input.to(torch.float32)
        if not (self.grid_roles and self._takes(input)):
            if self.num_act_inputs and self.shared.is_calibrating:
                self.activation_range(wide, 0)
            return super().forward(input)
        self._check_input_dim(input)  # type: ignore[no-untyped-call]
        with without_autocast(input):
            return self.normalize(wide, self.next_control()).to(input.dtype)

    def _takes(self, input: Tensor) -> bool:
        """Whether the float module takes this dtype: its own, or half precision for float32."""
        own = next((x.dtype for x in (self.weight, self.running_mean) if x is not None), None)
        if own is None or input.dtype == own:
            return input.is_floating_point()
        return own == torch.float32 and input.dtype in AUTOCAST_DTYPES

    def normalize(self, x: Tensor, control: Tensor) -> Tensor:
        """Normalize a float32 or float64 batch; `control` holds the level counts."""
        raise NotImplementedError

    @property
    def uses_batch_statistics(self) -> bool:
        """True in training, and when no running statistics are kept."""
        return self.training or self.running_mean is None

    def count_batch(self, momentum: float) -> Tensor | None:
        """Count a batch and return its weight in the running statistics; None: leave them.

        With `momentum=None` (`torch.optim.swa_utils.update_bn` sets it) all batches weigh the same.
        """
        if not (self.training and self.track_running_stats) or is_recomputing():
            return None
        assert self.running_mean is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        if self.momentum is None:
            return self.num_batches_tracked.to(self.running_mean.dtype).reciprocal()
        return torch.full_like(self.running_mean[0], momentum)


NORMS: Registry[type[QuantizedNorm]] = Registry("normalization rule", "bitcycle.nn")


def can_convert_norm(module: nn.Module) -> bool:
    """Whether this is a plain BatchNorm, or one converted before."""
    if isinstance(module, QuantizedNorm):
        return True
    is_taken = any(hasattr(module, name) for name in (*OWN_ATTRIBUTES, *OWN_BUFFERS))
    return type(module) in KINDS and "forward" not in module.__dict__ and not is_taken


def convert_norm(
    module: nn.Module, rule: str | None, settings: LayerSettings, shared: ModelState
) -> None:
    """Convert a BatchNorm to this rule, or back to float for None; its bits are kept."""
    precision = None
    if isinstance(module, QuantizedNorm):
        precision = module.precision
        module.become_float()
    if rule is None:
        return
    device = next((b.device for b in (*module.parameters(), *module.buffers())), None)
    swap_class(module, NORMS[rule])
    assert isinstance(module, QuantizedNorm)
    module.become_quantized(settings, shared)
    if device is not None:
        module.to(device)  # `become_quantized` reads it from parameters, and there may be none
    if precision is not None:
        module.set_precision(precision)


@NORMS.register("grid")
class GridNorm(QuantizedNorm):
    """A BatchNorm whose statistics, values and parameters are on power-of-two grids (WAGEUBN)."""

    name_prefix = "Grid"
    rule = "grid"
    own_roles = ("weight", "act", "error")

    def normalize(self, x: Tensor, control: Tensor) -> Tensor:
        """Q(gamma) Q((x - Q(mean)) / Q(std)) + Q(beta)."""
        mean, std = self._statistics(x)
        shape = [1, -1] + [1] * (x.dim() - 2)
        if "act" in self.grid_roles:
            half = halves(control[LEVELS["act"]], x.dtype)
            finer = half * _STATISTICS_STEPS
            mean, std = _round(mean, finer), _round(std, finer).clamp_min(1 / finer)
            y = _round((x - mean.view(shape)) / std.view(shape), half)
        else:
            y = (x - mean.view(shape)) / std.view(shape)
        if self.affine:
            gamma: Tensor = self.weight
            beta: Tensor = self.bias
            if "weight" in self.grid_roles:
                half = halves(control[LEVELS["weight"]], x.dtype)
                gamma, beta = _round(gamma, half), _round(beta, half)
            y = y * gamma.view(shape) + beta.view(shape)
        if "error" in self.grid_roles:
            y = _RoundError.apply(y, control[LEVELS["error"]])  # type: ignore[no-untyped-call]
        return y

    def _statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and sqrt(var + eps) of each channel: the batch's, or the running ones."""
        if not self.uses_batch_statistics:
            assert self.running_mean is not None
            assert self.running_var is not None
            return self.running_mean, (self.running_var + self.eps).sqrt()
        F._verify_batch_size(list(x.shape))  # type: ignore[attr-defined]
        dims = [d for d in range(x.dim()) if d != 1]
        var, mean = torch.var_mean(x, dims, correction=0)
        n = x.numel() // x.shape[1]
        self._update_statistics(mean.detach(), var.detach() * (n / (n - 1)))
        return mean, (var + self.eps).sqrt()

    def _update_statistics(self, mean: Tensor, var: Tensor) -> None:
        if (weight := self.count_batch(self.momentum or 0.0)) is None:
            return
        assert self.running_mean is not None
        assert self.running_var is not None
        dtype = self.running_mean.dtype
        self.running_mean.lerp_(mean.to(dtype), weight)
        self.running_var.lerp_(var.to(dtype), weight)


def _round(x: Tensor, half: Tensor) -> Tensor:
    result: Tensor = _Round.apply(x, half)  # type: ignore[no-untyped-call]
    return result


class _Round(torch.autograd.Function):
    """Q(x, k), with a straight-through gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, half: Tensor) -> Tensor:
        return fixed_point(x, half)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return g, None


class _RoundError(torch.autograd.Function):
    """The identity, whose gradient (the error) is rounded to its grid."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, levels: Tensor) -> Tensor:
        ctx.levels = levels
        return y.clone()

    @staticmethod
    def backward(ctx: Any, e: Tensor) -> tuple[Tensor, None]:
        return activation_error(e, ctx.levels, max_abs(*value_range(e))), None


@NORMS.register("range")
class RangeNorm(QuantizedNorm):
    """A BatchNorm whose deviation is estimated from ranges (Range BN, Banner et al.).

        y = Q(gamma) (Q(x) - mean) Q(1 / (scale + eps)) + Q(beta)

    Q(x) and Q(1 / ...) have the bits of act, Q(gamma) and Q(beta) those of weight: grids of the
    quantizer, the input's with a running range for evaluation, the others over all channels. The
    error is rounded as grad_input reads it. Rounding is passed straight through.
    """

    name_prefix = "Range"
    rule = "range"
    num_act_inputs = 1
    own_roles = ("weight", "act", "error")

    def normalize(self, x: Tensor, control: Tensor) -> Tensor:
        """Round the input, normalize by ranges; the statistics are those of the rounded input."""
        plan = make_plan(
            self.settings.quantizer, LinearGeometry(), self.settings.kernel, kinds=self.kinds
        )

        def rounded(role: str, x: Tensor, within: Range | None = None) -> Tensor:
            if role not in self.grid_roles:
                return x
            within = within or plan.quantizer.range_of(role, x.detach())
            return round_straight_through(plan, x, control, within, role, self.recorder)

        x = rounded("act", x, self.activation_range(x, 0))
        mean, scale = self._statistics(x)
        shape = [1, -1] + [1] * (x.dim() - 2)
        factor = rounded("act", 1 / (scale + self.eps))
        y = (x - mean.view(shape)) * factor.view(shape)
        if self.affine:
            gamma, beta = rounded("weight", self.weight), rounded("weight", self.bias)
            y = y * gamma.view(shape) + beta.view(shape)
        if "error" in self.grid_roles:
            y = round_error_straight_through(plan, y, control, self.health, self.recorder)
        return y

    def _statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and estimated deviation of each channel: the batch's, or the running ones."""
        if not self.uses_batch_statistics:
            assert self.running_mean is not None
            assert self.running_var is not None
            return self.running_mean, self.running_var.sqrt()
        F._verify_batch_size(list(x.shape))  # type: ignore[attr-defined]
        mean, scale = x.mean([d for d in range(x.dim()) if d != 1]), range_scale(x)
        self._update_statistics(mean.detach(), scale.detach())
        return mean, scale

    def _update_statistics(self, mean: Tensor, scale: Tensor) -> None:
        if (weight := self.count_batch(RANGE_MOMENTUM)) is None:
            return
        assert self.running_mean is not None
        assert self.running_var is not None
        dtype = self.running_mean.dtype
        self.running_mean.lerp_(mean.to(dtype), weight)
        self.running_var.copy_(self.running_var.sqrt().lerp(scale.to(dtype), weight).square())


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
