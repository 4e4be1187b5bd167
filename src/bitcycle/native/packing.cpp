// What the backward pass reads, packed: codes of 4 bits two per byte, signs 32 per word.
//
// Word m of a mask of M words has the bits of the elements m, m + M, m + 2M, ... in the order of
// `ops/packing.py`, so that packing has no steps across lanes.
#include <algorithm>
#include <cstdint>

#include "isa.h"
#include "parallel.h"

namespace bitcycle {
namespace {

constexpr int PLANES = 32;
constexpr long WORDS = 512;    // of a task
constexpr long BYTES = 16384;  // of a task

int bit_of(int plane) { return 8 * (plane % 4) + plane / 4; }

// `n` bits of one plane into words that have none of it yet: 0 where x <= 0, else 1.
BITCYCLE_INLINE void add_plane_body(const float* __restrict x, long n, uint32_t bit,
                                    uint32_t* __restrict words) {
  for (long m = 0; m < n; ++m) words[m] |= x[m] <= 0.0f ? 0u : bit;
}
BITCYCLE_FOR_EACH_ISA(add_plane, (const float* x, long n, uint32_t bit, uint32_t* words),
                      (x, n, bit, words))

// The same of max(x, 0), which it writes to `out`; a NaN stays one.
BITCYCLE_INLINE void relu_plane_body(const float* __restrict x, long n, uint32_t bit,
                                     uint32_t* __restrict words, float* __restrict out) {
  for (long m = 0; m < n; ++m) {
    words[m] |= x[m] <= 0.0f ? 0u : bit;
    out[m] = x[m] < 0.0f ? 0.0f : x[m];
  }
}
BITCYCLE_FOR_EACH_ISA(relu_plane,
                      (const float* x, long n, uint32_t bit, uint32_t* words, float* out),
                      (x, n, bit, words, out))

BITCYCLE_INLINE void keep_plane_body(const uint32_t* __restrict words, long n, uint32_t bit,
                                     const float* __restrict g, bool is_constant,
                                     float* __restrict out) {
  if (is_constant) {
    const float value = *g;
    for (long m = 0; m < n; ++m) out[m] = words[m] & bit ? value : 0.0f;
    return;
  }
  for (long m = 0; m < n; ++m) out[m] = words[m] & bit ? g[m] : 0.0f;
}
BITCYCLE_FOR_EACH_ISA(keep_plane,
                      (const uint32_t* words, long n, uint32_t bit, const float* g,
                       bool is_constant, float* out),
                      (words, n, bit, g, is_constant, out))

// Calls body(plane, begin, length, first element) for the part of each plane that a task covers;
// the last plane may end early.
template <typename Body>
void for_each_plane(long task, long num_words, long count, const Body& body) {
  const long begin = task * WORDS, length = std::min(WORDS, num_words - begin);
  for (int plane = 0; plane < PLANES; ++plane) {
    const long first = plane * num_words + begin;
    body(plane, begin, std::clamp(count - first, 0L, length), first);
  }
}

BITCYCLE_INLINE void pack_pairs_body(const uint8_t* __restrict codes, long n,
                                     uint8_t* __restrict out) {
  for (long i = 0; i < n; ++i) out[i] = uint8_t((codes[2 * i] & 15) | (codes[2 * i + 1] << 4));
}
BITCYCLE_FOR_EACH_ISA(pack_pairs, (const uint8_t* codes, long n, uint8_t* out), (codes, n, out))

BITCYCLE_INLINE void unpack_pairs_body(const uint8_t* __restrict packed, long n,
                                       uint8_t* __restrict out) {
  for (long i = 0; i < n; ++i) {
    out[2 * i] = packed[i] & 15;
    out[2 * i + 1] = packed[i] >> 4;
  }
}
BITCYCLE_FOR_EACH_ISA(unpack_pairs, (const uint8_t* packed, long n, uint8_t* out), (packed, n, out))

}  // namespace
}  // namespace bitcycle

using namespace bitcycle;

// (count + 31) / 32 words of x; the bits behind the last element are 1. out: max(x, 0), or null.
BITCYCLE_API void bitcycle_pack_positive(const float* x, int64_t count, uint32_t* words, float* out,
                                       int64_t num_threads) {
  const long num_words = (count + PLANES - 1) / PLANES;
  parallel_for((num_words + WORDS - 1) / WORDS, int(num_threads), [&](long task) {
    const long end = std::min(num_words, (task + 1) * WORDS);
    std::fill(words + task * WORDS, words + end, 0u);
    for_each_plane(task, num_words, count, [&](int plane, long begin, long n, long first) {
      const uint32_t bit = 1u << bit_of(plane);
      if (out)
        relu_plane(x + first, n, bit, words + begin, out + first);
      else
        add_plane(x + first, n, bit, words + begin);
      for (long m = begin + n; m < end; ++m) words[m] |= bit;
    });
  });
}

// g where the bit is 1, else 0; is_constant: g has one value for all elements.
BITCYCLE_API void bitcycle_keep_positive(const uint32_t* words, const float* g, int64_t is_constant,
                                       int64_t count, float* out, int64_t num_threads) {
  const long num_words = (count + PLANES - 1) / PLANES;
  parallel_for((num_words + WORDS - 1) / WORDS, int(num_threads), [&](long task) {
    for_each_plane(task, num_words, count, [&](int plane, long begin, long n, long first) {
      keep_plane(words + begin, n, 1u << bit_of(plane), is_constant ? g : g + first, is_constant,
                 out + first);
    });
  });
}

// (count + 1) / 2 bytes; the first of two codes is the low half.
BITCYCLE_API void bitcycle_pack_nibbles(const uint8_t* codes, int64_t count, uint8_t* out,
                                      int64_t num_threads) {
  const long pairs = count / 2;
  parallel_for((pairs + BYTES - 1) / BYTES, int(num_threads), [&](long task) {
    const long begin = task * BYTES;
    pack_pairs(codes + 2 * begin, std::min(BYTES, pairs - begin), out + begin);
  });
  if (count % 2) out[pairs] = codes[count - 1] & 15;
}

BITCYCLE_API void bitcycle_unpack_nibbles(const uint8_t* packed, int64_t count, uint8_t* out,
                                        int64_t num_threads) {
  const long pairs = count / 2;
  parallel_for((pairs + BYTES - 1) / BYTES, int(num_threads), [&](long task) {
    const long begin = task * BYTES;
    unpack_pairs(packed + begin, std::min(BYTES, pairs - begin), out + 2 * begin);
  });
  if (count % 2) out[count - 1] = packed[pairs] & 15;
}
