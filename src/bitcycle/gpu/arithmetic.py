"""Arithmetic of the kernels, to the last bit that of torch on the CPU.

Division rounds to nearest (a plain `/` is approximate on a GPU), rint is half to even, and noise is
the hash of `ops.noise`.
"""

import triton
import triton.language as tl

# of `ops.noise`
_M1 = tl.constexpr(0xED5AD4BB)
_M2 = tl.constexpr(0xAC4C1B51)
_M3 = tl.constexpr(0x31848BAB)
_WEYL = tl.constexpr(0x9E3779B9)
_STEP = tl.constexpr(0x2C1B3C6D)
_CALL = tl.constexpr(0x297A2D39)

# where the key of the noise comes from
NO_KEY = tl.constexpr(0)
WORDS = tl.constexpr(1)
CLOCK = tl.constexpr(2)

_WHOLE = tl.constexpr(8388608.0)  # 2^23: from here on every float32 is a whole number
INFINITE = tl.constexpr(0x7F800000)  # the bits of infinity; those of a NaN are above


@triton.jit
def divide(a, b):
    return tl.math.div_rn(a, b)


@triton.jit
def rint(x):
    """The nearest whole number of x >= 0, half to even; -0.0 and NaN stay what they are."""
    return tl.where((x > 0) & (x < _WHOLE), (x + _WHOLE) - _WHOLE, x)


@triton.jit
def centre(scale, offset):
    """The code z of the value 0, or the nearest end of the grid, and the residual."""
    z = rint(tl.minimum(tl.maximum(divide(-offset, scale), 0.0), 255.0))
    z = tl.where((scale == 0) | (z != z), 0.0, z)
    return z, offset + scale * z


@triton.jit
def max_nan(a, b):
    """The larger one; NaN if one of them is."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def min_nan(a, b):
    """The smaller one; NaN if one of them is."""
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def reduce_max(x, axis: tl.constexpr):
    """The maxima along an axis; NaN where one of the numbers is. Keeps the axis."""
    is_nan = tl.max((x != x).to(tl.int32), axis, keep_dims=True) > 0
    top = tl.max(tl.where(x != x, float("-inf"), x), axis, keep_dims=True)
    return tl.where(is_nan, float("nan"), top)


@triton.jit
def hash32(x, k0, k1):
    x = (x ^ k0) * _M1 + k1
    x = (x ^ (x >> 15)) * _M2
    return (x ^ (x >> 14)) * _M3


@triton.jit
def key_words(clock):
    """The two words of a key, from a pointer to [base, step, call]."""
    base = tl.load(clock).to(tl.uint32, bitcast=True)
    step = tl.load(clock + 1).to(tl.uint32, bitcast=True)
    call = tl.load(clock + 2).to(tl.uint32, bitcast=True)
    word = base + step * _STEP + call * _CALL
    zero = word ^ word
    k0 = hash32(word, zero, zero)
    k1 = hash32(word + _WEYL, zero, zero)
    return k0 ^ (k0 >> 16), k1 ^ (k1 >> 16)


@triton.jit
def load_key(key, KEY: tl.constexpr):
    """The two words of a key: those given, or made from the clock."""
    if KEY == CLOCK:
        k0, k1 = key_words(key)
    else:
        k0 = tl.load(key).to(tl.uint32, bitcast=True)
        k1 = tl.load(key + 1).to(tl.uint32, bitcast=True)
    return k0, k1


@triton.jit
def uniform(number, k0, k1):
    """The noise of an element, by its number modulo 2^32."""
    x = hash32(number.to(tl.uint32), k0, k1).to(tl.int32, bitcast=True) >> 8
    return (x.to(tl.float32) + 0.5) * 5.9604644775390625e-08  # 2^-24


@triton.jit
def power_above(x):
    """The smallest power of two that is not below x >= 0; 0 for 0, NaN for NaN and infinity."""
    is_small = x < 1.1754943508222875e-38
    raised = tl.where(is_small, x * 4294967296.0, x)  # 2^32: the result may be subnormal
    bits = raised.to(tl.int32, bitcast=True)
    power = ((bits + 0x7FFFFF) & 0x7F800000).to(tl.float32, bitcast=True)
    power = tl.where(is_small, power * 2.3283064365386963e-10, power)
    return tl.where(bits >= INFINITE, float("nan"), power)


@triton.jit
def to_dtype(x, DTYPE: tl.constexpr):
    """A float32 in another dtype, half to even; Triton's interpreter would cut off a bfloat16."""
    if tl.bfloat16 == DTYPE:
        bits = x.to(tl.int32, bitcast=True)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & ~0xFFFF
        x = tl.where(x == x, rounded.to(tl.float32, bitcast=True), x)
    return x.to(DTYPE)
