// Float tensors on affine grids: ranges, grids, codes and values, one pass over the tensor each.
//
//   code = rint(clamp((x - offset) / scale + noise, 0, levels))      half to even
//   value = code * scale + offset
//
// to the last bit what `ops/affine.py` and `ops/codes.py` compute: true division, no fused
// multiply-add, and the noise of `ops/noise.py`, a hash of the element's number in memory.
//
// A tensor is a block of (outer, channels, inner) floats with one range or grid per channel; one
// for the whole tensor is (1, 1, n), one per row (1, rows, length). Work is cut into chunks that do
// not depend on the number of threads.
#include "encode.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "isa.h"
#include "parallel.h"

namespace bitcycle {
namespace {

constexpr long CHUNK = 16384;  // elements of a task
constexpr int LANES = 32;      // columns, or parts of a row, that a loop reduces at once

long divide_up(long n, long by) { return (n + by - 1) / by; }

// Calls body(row, begin, length) for parts of at most CHUNK elements that cover every row.
template <typename Body>
void for_each_part(long rows, long length, long num_threads, const Body& body) {
  if (length == 0) return;
  if (length > CHUNK) {
    const long parts = divide_up(length, CHUNK);
    parallel_for(rows * parts, int(num_threads), [&](long task) {
      const long begin = task % parts * CHUNK;
      body(task / parts, begin, std::min(CHUNK, length - begin));
    });
    return;
  }
  const long each = std::max(1L, CHUNK / length);
  parallel_for(divide_up(rows, each), int(num_threads), [&](long task) {
    for (long row = task * each; row < std::min(rows, (task + 1) * each); ++row)
      body(row, 0L, length);
  });
}

// -- ranges ---------------------------------------------------------------------------------------

constexpr float INF = std::numeric_limits<float>::infinity();

struct Extremes {
  float low[LANES], high[LANES];
  uint32_t is_nan[LANES];
};

BITCYCLE_INLINE void start(Extremes& e, int lane) {
  e.low[lane] = INF, e.high[lane] = -INF, e.is_nan[lane] = 0;
}

BITCYCLE_INLINE void include(Extremes& e, int lane, float v) {
  e.low[lane] = v < e.low[lane] ? v : e.low[lane];
  e.high[lane] = v > e.high[lane] ? v : e.high[lane];
  e.is_nan[lane] |= uint32_t(v != v);
}

BITCYCLE_INLINE void join(Extremes& e, int lane, int other) {
  e.low[lane] = e.low[other] < e.low[lane] ? e.low[other] : e.low[lane];
  e.high[lane] = e.high[other] > e.high[lane] ? e.high[other] : e.high[lane];
  e.is_nan[lane] |= e.is_nan[other];
}

// Of zeros with both signs, 0.
BITCYCLE_INLINE void write_range(const Extremes& e, int lane, float* low, float* high) {
  constexpr float NaN = std::numeric_limits<float>::quiet_NaN();
  *low = e.is_nan[lane] ? NaN : e.low[lane] + 0.0f;
  *high = e.is_nan[lane] ? NaN : e.high[lane] + 0.0f;
}

// The same of bfloat16, as integers in the order of the values: a NaN is beyond the infinities.
struct HalfExtremes {
  int16_t low[LANES], high[LANES];
};

constexpr int16_t HALF_INF = 0x7F80;
BITCYCLE_INLINE int16_t turn_negative(int16_t x) { return int16_t(x ^ (x >> 15 & 0x7FFF)); }

BITCYCLE_INLINE void start(HalfExtremes& e, int lane) {
  e.low[lane] = HALF_INF, e.high[lane] = ~HALF_INF;
}

BITCYCLE_INLINE void include(HalfExtremes& e, int lane, BFloat16 v) {
  const int16_t x = turn_negative(int16_t(v.bits));
  e.low[lane] = std::min(e.low[lane], x);
  e.high[lane] = std::max(e.high[lane], x);
}

BITCYCLE_INLINE void join(HalfExtremes& e, int lane, int other) {
  e.low[lane] = std::min(e.low[lane], e.low[other]);
  e.high[lane] = std::max(e.high[lane], e.high[other]);
}

BITCYCLE_INLINE void write_range(const HalfExtremes& e, int lane, float* low, float* high) {
  const bool is_nan = e.low[lane] < int16_t(~HALF_INF) || e.high[lane] > HALF_INF;
  Extremes found;
  found.low[0] = load(BFloat16{uint16_t(turn_negative(e.low[lane]))});
  found.high[0] = load(BFloat16{uint16_t(turn_negative(e.high[lane]))});
  found.is_nan[0] = is_nan;
  write_range(found, 0, low, high);
}

template <typename E, typename T>
BITCYCLE_INLINE void find_range_of(const T* x, long n, float* low, float* high) {
  E e;
  for (int l = 0; l < LANES; ++l) start(e, l);
  long i = 0;
  for (; i + LANES <= n; i += LANES)
    for (int l = 0; l < LANES; ++l) include(e, l, x[i + l]);
  for (; i < n; ++i) include(e, 0, x[i]);
  for (int width = LANES / 2; width > 0; width /= 2)
    for (int l = 0; l < width; ++l) join(e, l, l + width);
  write_range(e, 0, low, high);
}

BITCYCLE_INLINE void find_range_body(Floats x, long n, float* low, float* high) {
  x.is_half ? find_range_of<HalfExtremes>(x.at<BFloat16>(), n, low, high)
            : find_range_of<Extremes>(x.at<float>(), n, low, high);
}
BITCYCLE_FOR_EACH_ISA(find_range, (Floats x, long n, float* low, float* high), (x, n, low, high))

// The ranges of `count` <= LANES columns.
template <typename E, typename T>
BITCYCLE_INLINE void find_column_ranges_of(const T* x, long rows, long stride, int count,
                                           float* low, float* high) {
  E e;
  for (int l = 0; l < LANES; ++l) start(e, l);
  for (long r = 0; r < rows; ++r) {
    const T* row = x + r * stride;
    if (count == LANES)
      for (int l = 0; l < LANES; ++l) include(e, l, row[l]);
    else
      for (int l = 0; l < count; ++l) include(e, l, row[l]);
  }
  for (int l = 0; l < count; ++l) write_range(e, l, low + l, high + l);
}

BITCYCLE_INLINE void find_column_ranges_body(Floats x, long rows, long stride, int count,
                                             float* low, float* high) {
  x.is_half ? find_column_ranges_of<HalfExtremes>(x.at<BFloat16>(), rows, stride, count, low, high)
            : find_column_ranges_of<Extremes>(x.at<float>(), rows, stride, count, low, high);
}
BITCYCLE_FOR_EACH_ISA(find_column_ranges,
                      (Floats x, long rows, long stride, int count, float* low, float* high),
                      (x, rows, stride, count, low, high))

// One range from several: NaN if one of them is.
void join_ranges(const float* lows, const float* highs, long n, float* low, float* high) {
  float other;
  find_range({lows, false}, n, low, &other);
  find_range({highs, false}, n, &other, high);
}

void find_range_in_parts(Floats x, long n, float* low, float* high, long num_threads) {
  const long parts = divide_up(n, CHUNK);
  std::vector<float> lows(parts), highs(parts);
  for_each_part(1, n, num_threads, [&](long, long begin, long length) {
    find_range(x.from(begin), length, &lows[begin / CHUNK], &highs[begin / CHUNK]);
  });
  join_ranges(lows.data(), highs.data(), parts, low, high);
}

}  // namespace

void find_ranges(Floats x, Block block, float* low, float* high, long num_threads) {
  const long outer = block.outer, channels = block.channels, inner = block.inner;
  if (outer == 1 && channels == 1 && inner > CHUNK)
    return find_range_in_parts(x, inner, low, high, num_threads);
  if (inner == 1 && channels > 1) {
    parallel_for(divide_up(channels, LANES), int(num_threads), [&](long task) {
      const long begin = task * LANES;
      find_column_ranges(x.from(begin), outer, channels,
                         int(std::min<long>(LANES, channels - begin)), low + begin, high + begin);
    });
    return;
  }
  const long each = std::max(1L, CHUNK / std::max<long>(1, outer * inner));
  parallel_for(divide_up(channels, each), int(num_threads), [&](long task) {
    const long end = std::min<long>(channels, (task + 1) * each);
    if (outer == 1) {
      for (long c = task * each; c < end; ++c)
        find_range(x.from(c * inner), inner, low + c, high + c);
      return;
    }
    std::vector<float> lows(outer), highs(outer);
    for (long c = task * each; c < end; ++c) {
      for (long o = 0; o < outer; ++o)
        find_range(x.from((o * channels + c) * inner), inner, &lows[o], &highs[o]);
      join_ranges(lows.data(), highs.data(), outer, low + c, high + c);
    }
  });
}

namespace {

// -- rounding -------------------------------------------------------------------------------------

struct Run {
  Floats x;
  long n;
  const float *scale, *offset;  // of all elements, or of each
  float levels;
  float max_steps;     // x is clamped to this many steps around 0; infinite for no clamp
  const int32_t* key;  // two words for stochastic rounding, or null
  uint32_t first;      // the number of the first element, for its noise
  void* out;
};

BITCYCLE_INLINE uint32_t mix(uint32_t number, uint32_t k0, uint32_t k1) {
  uint32_t h = (number ^ k0) * 0xED5AD4BBu + k1;
  h = (h ^ (h >> 15)) * 0xAC4C1B51u;
  return (h ^ (h >> 14)) * 0x31848BABu;
}

BITCYCLE_INLINE float noise(uint32_t number, uint32_t k0, uint32_t k1) {
  return (float(int32_t(mix(number, k0, k1)) >> 8) + 0.5f) * 0x1p-24f;
}

template <bool ONE_GRID, bool HAS_NOISE, Form FORM, typename T>
BITCYCLE_INLINE void round_loop(const Run& run) {
  const T* __restrict x = run.x.at<T>();
  const float *__restrict scales = run.scale, *__restrict offsets = run.offset;
  const float levels = run.levels, max_steps = run.max_steps;
  const float one_scale = *scales, one_offset = *offsets;
  const uint32_t first = run.first;
  const uint32_t k0 = HAS_NOISE ? run.key[0] : 0, k1 = HAS_NOISE ? run.key[1] : 0;
  float* __restrict values = static_cast<float*>(run.out);
  uint8_t* __restrict codes = static_cast<uint8_t*>(run.out);
  const long n = run.n;
  for (long i = 0; i < n; ++i) {
    const float scale = ONE_GRID ? one_scale : scales[i];
    const float offset = ONE_GRID ? one_offset : offsets[i];
    const float limit = scale * max_steps;
    float u = load(x[i]);
    u = u < -limit ? -limit : u;
    u = u > limit ? limit : u;
    u = (u - offset) / scale;
    if (HAS_NOISE) u += noise(first + uint32_t(i), k0, k1);
    if (FORM == VALUES) {  // a NaN stays one
      u = u < 0.0f ? 0.0f : u;
      u = levels < u ? levels : u;
      values[i] = std::nearbyint(u) * scale + offset;
    } else {
      u = u > 0.0f ? u : 0.0f;
      u = u < levels ? u : levels;
      codes[i] = uint8_t(int32_t(std::nearbyint(u)));
    }
  }
}

template <bool ONE_GRID, bool HAS_NOISE, Form FORM>
BITCYCLE_INLINE void round_elements(const Run& run) {
  run.x.is_half ? round_loop<ONE_GRID, HAS_NOISE, FORM, BFloat16>(run)
                : round_loop<ONE_GRID, HAS_NOISE, FORM, float>(run);
}

template <bool ONE_GRID, bool HAS_NOISE>
BITCYCLE_INLINE void round_to_form(const Run& run, Form form) {
  form == VALUES ? round_elements<ONE_GRID, HAS_NOISE, VALUES>(run)
                 : round_elements<ONE_GRID, HAS_NOISE, CODES>(run);
}

BITCYCLE_INLINE void round_run_body(const Run& run, Form form, bool is_one_grid) {
  if (is_one_grid)
    run.key ? round_to_form<true, true>(run, form) : round_to_form<true, false>(run, form);
  else
    run.key ? round_to_form<false, true>(run, form) : round_to_form<false, false>(run, form);
}
BITCYCLE_FOR_EACH_ISA(round_run, (const Run& run, Form form, bool is_one_grid),
                      (run, form, is_one_grid))

struct Grids {
  const float *scale, *offset;  // of each channel
  float levels, max_steps;
};
constexpr float NO_LIMIT = INF;

// Calls body(begin, length, channel, is_one_grid) for runs that cover the block: of one channel, or
// with an element of each channel from that on.
template <typename Body>
void for_each_run(Block block, long num_threads, const Body& body) {
  const auto [outer, channels, inner] = block;
  if (inner == 1 && channels > 1)
    for_each_part(outer, channels, num_threads, [&, step = channels](long row, long begin, long n) {
      body(row * step + begin, n, begin, false);
    });
  else
    for_each_part(outer * channels, inner, num_threads,
                  [&, step = inner, count = channels](long row, long begin, long n) {
                    body(row * step + begin, n, row % count, true);
                  });
}

void round_block(Floats x, Block block, const Grids& grids, const int32_t* key, Form form,
                 void* out, long num_threads) {
  const long size = form == VALUES ? sizeof(float) : 1;
  for_each_run(block, num_threads, [&](long at, long n, long channel, bool is_one_grid) {
    round_run({x.from(at), n, grids.scale + channel, grids.offset + channel, grids.levels,
               grids.max_steps, key, uint32_t(at), static_cast<char*>(out) + at * size},
              form, is_one_grid);
  });
}

// -- values of codes ------------------------------------------------------------------------------

template <bool ONE_GRID>
BITCYCLE_INLINE void decode_loop(const uint8_t* __restrict codes, long n,
                                 const float* __restrict scales, const float* __restrict offsets,
                                 float* __restrict out) {
  const float one_scale = *scales, one_offset = *offsets;
  for (long i = 0; i < n; ++i)
    out[i] = float(codes[i]) * (ONE_GRID ? one_scale : scales[i]) +
             (ONE_GRID ? one_offset : offsets[i]);
}

BITCYCLE_INLINE void decode_run_body(const uint8_t* codes, long n, const float* scales,
                                     const float* offsets, bool is_one_grid, float* out) {
  if (is_one_grid) return decode_loop<true>(codes, n, scales, offsets, out);
  decode_loop<false>(codes, n, scales, offsets, out);
}
BITCYCLE_FOR_EACH_ISA(decode_run,
                      (const uint8_t* codes, long n, const float* scales, const float* offsets,
                       bool is_one_grid, float* out),
                      (codes, n, scales, offsets, is_one_grid, out))

// -- grids ----------------------------------------------------------------------------------------

struct Grid {
  float scale, offset;
  bool has_steps;  // if not, every value is exactly the offset
};

// From 0 to the largest magnitude of a symmetric grid.
float count_steps(float levels) { return levels == 1 ? 0.5f : (levels + 1) * 0.5f - 1; }

// The smallest power of two that is not below x; 0 for 0.
float power_above(float x) {
  int exponent;
  const float mantissa = std::frexp(x, &exponent);
  const float power = x / (mantissa + float(mantissa == 0));
  return mantissa == 0.5f ? power * 0.5f : power;
}

Grid make_grid(float low, float high, float levels, float floor, Rule rule) {
  if (is_symmetric(rule)) {
    const float half = (levels + 1) * 0.5f, bound = max_abs(low, high);
    const bool is_one_bit = levels == 1;
    float step = bound / count_steps(levels);
    if (rule == POWER) step = power_above(step);
    const float scale = step + float(step == 0);
    return {scale, -(is_one_bit ? step * 0.5f : scale * half), step != 0 || !is_one_bit};
  }
  if (rule == WITH_ZERO) {
    low = low > 0 ? 0.0f : low;
    high = high < 0 ? 0.0f : high;
  }
  float scale = (high - low) / levels;
  if (floor > 0) scale = scale < floor ? floor : scale;
  scale += float(scale == 0);
  const float offset = rule == WITH_ZERO ? -std::nearbyint(-low / scale) * scale : low;
  return {scale, offset, high != low};
}

}  // namespace

void round_to_grids(Floats x, Block block, const float* low, const float* high, float levels,
                    float floor, Rule rule, const int32_t* key, Form form, void* out, float* scale,
                    float* offset, long num_threads) {
  float* scales = new_array<float>(SMALL, block.channels);
  for (long c = 0; c < block.channels; ++c) {
    const Grid grid = make_grid(low[c], high[c], levels, floor, rule);
    scales[c] = grid.scale;
    scale[c] = form == VALUES ? grid.scale : grid.scale * float(grid.has_steps);
    if (offset) offset[c] = grid.offset;
  }
  const Grids grids{scales, offset ? offset : low, levels,
                    is_symmetric(rule) ? count_steps(levels) : NO_LIMIT};
  round_block(x, block, grids, key, form, out, num_threads);
}

void quantize_rows(Floats x, Block block, float levels, float floor, Rule rule, Form form,
                   void* out, float* low, float* high, float* scale, float* offset,
                   long num_threads) {
  const long rows = block.channels, length = block.inner;
  const long size = form == VALUES ? sizeof(float) : 1;
  const float max_steps = is_symmetric(rule) ? count_steps(levels) : NO_LIMIT;
  const long each = std::max(1L, CHUNK / std::max(1L, length));
  parallel_for(divide_up(rows, each), int(num_threads), [&](long task) {
    for (long r = task * each; r < std::min(rows, (task + 1) * each); ++r) {
      const Floats row = x.from(r * length);
      find_range(row, length, low + r, high + r);
      const Grid grid = make_grid(low[r], high[r], levels, floor, rule);
      scale[r] = form == VALUES ? grid.scale : grid.scale * float(grid.has_steps);
      if (offset) offset[r] = grid.offset;
      round_run({row, length, &grid.scale, &grid.offset, levels, max_steps, nullptr, 0,
                 static_cast<char*>(out) + r * length * size},
                form, true);
    }
  });
}

}  // namespace bitcycle

using namespace bitcycle;

// Arguments come in one struct of fields of 8 bytes each: ctypes spends 0.1 us on every argument.

struct RangeCall {
  const void* x;
  int64_t outer, channels, inner;
  float *low, *high;
  int64_t num_threads;
  int64_t x_is_half;  // bfloat16
};

// The lowest and highest value of each channel; NaN where it has one.
BITCYCLE_API void bitcycle_range(const RangeCall* call) {
  find_ranges({call->x, call->x_is_half != 0}, {call->outer, call->channels, call->inner},
              call->low, call->high, call->num_threads);
}

struct RoundCall {
  const void* x;
  int64_t outer, channels, inner;
  const float *scale, *offset, *levels;
  const int32_t* key;  // two words for stochastic rounding, or null
  int64_t form;
  void* out;
  int64_t num_threads;
  int64_t x_is_half;
};

// Values or codes on given grids.
BITCYCLE_API void bitcycle_round(const RoundCall* call) {
  round_block({call->x, call->x_is_half != 0}, {call->outer, call->channels, call->inner},
              {call->scale, call->offset, *call->levels, NO_LIMIT}, call->key, Form(call->form),
              call->out, call->num_threads);
}

struct QuantizeCall {
  const void* x;
  int64_t outer, channels, inner;
  int64_t finds_range;  // writes low and high first
  float *low, *high;
  const int32_t* levels;
  double floor;  // the smallest step
  int64_t rule;
  const int32_t* key;
  int64_t form;
  void* out;
  float* scale;   // 0 where codes mean the offset
  float* offset;  // null if it is the lowest value
  float* half;    // (levels + 1) / 2
  int64_t num_threads;
  int64_t x_is_half;
};

// The grids of ranges, which are given or found, and values or codes on them.
BITCYCLE_API void bitcycle_quantize(const QuantizeCall* call) {
  const Block block{call->outer, call->channels, call->inner};
  const Floats x{call->x, call->x_is_half != 0};
  const float levels = float(*call->levels);
  *call->half = (levels + 1) * 0.5f;
  if (call->finds_range && !call->key && block.outer == 1 && block.channels > 1 && block.inner > 1)
    return quantize_rows(x, block, levels, float(call->floor), Rule(call->rule), Form(call->form),
                         call->out, call->low, call->high, call->scale, call->offset,
                         call->num_threads);
  if (call->finds_range) find_ranges(x, block, call->low, call->high, call->num_threads);
  round_to_grids(x, block, call->low, call->high, levels, float(call->floor), Rule(call->rule),
                 call->key, Form(call->form), call->out, call->scale, call->offset,
                 call->num_threads);
}

struct DecodeCall {
  const uint8_t* codes;
  int64_t outer, channels, inner;
  const float *scale, *offset;
  float* out;
  int64_t num_threads;
};

// The values of codes.
BITCYCLE_API void bitcycle_decode(const DecodeCall* call) {
  for_each_run({call->outer, call->channels, call->inner}, call->num_threads,
               [&](long at, long n, long channel, bool is_one_grid) {
                 decode_run(call->codes + at, n, call->scale + channel, call->offset + channel,
                            is_one_grid, call->out + at);
               });
}
