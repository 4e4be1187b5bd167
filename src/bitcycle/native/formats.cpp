// Float tensors rounded to number formats: plain floats, FP8, MX and NVFP4, and the Hadamard
// transform before it; to the last bit what `formats/rounding.py` computes.
//
//   t = |y| / step      exact: the step is a power of two
//   q = rint(t) half to even, or floor(t) + (u < t - floor(t))
//   element(y) = min(q step, max) with the sign of y;   value = element(x factor) scale
//
// A tensor is (outer, n0, mid, n1, inner) floats. Blocks run along n0 and n1, b0 x b1 each, and one
// dimension of blocks is n1 alone with b0 = n0 = 1. The rows of a block are b0 runs of (b1, inner)
// floats: with inner = 1 a run has one scale, else each of its columns has. The largest magnitudes
// of many blocks are found first and their scales made at once, as vectors. Work is cut into tasks
// that do not depend on the number of threads.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "formats.h"
#include "isa.h"
#include "parallel.h"

#if defined(__clang__)
#define BITCYCLE_NO_ALIAS _Pragma("clang loop vectorize(assume_safety)")
#else
#define BITCYCLE_NO_ALIAS _Pragma("GCC ivdep")
#endif

namespace bitcycle {
namespace {

constexpr long CHUNK = 16384;  // elements of a task
constexpr int WIDTH = 256;     // blocks or columns whose scales are made at once
constexpr int SPAN = 2048;     // elements of a run whose columns have a scale each
constexpr int HADAMARD = 16;
constexpr int32_t INFINITE = 0x7f800000;  // its bits; those of a NaN are above
constexpr int32_t MAGNITUDE = 0x7fffffff, FRACTION = 0x7fffff;

long divide_up(long n, long by) { return (n + by - 1) / by; }

BITCYCLE_INLINE int32_t bits_of(float x) {
  int32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

BITCYCLE_INLINE float float_of(int32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// 2^exponent for -127 <= exponent <= 127; the first is subnormal.
BITCYCLE_INLINE float power(int32_t exponent) {
  const int32_t bits = (exponent + 127) << 23;
  return float_of(bits > 0x400000 ? bits : 0x400000);
}

// -- elements -------------------------------------------------------------------------------------

struct Element {
  int32_t mantissa, min_exponent;
  float max;
  int32_t min_bits;  // of 2^min_exponent
  uint32_t k0, k1;   // the key of the noise

  Element(const int32_t* numbers, const int32_t* key)
      : mantissa(numbers[0]),
        min_exponent(numbers[1]),
        max(float_of(numbers[2])),
        min_bits((numbers[1] + 127) << 23),
        k0(key ? uint32_t(key[0]) : 0),
        k1(key ? uint32_t(key[1]) : 0) {}
};

BITCYCLE_INLINE float noise(uint32_t number, uint32_t k0, uint32_t k1) {
  uint32_t h = (number ^ k0) * 0xED5AD4BBu + k1;
  h = (h ^ (h >> 15)) * 0xAC4C1B51u;
  h = (h ^ (h >> 14)) * 0x31848BABu;
  return (float(int32_t(h) >> 8) + 0.5f) * 0x1p-24f;
}

// The nearest element, or one of the two around y with the noise of its number.
template <bool HAS_NOISE>
BITCYCLE_INLINE float round_element(float y, const Element& e, uint32_t number) {
  const int32_t u = bits_of(y) & MAGNITUDE;
  const float small = float_of(u) * power(-e.min_exponent) * power(e.mantissa);
  const float normal = float_of((u & FRACTION) | ((e.mantissa + 127) << 23));
  const float t = u >= e.min_bits ? normal : small;  // below 2^(mantissa + 1)
  float q;
  if (HAS_NOISE) {
    const float whole = float(int32_t(t));
    q = whole + (noise(number, e.k0, e.k1) < (t - whole) - 0.5f ? 1.0f : 0.0f);
  } else {
    q = (t + 0x1p23f) - 0x1p23f;
  }
  const int32_t exponent = u & INFINITE;
  const float r = q * power(-e.mantissa) * float_of(exponent > e.min_bits ? exponent : e.min_bits);
  return float_of(bits_of(r < e.max ? r : e.max) | (bits_of(y) & ~MAGNITUDE));
}

template <bool HAS_NOISE>
BITCYCLE_INLINE void round_plain(const float* x, long n, const Element& given, uint32_t first,
                                 float* out) {
  const Element e = given;
  BITCYCLE_NO_ALIAS
  for (long i = 0; i < n; ++i) {
    const float r = round_element<HAS_NOISE>(x[i], e, first + uint32_t(i));
    out[i] = (bits_of(x[i]) & MAGNITUDE) >= INFINITE ? x[i] : r;
  }
}

BITCYCLE_INLINE void round_run_body(const float* x, long n, const Element& e, bool has_noise,
                                    uint32_t first, float* out) {
  has_noise ? round_plain<true>(x, n, e, first, out) : round_plain<false>(x, n, e, first, out);
}
BITCYCLE_FOR_EACH_ISA(round_run,
                      (const float* x, long n, const Element& e, bool has_noise, uint32_t first,
                       float* out),
                      (x, n, e, has_noise, first, out))

// -- scales ---------------------------------------------------------------------------------------

struct Job {
  const float* x;
  float* out;
  long outer, n0, mid, n1, inner, b0, b1;
  Kind kind;
  bool rounds_up;      // the scale of MX
  bool has_noise;
  Element element;
  float tensor_scale;  // g of NVFP4
};

// The e4m3 number nearest to one between 2^-6 and 448.
BITCYCLE_INLINE float round_e4m3(float x) {
  const int32_t u = bits_of(x);
  return float_of((u + 0x7ffff + ((u >> 20) & 1)) & ~0xfffff);
}

template <Kind KIND>
BITCYCLE_INLINE void make_scales_of(const Job& job, const int32_t* amax, long n, float* factor,
                                    float* scale) {
  constexpr float NaN = std::numeric_limits<float>::quiet_NaN();
  constexpr float LARGEST = std::numeric_limits<float>::max();
  const float max = job.element.max, g = job.tensor_scale, inverse = 1.0f / g;
  const int32_t emax = (bits_of(max) >> 23) - 127;
  const bool rounds_up = job.rounds_up;
  for (long i = 0; i < n; ++i) {
    const float a = float_of(amax[i]);
    float f, s;
    if (KIND == FP8) {
      s = max / a;
      f = s = s < LARGEST ? s : LARGEST;
    } else if (KIND == MX) {
      int32_t exponent = (amax[i] >> 23) - 127 - emax;
      exponent = exponent < -127 ? -127 : exponent;
      const int32_t above = rounds_up & (a > max * power(exponent));
      exponent = exponent + above > 127 ? 127 : exponent + above;
      f = power(-exponent), s = power(exponent);
    } else {
      float b = a / 6.0f / g;
      b = b > 0x1p-6f ? b : 0x1p-6f;
      b = round_e4m3(b < 448.0f ? b : 448.0f);
      f = inverse / b, s = b * g;
    }
    const bool is_finite = amax[i] < INFINITE;
    factor[i] = f, scale[i] = is_finite ? s : NaN;
  }
}

// What multiplies the numbers of a block before and after their rounding; of FP8, which divides by
// it, twice the same.
BITCYCLE_INLINE void make_scales(const Job& job, const int32_t* amax, long n, float* factor,
                                 float* scale) {
  switch (job.kind) {
    case FP8: return make_scales_of<FP8>(job, amax, n, factor, scale);
    case MX: return make_scales_of<MX>(job, amax, n, factor, scale);
    default: return make_scales_of<NVFP4>(job, amax, n, factor, scale);
  }
}

// -- blocks ---------------------------------------------------------------------------------------

// The largest magnitude, as bits.
template <int LENGTH>
BITCYCLE_INLINE int32_t find_amax(const float* x, long length, int32_t found) {
  const long n = LENGTH ? LENGTH : length;
  for (long i = 0; i < n; ++i) {
    const int32_t u = bits_of(x[i]) & MAGNITUDE;
    found = u > found ? u : found;
  }
  return found;
}

BITCYCLE_INLINE void find_amax_of_run_body(const float* x, long n, int32_t* amax) {
  *amax = find_amax<0>(x, n, 0);
}
BITCYCLE_FOR_EACH_ISA(find_amax_of_run, (const float* x, long n, int32_t* amax), (x, n, amax))

template <int LENGTH, bool DIVIDES, bool HAS_NOISE>
BITCYCLE_INLINE void round_scaled(const float* x, long length, const Element& e, float factor,
                                  float scale, uint32_t first, float* out) {
  const long n = LENGTH ? LENGTH : length;
  BITCYCLE_NO_ALIAS
  for (long i = 0; i < n; ++i) {
    const float r = round_element<HAS_NOISE>(x[i] * factor, e, first + uint32_t(i));
    out[i] = DIVIDES ? r / scale : r * scale;
  }
}

template <bool DIVIDES, bool HAS_NOISE>
BITCYCLE_INLINE void round_columns(const float* x, long n, const Element& e, const float* factor,
                                   const float* scale, uint32_t first, float* out) {
  BITCYCLE_NO_ALIAS
  for (long i = 0; i < n; ++i) {
    const float r = round_element<HAS_NOISE>(x[i] * factor[i], e, first + uint32_t(i));
    out[i] = DIVIDES ? r / scale[i] : r * scale[i];
  }
}

// Blocks of `rows` runs of LENGTH floats, or of job.b1 with a last one that may be shorter; their
// first row is `length` floats from `at` on.
template <int LENGTH, bool DIVIDES, bool HAS_NOISE>
BITCYCLE_INLINE void round_in_runs(const Job& job, long at, long rows, long length) {
  const Element e = job.element;
  const long stride = job.mid * job.n1, size = LENGTH ? LENGTH : job.b1;
  int32_t amax[WIDTH];
  float factor[WIDTH], scale[WIDTH];
  for (long done = 0; done < length; done += WIDTH * size) {
    const long left = length - done;
    const long count = std::min<long>(WIDTH, (left + size - 1) / size);
    for (long i = 0; i < count; ++i) {
      const float* x = job.x + at + done + i * size;
      int32_t found = 0;
      for (long r = 0; r < rows; ++r)
        found = find_amax<LENGTH>(x + r * stride, std::min(size, left - i * size), found);
      amax[i] = found;
    }
    make_scales(job, amax, count, factor, scale);
    for (long i = 0; i < count; ++i)
      for (long r = 0; r < rows; ++r) {
        const long from = at + done + i * size + r * stride;
        round_scaled<LENGTH, DIVIDES, HAS_NOISE>(job.x + from, std::min(size, left - i * size), e,
                                                 factor[i], scale[i], uint32_t(from),
                                                 job.out + from);
      }
  }
}

template <bool DIVIDES, bool HAS_NOISE>
BITCYCLE_INLINE void round_in_runs(const Job& job, long at, long rows, long length) {
  const long whole = job.b1 == 16 || job.b1 == 32 ? length / job.b1 * job.b1 : 0;
  if (whole && job.b1 == 16) round_in_runs<16, DIVIDES, HAS_NOISE>(job, at, rows, whole);
  if (whole && job.b1 == 32) round_in_runs<32, DIVIDES, HAS_NOISE>(job, at, rows, whole);
  if (whole < length) round_in_runs<0, DIVIDES, HAS_NOISE>(job, at + whole, rows, length - whole);
}

// `width` <= WIDTH columns with a block each, of `rows` x `count` numbers.
template <bool DIVIDES, bool HAS_NOISE>
BITCYCLE_INLINE void round_in_columns(const Job& job, long at, long rows, long count, long width) {
  const Element e = job.element;
  const long stride = job.mid * job.n1 * job.inner;
  int32_t amax[WIDTH];
  float factor[WIDTH], scale[WIDTH];
  for (long i = 0; i < width; ++i) amax[i] = 0;
  for (long r = 0; r < rows; ++r)
    for (long k = 0; k < count; ++k) {
      const float* x = job.x + at + r * stride + k * job.inner;
      for (long i = 0; i < width; ++i) {
        const int32_t u = bits_of(x[i]) & MAGNITUDE;
        amax[i] = u > amax[i] ? u : amax[i];
      }
    }
  make_scales(job, amax, width, factor, scale);
  for (long r = 0; r < rows; ++r)
    for (long k = 0; k < count; ++k) {
      const long from = at + r * stride + k * job.inner;
      round_columns<DIVIDES, HAS_NOISE>(job.x + from, width, e, factor, scale, uint32_t(from),
                                        job.out + from);
    }
}

// The same for all columns of narrow blocks: loops run over whole runs of count * inner <= SPAN.
template <bool DIVIDES, bool HAS_NOISE>
BITCYCLE_INLINE void round_in_spans(const Job& job, long at, long rows, long count) {
  const Element e = job.element;
  const long stride = job.mid * job.n1 * job.inner, inner = job.inner, span = count * inner;
  int32_t amax[SPAN];
  float factor[SPAN], scale[SPAN];
  for (long i = 0; i < span; ++i) amax[i] = 0;
  for (long r = 0; r < rows; ++r) {
    const float* x = job.x + at + r * stride;
    for (long i = 0; i < span; ++i) {
      const int32_t u = bits_of(x[i]) & MAGNITUDE;
      amax[i] = u > amax[i] ? u : amax[i];
    }
  }
  for (long from = inner; from < span; from += inner)
    for (long i = 0; i < inner; ++i) amax[i] = std::max(amax[i], amax[from + i]);
  make_scales(job, amax, inner, factor, scale);
  for (long i = inner; i < span; ++i) factor[i] = factor[i - inner], scale[i] = scale[i - inner];
  for (long r = 0; r < rows; ++r) {
    const long from = at + r * stride;
    round_columns<DIVIDES, HAS_NOISE>(job.x + from, span, e, factor, scale, uint32_t(from),
                                      job.out + from);
  }
}

// A part of the blocks: `rows` runs, and of each `length` numbers along n1 and `width` columns.
struct Part {
  long at, rows, length, width;
};

template <bool DIVIDES, bool HAS_NOISE>
BITCYCLE_INLINE void round_part(const Job& job, const Part& part) {
  if (job.inner == 1)
    round_in_runs<DIVIDES, HAS_NOISE>(job, part.at, part.rows, part.length);
  else if (part.width == job.inner && part.length * part.width <= SPAN)
    round_in_spans<DIVIDES, HAS_NOISE>(job, part.at, part.rows, part.length);
  else
    round_in_columns<DIVIDES, HAS_NOISE>(job, part.at, part.rows, part.length, part.width);
}

BITCYCLE_INLINE void round_blocks_body(const Job& job, const Part& part) {
  if (job.kind == FP8)
    job.has_noise ? round_part<true, true>(job, part) : round_part<true, false>(job, part);
  else
    job.has_noise ? round_part<false, true>(job, part) : round_part<false, false>(job, part);
}
BITCYCLE_FOR_EACH_ISA(round_blocks, (const Job& job, const Part& part), (job, part))

// Rounds every block, with scales of their own.
void round_each_block(Job job, long num_threads) {
  if (job.inner == 1 && job.b0 == 1 && job.n1 % job.b1 == 0) {  // rows follow without a gap
    job.n1 *= job.outer * job.n0 * job.mid;
    job.outer = job.n0 = job.mid = 1;
  }
  // a part: some blocks of a run, or one block of some columns
  const bool in_runs = job.inner == 1;
  const long height = std::min(job.b0, job.n0);
  const long length = in_runs
      ? std::min(divide_up(job.n1, job.b1), std::max(1L, CHUNK / (height * job.b1))) * job.b1
      : job.b1;
  const long width = std::min<long>(job.inner, WIDTH);
  const long tiles = divide_up(job.n0, job.b0), lengths = divide_up(job.n1, length);
  const long strips = divide_up(job.inner, width), per_panel = lengths * strips;
  const long parts = job.outer * tiles * job.mid * per_panel;
  const long each = std::max(1L, CHUNK / (height * std::min(length, job.n1) * width));
  parallel_for(divide_up(parts, each), int(num_threads), [&](long task) {
    for (long number = task * each; number < std::min(parts, (task + 1) * each); ++number) {
      const long panel = number / per_panel, in_panel = number % per_panel;
      const long m = panel % job.mid, tile = panel / job.mid % tiles, o = panel / job.mid / tiles;
      const long k = in_panel / strips * length, column = in_panel % strips * width;
      const long row = o * job.n0 + tile * job.b0;
      round_blocks(job, {((row * job.mid + m) * job.n1 + k) * job.inner + column,
                         std::min(job.b0, job.n0 - tile * job.b0), std::min(length, job.n1 - k),
                         std::min(width, job.inner - column)});
    }
  });
}

int32_t find_amax_of_tensor(const float* x, long n, long num_threads) {
  std::vector<int32_t> found(divide_up(n, CHUNK));
  parallel_for(long(found.size()), int(num_threads), [&](long task) {
    find_amax_of_run(x + task * CHUNK, std::min(CHUNK, n - task * CHUNK), &found[task]);
  });
  return *std::max_element(found.begin(), found.end());
}

// Part of a tensor that is one block.
template <bool DIVIDES, bool HAS_NOISE>
BITCYCLE_INLINE void round_with(const Job& job, long at, long n, int32_t amax) {
  float factor, scale;
  make_scales(job, &amax, 1, &factor, &scale);
  const Element e = job.element;
  round_scaled<0, DIVIDES, HAS_NOISE>(job.x + at, n, e, factor, scale, uint32_t(at), job.out + at);
}

BITCYCLE_INLINE void round_with_amax_body(const Job& job, long at, long n, int32_t amax) {
  if (job.kind == FP8)
    job.has_noise ? round_with<true, true>(job, at, n, amax)
                  : round_with<true, false>(job, at, n, amax);
  else
    job.has_noise ? round_with<false, true>(job, at, n, amax)
                  : round_with<false, false>(job, at, n, amax);
}
BITCYCLE_FOR_EACH_ISA(round_with_amax, (const Job& job, long at, long n, int32_t amax),
                      (job, at, n, amax))

// -- Hadamard transform ---------------------------------------------------------------------------

struct Transform {
  const float* x;
  float* out;
  long outer, n, inner;
  const float* signs;
};

constexpr int COLUMNS = 64;  // transformed at once

BITCYCLE_INLINE void transform(float (*v)[COLUMNS], const float* signs, long width) {
  for (int i = 0; i < HADAMARD; ++i)
    for (long c = 0; c < width; ++c) v[i][c] *= signs[i];
  for (int half = 1; half < HADAMARD; half *= 2)
    for (int i = 0; i < HADAMARD; ++i)
      if (!(i & half))
        for (long c = 0; c < width; ++c) {
          const float a = v[i][c], b = v[i + half][c];
          v[i][c] = a + b, v[i + half][c] = a - b;
        }
}

// Columns of one group of 16 rows, of which `rows` are there, and their largest magnitude.
template <int WIDTH_IF_FULL>
BITCYCLE_INLINE int32_t transform_columns(const Transform& job, const float* x, float* out,
                                          long rows, long given) {
  const long width = WIDTH_IF_FULL ? WIDTH_IF_FULL : given;
  alignas(64) float v[HADAMARD][COLUMNS];
  for (long i = 0; i < HADAMARD; ++i)
    for (long c = 0; c < width; ++c) v[i][c] = i < rows ? x[i * job.inner + c] : 0.0f;
  transform(v, job.signs, width);
  int32_t amax = 0;
  for (long i = 0; i < HADAMARD; ++i)
    for (long c = 0; c < width; ++c) {
      const float y = v[i][c] * 0.25f;
      const int32_t u = bits_of(y) & MAGNITUDE;
      amax = u > amax ? u : amax;
      out[i * job.inner + c] = y;
    }
  return amax;
}

// Groups of 16 numbers that follow each other, as columns.
BITCYCLE_INLINE int32_t transform_groups(const Transform& job, long first, long count) {
  const long groups = (job.n + HADAMARD - 1) / HADAMARD;
  alignas(64) float v[HADAMARD][COLUMNS];
  for (long c = 0; c < count; ++c) {
    const long k = (first + c) % groups * HADAMARD;
    const float* x = job.x + (first + c) / groups * job.n + k;
    const long rows = std::min<long>(HADAMARD, job.n - k);
    for (long i = 0; i < rows; ++i) v[i][c] = x[i];
    for (long i = rows; i < HADAMARD; ++i) v[i][c] = 0.0f;
  }
  transform(v, job.signs, count);
  float* out = job.out + first * HADAMARD;
  int32_t amax = 0;
  for (long c = 0; c < count; ++c)
    for (long i = 0; i < HADAMARD; ++i) {
      const float y = v[i][c] * 0.25f;
      const int32_t u = bits_of(y) & MAGNITUDE;
      amax = u > amax ? u : amax;
      out[c * HADAMARD + i] = y;
    }
  return amax;
}

BITCYCLE_INLINE void transform_part_body(const Transform& job, long group, long begin, long width,
                                         int32_t* amax) {
  if (job.inner == 1) {
    *amax = transform_groups(job, group, width);
    return;
  }
  const long groups = (job.n + HADAMARD - 1) / HADAMARD, k = group % groups * HADAMARD;
  const float* x = job.x + (group / groups * job.n + k) * job.inner + begin;
  float* out = job.out + group * HADAMARD * job.inner + begin;
  const long rows = std::min<long>(HADAMARD, job.n - k);
  *amax = width == COLUMNS ? transform_columns<COLUMNS>(job, x, out, rows, width)
                           : transform_columns<0>(job, x, out, rows, width);
}
BITCYCLE_FOR_EACH_ISA(transform_part,
                      (const Transform& job, long group, long begin, long width, int32_t* amax),
                      (job, group, begin, width, amax))

// Writes the transform, n padded to a multiple of 16, and returns its largest magnitude.
int32_t transform_tensor(const Transform& job, long num_threads) {
  const long groups = job.outer * divide_up(job.n, HADAMARD);
  const bool in_runs = job.inner == 1;  // a part: some groups, or one group of some columns
  const long strips = in_runs ? 1 : divide_up(job.inner, COLUMNS);
  const long parts = in_runs ? divide_up(groups, COLUMNS) : groups * strips;
  const long each = std::max(
      1L, CHUNK / (HADAMARD * (in_runs ? COLUMNS : std::min<long>(COLUMNS, job.inner))));
  std::vector<int32_t> found(divide_up(parts, each));
  parallel_for(long(found.size()), int(num_threads), [&](long task) {
    for (long part = task * each; part < std::min(parts, (task + 1) * each); ++part) {
      int32_t amax;
      if (in_runs) {
        const long group = part * COLUMNS;
        transform_part(job, group, 0, std::min<long>(COLUMNS, groups - group), &amax);
      } else {
        const long begin = part % strips * COLUMNS;
        transform_part(job, part / strips, begin, std::min<long>(COLUMNS, job.inner - begin),
                       &amax);
      }
      found[task] = std::max(found[task], amax);
    }
  });
  return found.empty() ? 0 : *std::max_element(found.begin(), found.end());
}

// g = amax / (448 * 6), not below 2^-121: (1 / g) / s stays finite.
float make_tensor_scale(int32_t amax) {
  if (amax >= INFINITE) return std::numeric_limits<float>::quiet_NaN();
  return std::max(float_of(amax) / (448.0f * 6.0f), 0x1p-121f);
}

}  // namespace
}  // namespace bitcycle

using namespace bitcycle;

// Elements without a scale; a NaN or an infinity stays one.
BITCYCLE_API void bitcycle_round_elements(const ElementsCall* call) {
  const Element element(call->numbers, call->key);
  parallel_for(divide_up(call->count, CHUNK), int(call->num_threads), [&](long task) {
    const long at = task * CHUNK;
    round_run(call->x + at, std::min<long>(CHUNK, call->count - at), element, call->key != nullptr,
              uint32_t(at), call->out + at);
  });
}

// The Hadamard transform alone.
BITCYCLE_API void bitcycle_hadamard(const HadamardCall* call) {
  transform_tensor({call->x, call->out, call->outer, call->n, call->inner, call->signs},
                   call->num_threads);
}

// Blocks with a scale each, of a tensor that is not empty; transformed first if there are signs.
BITCYCLE_API void bitcycle_round_blocks(const BlocksCall* call) {
  const long count = call->outer * call->n0 * call->mid * call->n1 * call->inner;
  const long threads = call->num_threads;
  const float* x = call->x;
  const bool has_tensor_scale = call->kind == NVFP4 && call->has_tensor_scale;
  const bool needs_amax = has_tensor_scale || call->b1 == 0;
  int32_t amax = 0;
  if (call->signs) {
    amax = transform_tensor({x, call->out, call->transform_outer, call->transform_n,
                             call->transform_inner, call->signs}, threads);
    x = call->out;
  } else if (needs_amax) {
    amax = find_amax_of_tensor(x, count, threads);
  }
  const Job job{x, call->out, call->outer, call->n0, call->mid, call->n1, call->inner, call->b0,
                call->b1, Kind(call->kind), call->rounds_up != 0, call->key != nullptr,
                Element(call->numbers, call->key),
                has_tensor_scale ? make_tensor_scale(amax) : 1.0f};
  if (call->b1) return round_each_block(job, threads);
  parallel_for(divide_up(count, CHUNK), int(threads), [&](long task) {
    round_with_amax(job, task * CHUNK, std::min<long>(CHUNK, count - task * CHUNK), amax);
  });
}
