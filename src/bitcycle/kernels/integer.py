"""Products of 8-bit integers with exact 32-bit sums: oneDNN on a CPU, `torch._int_mm` elsewhere.

A CPU without dot-product instructions (VNNI) adds pairs of products in 16 bits, which saturate
when both operands use all 8 bits. `exact_bits` finds out by trying; nothing here is ever called
beyond it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from bitcycle.kernels.geometry import ConvGeometry
from bitcycle.kernels.operand import Operand
from bitcycle.ops.codes import shift_codes
from bitcycle.quantizers.base import Quantized

MAX_REDUCTION = 1 << 16  # 2^16 products of 8-bit codes fit into 32 bits, 2^17 do not
_CUDA_MULTIPLE, _CUDA_MIN_ROWS = 8, 17  # what torch._int_mm asks of shapes there


_known_bits: dict[str, int] = {}


def exact_bits(device_type: str) -> int:
    """The most bits both operands may have together for exact products; 0 if there are none."""
    if torch.compiler.is_compiling():
        return _known_bits.get(device_type, 0)  # a graph cannot try; conversion has
    if device_type not in _known_bits:
        _known_bits[device_type] = _try_bits(device_type)
    return _known_bits[device_type]


def _try_bits(device_type: str) -> int:
    if device_type == "cuda":
        return 16  # not yet run on a GPU; torch._int_mm sums in 32 bits there
    if device_type != "cpu":
        return 0
    for bits, low in ((16, -128), (15, -64)):
        # nothing here may follow the caller's default device, default dtype or autocast
        x = torch.full((4, 64), 255, dtype=torch.uint8, device="cpu")
        w = torch.full((4, 64), low, dtype=torch.int8, device="cpu")
        w[1] = -low - 1
        ones = torch.ones(4, dtype=torch.float32, device="cpu")
        try:
            product = _onednn_gemm(x, w, ones, None)
        except (RuntimeError, AttributeError):  # no oneDNN in this build of torch
            return 0
        exact = (x.to(torch.int64).unsqueeze(1) * w.to(torch.int64)).sum(-1)
        if torch.equal(product.to(torch.int64), exact):
            return bits
    return 0


class IntegerArithmetic:
    """uint8 x int8 -> int32 -> float32."""

    def first(self, q: Quantized) -> Operand:
        """As uint8: codes 0..2^b - 1."""
        return _carried(q, torch.uint8)

    def second(self, q: Quantized) -> Operand:
        """As int8: codes -2^(b-1) .. 2^(b-1) - 1."""
        return _carried(q, torch.int8)

    def gemm(self, x: Operand, w: Operand, scale: Tensor, bias: Tensor | None) -> Tensor:
        """scale[n] * sum_k X[m, k] W[n, k] + bias[n]; reductions over 2^16 are split."""
        return integer_gemm(x.numbers, w.numbers, scale, bias)

    def conv(self, x: Operand, w: Operand, geometry: ConvGeometry, scale: Tensor) -> Tensor:
        """scale[n] * the convolution of X with W."""
        return integer_conv(geometry.pad(x.numbers), w.numbers, geometry, scale)

    def conv_weight(
        self, e: Operand, a: Operand, geometry: ConvGeometry, w_shape: torch.Size
    ) -> Tensor:
        """sum over batch and space of E[n] A[c at tap k], by unrolling A (im2col), per group."""
        groups, kernel = geometry.groups, w_shape[2:]
        num_taps, channels = kernel.numel(), w_shape[1]
        taps = geometry.windows(a.numbers, kernel)  # (*k, Cin, N, *out)
        taps = taps.reshape(num_taps, groups, channels, -1)
        error = e.numbers.transpose(0, 1).reshape(groups, w_shape[0] // groups, -1)
        parts = []
        for group in range(groups):
            x = taps[:, group].reshape(num_taps * channels, -1)
            w = error[group].contiguous()  # (Cout / G, tokens)
            parts.append(integer_gemm(x, w, w.new_ones(w.shape[0], dtype=torch.float32), None))
        total = torch.cat(parts, dim=1)  # (k * Cin / G, Cout)
        return total.t().reshape(w_shape[0], *kernel, channels).movedim(-1, 1)


def _carried(q: Quantized, carrier: torch.dtype) -> Operand:
    assert q.codes is not None
    assert q.scale is not None
    assert q.offset is not None
    if q.codes.dtype == carrier:
        return Operand(q.codes, q.scale, q.offset, q.top)
    assert q.half is not None
    shift = q.half * q.scale
    offset = q.offset - shift if carrier == torch.uint8 else q.offset + shift
    return Operand(shift_codes(q.codes, q.half), q.scale, offset, q.top)


def integer_gemm(x: Tensor, w: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """uint8 (M, K) x int8 (N, K) -> float32 (M, N): scale[n] * sum_k x w + bias[n].

    >>> x = torch.tensor([[1, 255]], dtype=torch.uint8)
    >>> w = torch.tensor([[1, -2], [0, 1]], dtype=torch.int8)
    >>> integer_gemm(x, w, torch.ones(2), None)
    tensor([[-509.,  255.]])
    """
    if torch.compiler.is_compiling():
        result: Tensor = _gemm_op(x, w, scale, bias)
        return result
    length = x.shape[1]
    multiply = _onednn_gemm if x.device.type == "cpu" else _int_mm_gemm
    if length <= MAX_REDUCTION:
        return multiply(x, w.contiguous(), scale, bias)
    total = multiply(x[:, :MAX_REDUCTION], w[:, :MAX_REDUCTION].contiguous(), scale, bias)
    for start in range(MAX_REDUCTION, length, MAX_REDUCTION):
        part = slice(start, start + MAX_REDUCTION)
        total += multiply(x[:, part], w[:, part].contiguous(), scale, None)
    return total


def _onednn_gemm(x: Tensor, w: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """`w` must be contiguous: strides are ignored there."""
    return multiply_packed(x, pack_weight(w, x.shape), scale, bias)


def pack_weight(w: Tensor, x_shape: Sequence[int]) -> Tensor:
    """An int8 (N, K) as oneDNN wants it for inputs of about this shape; `w` must be contiguous."""
    packed: Tensor = torch.ops.onednn.qlinear_prepack(w, list(x_shape))
    return packed


def multiply_packed(x: Tensor, packed: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """`integer_gemm` with a packed weight, on a CPU."""
    zero = torch.zeros(scale.shape[0], dtype=torch.int64)
    result: Tensor = torch.ops.onednn.qlinear_pointwise(
        x, 1.0, 0, packed, scale.contiguous(), zero, bias, 1.0, 0, torch.float32, "none", [], ""
    )
    return result


def _int_mm_gemm(x: Tensor, w: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """int8 x int8: the first operand is moved down by 128, which is put back by the sums of w."""
    centred = shift_codes(x.contiguous(), x.new_tensor(128))
    rows, length, columns = centred.shape[0], centred.shape[1], w.shape[0]
    pad_rows = max(0, _CUDA_MIN_ROWS - rows)
    pad_length, pad_columns = -length % _CUDA_MULTIPLE, -columns % _CUDA_MULTIPLE
    # zeros to the sizes that every device takes; a fresh copy also has no odd strides, which
    # torch._int_mm reads wrongly for one row or one column
    left = F.pad(centred, (0, pad_length, 0, pad_rows)).clone()
    right = F.pad(w, (0, pad_length, 0, pad_columns)).t()
    total = torch._int_mm(left, right)[:rows, :columns]
    total = total + 128 * w.sum(1, dtype=torch.int32)
    result = total * scale
    return result if bias is None else result + bias


def integer_conv(x: Tensor, w: Tensor, geometry: ConvGeometry, scale: Tensor) -> Tensor:
    """uint8 (N, Cin, *space) x int8 weight -> float32, channels last: scale[n] * the sums."""
    if torch.compiler.is_compiling():
        traced: Tensor = _conv_op(
            x, w, scale, geometry.stride, geometry.padding, geometry.dilation, geometry.groups
        )
        return traced
    x = x.contiguous(memory_format=_channels_last(x.dim()))
    stride, padding, dilation = (
        list(v) for v in (geometry.stride, geometry.padding, geometry.dilation)
    )
    scale = scale.contiguous()
    packed = torch.ops.onednn.qconv_prepack(
        w.contiguous(), scale, 1.0, 0, stride, padding, dilation, geometry.groups, list(x.shape)
    )
    zero = torch.zeros(w.shape[0], dtype=torch.int64, device="cpu")
    result: Tensor = torch.ops.onednn.qconv_pointwise(
        x, 1.0, 0, packed, scale, zero, None, stride, padding, dilation, geometry.groups,
        1.0, 0, torch.float32, "none", [], "",
    )  # fmt: skip
    return result


# The same two as operators of their own: a graph that torch.compile makes must not look inside,
# where oneDNN packs a weight that is not a constant.


@torch.library.custom_op("bitcycle::integer_gemm", mutates_args=())
def _gemm_op(x: Tensor, w: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    return integer_gemm(x, w, scale, bias)


@_gemm_op.register_fake
def _gemm_shape(x: Tensor, w: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    return scale.new_empty(x.shape[0], w.shape[0])


@torch.library.custom_op("bitcycle::integer_conv", mutates_args=())
def _conv_op(
    x: Tensor,
    w: Tensor,
    scale: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    geometry = ConvGeometry(tuple(stride), tuple(padding), tuple(dilation), groups)
    return integer_conv(x, w, geometry, scale)


@_conv_op.register_fake
def _conv_shape(
    x: Tensor,
    w: Tensor,
    scale: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    geometry = ConvGeometry(tuple(stride), tuple(padding), tuple(dilation), groups)
    shape = geometry.output(x.to(scale.dtype), w.to(scale.dtype), None).shape
    return scale.new_empty(shape).contiguous(memory_format=_channels_last(len(shape)))


def _channels_last(num_dims: int) -> torch.memory_format:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return formats.get(num_dims, torch.contiguous_format)
