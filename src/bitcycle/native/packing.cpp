// What the backward pass reads, packed: codes of 4 bits two per byte, signs 32 per word. Both in
// memory order, the first in the lowest bits, as in `ops/packing.py`.
#include <algorithm>
#include <cstdint>

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#endif

#include "isa.h"
#include "parallel.h"

namespace bitcycle {
namespace {

constexpr int WORD_BITS = 32;       // of a word
constexpr long WORDS = 512;    // of a task
constexpr long BYTES = 16384;  // of a task

// ---- signs --------------------------------------------------------------------------------------

// The bits of n <= 32 elements: 0 where x <= 0, else 1 (also for a NaN); 1 behind the last.
// out: max(x, 0), in which a NaN stays one, or null.
uint32_t pack_word(const float* x, long n, float* out) {
  uint32_t word = n < WORD_BITS ? ~0u << n : 0;
  for (long i = 0; i < n; ++i) {
    word |= uint32_t(!(x[i] <= 0.0f)) << i;
    if (out) out[i] = x[i] < 0.0f ? 0.0f : x[i];
  }
  return word;
}

#if defined(__x86_64__) && defined(__GNUC__)
__attribute__((target(BITCYCLE_AVX512))) void pack_words_avx512(const float* x, long num_words,
                                                                uint32_t* words, float* out) {
  const __m512 zero = _mm512_setzero_ps();
  for (long m = 0; m < num_words; ++m, x += WORD_BITS) {
    const __m512 a = _mm512_loadu_ps(x), b = _mm512_loadu_ps(x + 16);
    words[m] = uint32_t(_mm512_cmp_ps_mask(a, zero, _CMP_NLE_UQ)) |
               uint32_t(_mm512_cmp_ps_mask(b, zero, _CMP_NLE_UQ)) << 16;
    if (!out) continue;
    _mm512_storeu_ps(out, _mm512_mask_mov_ps(a, _mm512_cmp_ps_mask(a, zero, _CMP_LT_OQ), zero));
    _mm512_storeu_ps(out + 16,
                     _mm512_mask_mov_ps(b, _mm512_cmp_ps_mask(b, zero, _CMP_LT_OQ), zero));
    out += WORD_BITS;
  }
}

__attribute__((target("avx2"))) void pack_words_avx2(const float* x, long num_words,
                                                     uint32_t* words, float* out) {
  const __m256 zero = _mm256_setzero_ps();
  for (long m = 0; m < num_words; ++m, x += WORD_BITS) {
    uint32_t word = 0;
    for (int i = 0; i < WORD_BITS; i += 8) {
      const __m256 a = _mm256_loadu_ps(x + i);
      word |= uint32_t(_mm256_movemask_ps(_mm256_cmp_ps(a, zero, _CMP_NLE_UQ))) << i;
      if (out)
        _mm256_storeu_ps(out + i, _mm256_andnot_ps(_mm256_cmp_ps(a, zero, _CMP_LT_OQ), a));
    }
    words[m] = word;
    if (out) out += WORD_BITS;
  }
}
#endif

void pack_words(const float* x, long num_words, uint32_t* words, float* out) {
#if defined(__x86_64__) && defined(__GNUC__)
  if (isa() == Isa::AVX512) return pack_words_avx512(x, num_words, words, out);
  if (isa() == Isa::AVX2) return pack_words_avx2(x, num_words, words, out);
#endif
  for (long m = 0; m < num_words; ++m)
    words[m] = pack_word(x + m * WORD_BITS, WORD_BITS, out ? out + m * WORD_BITS : nullptr);
}

// g where the bit is 1, else 0; is_constant: g has one value for all.
BITCYCLE_INLINE void keep_words_body(const uint32_t* __restrict words, long num_words,
                                     const float* __restrict g, bool is_constant,
                                     float* __restrict out) {
  for (long m = 0; m < num_words; ++m, out += WORD_BITS) {
    const uint32_t word = words[m];
    if (is_constant) {
      const float value = *g;
      for (int i = 0; i < WORD_BITS; ++i) out[i] = word >> i & 1 ? value : 0.0f;
    } else {
      for (int i = 0; i < WORD_BITS; ++i) out[i] = word >> i & 1 ? g[i] : 0.0f;
      g += WORD_BITS;
    }
  }
}
BITCYCLE_FOR_EACH_ISA(keep_words,
                      (const uint32_t* words, long num_words, const float* g, bool is_constant,
                       float* out),
                      (words, num_words, g, is_constant, out))

// ---- codes --------------------------------------------------------------------------------------

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
  const long whole = count / WORD_BITS, rest = count % WORD_BITS;
  parallel_for((whole + WORDS - 1) / WORDS, int(num_threads), [&](long task) {
    const long begin = task * WORDS, at = begin * WORD_BITS;
    pack_words(x + at, std::min(WORDS, whole - begin), words + begin, out ? out + at : nullptr);
  });
  if (rest)
    words[whole] = pack_word(x + whole * WORD_BITS, rest, out ? out + whole * WORD_BITS : nullptr);
}

// g where the bit is 1, else 0; is_constant: g has one value for all elements.
BITCYCLE_API void bitcycle_keep_positive(const uint32_t* words, const float* g, int64_t is_constant,
                                       int64_t count, float* out, int64_t num_threads) {
  const long whole = count / WORD_BITS;
  parallel_for((whole + WORDS - 1) / WORDS, int(num_threads), [&](long task) {
    const long begin = task * WORDS, at = begin * WORD_BITS;
    keep_words(words + begin, std::min(WORDS, whole - begin), is_constant ? g : g + at, is_constant,
               out + at);
  });
  for (long i = whole * WORD_BITS; i < count; ++i)
    out[i] = words[whole] >> (i % WORD_BITS) & 1 ? g[is_constant ? 0 : i] : 0.0f;
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
