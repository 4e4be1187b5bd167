// Ranges of float tensors, and their codes on an affine grid: one pass each.
//
//   code = rint(clamp((x - offset) / scale + noise, 0, levels))      half to even
//
// to the last bit what `ops/codes.py` computes: true division, and the noise of `ops/noise.py`, a hash
// of the element's number.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "isa.h"
#include "parallel.h"

namespace bitcycle {
namespace {

constexpr long CHUNK = 16384;  // elements of a task

BITCYCLE_INLINE void find_range_body(const float* x, long n, float* low, float* high) {
  constexpr int LANES = 32;
  float lows[LANES], highs[LANES];
  uint32_t nan[LANES] = {};
  for (int i = 0; i < LANES; ++i) lows[i] = highs[i] = x[0];
  long i = 0;
  for (; i + LANES <= n; i += LANES)
    for (int l = 0; l < LANES; ++l) {
      const float v = x[i + l];
      lows[l] = v < lows[l] ? v : lows[l];
      highs[l] = v > highs[l] ? v : highs[l];
      nan[l] |= uint32_t(v != v);
    }
  for (; i < n; ++i) {
    lows[0] = x[i] < lows[0] ? x[i] : lows[0];
    highs[0] = x[i] > highs[0] ? x[i] : highs[0];
    nan[0] |= uint32_t(x[i] != x[i]);
  }
  float a = lows[0], b = highs[0];
  uint32_t any = x[0] != x[0];
  for (int l = 0; l < LANES; ++l) {
    a = lows[l] < a ? lows[l] : a;
    b = highs[l] > b ? highs[l] : b;
    any |= nan[l];
  }
  *low = any ? std::numeric_limits<float>::quiet_NaN() : a;
  *high = any ? std::numeric_limits<float>::quiet_NaN() : b;
}
BITCYCLE_FOR_EACH_ISA(find_range, (const float* x, long n, float* low, float* high),
                      (x, n, low, high))

BITCYCLE_INLINE void encode_nearest_body(const float* x, long n, float scale, float offset,
                                         float levels, uint8_t* out) {
  for (long i = 0; i < n; ++i) {
    float u = (x[i] - offset) / scale;
    u = u > 0.0f ? u : 0.0f;
    u = u < levels ? u : levels;
    out[i] = uint8_t(int32_t(std::nearbyint(u)));
  }
}
BITCYCLE_FOR_EACH_ISA(encode_nearest,
                      (const float* x, long n, float scale, float offset, float levels,
                       uint8_t* out),
                      (x, n, scale, offset, levels, out))

BITCYCLE_INLINE void encode_stochastic_body(const float* x, long n, float scale, float offset,
                                            float levels, uint32_t first, uint32_t k0, uint32_t k1,
                                            uint8_t* out) {
  for (long i = 0; i < n; ++i) {
    uint32_t h = ((first + uint32_t(i)) ^ k0) * 0xED5AD4BBu + k1;
    h = (h ^ (h >> 15)) * 0xAC4C1B51u;
    h = (h ^ (h >> 14)) * 0x31848BABu;
    const float noise = (float(int32_t(h) >> 8) + 0.5f) * 0x1p-24f;
    float u = (x[i] - offset) / scale + noise;
    u = u > 0.0f ? u : 0.0f;
    u = u < levels ? u : levels;
    out[i] = uint8_t(int32_t(std::nearbyint(u)));
  }
}
BITCYCLE_FOR_EACH_ISA(encode_stochastic,
                      (const float* x, long n, float scale, float offset, float levels,
                       uint32_t first, uint32_t k0, uint32_t k1, uint8_t* out),
                      (x, n, scale, offset, levels, first, k0, k1, out))

}  // namespace
}  // namespace bitcycle

using namespace bitcycle;

// The lowest and highest value of each row; NaN where a row has one.
BITCYCLE_API void bitcycle_range(const float* x, int64_t rows, int64_t length, float* low, float* high,
                               int64_t num_threads) {
  if (rows > 1) {
    const long each = std::max(1L, CHUNK / std::max<long>(1, length));
    parallel_for((rows + each - 1) / each, int(num_threads), [&](long task) {
      for (long r = task * each; r < std::min<long>(rows, (task + 1) * each); ++r)
        find_range(x + r * length, length, low + r, high + r);
    });
    return;
  }
  const long tasks = (length + CHUNK - 1) / CHUNK;
  if (tasks == 1) return find_range(x, length, low, high);
  std::vector<float> lows(tasks), highs(tasks);
  parallel_for(tasks, int(num_threads), [&](long task) {
    const long at = task * CHUNK;
    find_range(x + at, std::min(CHUNK, length - at), &lows[task], &highs[task]);
  });
  float other;
  find_range(lows.data(), tasks, low, &other);
  find_range(highs.data(), tasks, &other, high);
}

// key: two words for stochastic rounding, or null. num_scales: 1, or one per row.
BITCYCLE_API void bitcycle_encode(const float* x, int64_t rows, int64_t length, const float* scale,
                                const float* offset, int64_t num_scales, const float* levels,
                                const int32_t* key, uint8_t* out, int64_t num_threads) {
  if (num_scales == 1) length *= rows, rows = 1;
  const long parts = (length + CHUNK - 1) / CHUNK, each = std::max(1L, CHUNK / std::max<long>(1, length));
  auto encode = [&](long row, long at, long n) {
    const long s = num_scales == 1 ? 0 : row, first = row * length + at;
    if (key)
      encode_stochastic(x + first, n, scale[s], offset[s], *levels, uint32_t(first),
                        uint32_t(key[0]), uint32_t(key[1]), out + first);
    else
      encode_nearest(x + first, n, scale[s], offset[s], *levels, out + first);
  };
  if (parts > 1)
    parallel_for(rows * parts, int(num_threads), [&](long task) {
      const long row = task / parts, at = task % parts * CHUNK;
      encode(row, at, std::min(CHUNK, length - at));
    });
  else
    parallel_for((rows + each - 1) / each, int(num_threads), [&](long task) {
      for (long r = task * each; r < std::min<long>(rows, (task + 1) * each); ++r) encode(r, 0, length);
    });
}
