// What the backward pass reads, packed: codes of 4 bits two per byte, masks of one bit 32 per
// word. Both in memory order, the first in the lowest bits, as in `ops/packing.py`.
#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#endif

#include "floats.h"
#include "isa.h"
#include "parallel.h"

namespace bitcycle {
namespace {

constexpr int WORD_BITS = 32;  // of a word
constexpr long WORDS = 1024;   // of a task
constexpr long BYTES = 16384;  // of a task

// ---- masks: a bit per element -------------------------------------------------------------------

// A tensor in memory order and its (count + 31) / 32 words; bits behind the last element are 1.
struct MaskCall {
  const void* x;         // float32 or bfloat16
  void* out;             // of the same type; may be x
  uint32_t* words;
  const uint8_t* drawn;  // 0 or 1 per element, of a dropout
  double factor;         // of what a dropout keeps
  int64_t is_bfloat16, count, num_threads;
};

inline bool is_positive(float x) { return !(x <= 0.0f); }  // also a NaN
inline float relu(float x) { return x < 0.0f ? 0.0f : x; }

// As whole numbers: 0 and from -inf (0xFF80) down to -0.0 (0x8000) are <= 0; above 0xFF80 are NaNs.
inline bool is_positive(BFloat16 x) { return int16_t(x.bits) > -128 && x.bits != 0; }
inline BFloat16 relu(BFloat16 x) { return x.bits > 0x8000 && x.bits <= 0xFF80 ? BFloat16{0} : x; }

inline float keep(float x, bool is_kept) { return is_kept ? x : 0.0f; }
inline BFloat16 keep(BFloat16 x, bool is_kept) { return {uint16_t(x.bits & -uint16_t(is_kept))}; }

template <typename T>
BITCYCLE_INLINE T multiply(T x, float factor) {
  T out;
  store(load(x) * factor, out);
  return out;
}

// The bits of n <= 32 elements: 0 where x <= 0, else 1 (also for a NaN); 1 behind the last.
// out: max(x, 0), in which a NaN stays one; may be x; or null.
template <typename T>
uint32_t pack_word(const T* x, long n, T* out) {
  uint32_t word = n < WORD_BITS ? ~0u << n : 0;
  for (long i = 0; i < n; ++i) {
    word |= uint32_t(is_positive(x[i])) << i;
    if (out) out[i] = relu(x[i]);
  }
  return word;
}

// g where the bit is 1, else 0, of n <= 32 elements; may be in place.
template <typename T>
void keep_word(uint32_t word, const T* g, long n, T* out) {
  for (long i = 0; i < n; ++i) out[i] = keep(g[i], word >> i & 1);
}

#if defined(__x86_64__) && defined(__GNUC__)
#define BITCYCLE_512 __attribute__((target(BITCYCLE_AVX512)))
#define BITCYCLE_256 __attribute__((target("avx2")))

BITCYCLE_512 void pack_words_avx512(const float* x, long num_words, uint32_t* words, float* out) {
  const __m512 zero = _mm512_setzero_ps();
  for (long m = 0; m < num_words; ++m, x += WORD_BITS) {
    const __m512 a = _mm512_loadu_ps(x), b = _mm512_loadu_ps(x + 16);
    words[m] = uint32_t(_mm512_cmp_ps_mask(a, zero, _CMP_NLE_UQ)) |
               uint32_t(_mm512_cmp_ps_mask(b, zero, _CMP_NLE_UQ)) << 16;
    if (!out) continue;
    _mm512_storeu_ps(out, _mm512_max_ps(zero, a));  // the second, if it is a NaN or -0.0
    _mm512_storeu_ps(out + 16, _mm512_max_ps(zero, b));
    out += WORD_BITS;
  }
}

BITCYCLE_512 void pack_words_avx512(const BFloat16* x, long num_words, uint32_t* words,
                                    BFloat16* out) {
  const __m512i low = _mm512_set1_epi16(-128), lowest = _mm512_set1_epi16(-32768);
  for (long m = 0; m < num_words; ++m, x += WORD_BITS) {
    const __m512i a = _mm512_loadu_si512(x);
    const __mmask32 is_above = _mm512_cmpgt_epi16_mask(a, low);
    words[m] = is_above & _mm512_test_epi16_mask(a, a);
    if (!out) continue;
    _mm512_storeu_si512(out,
                        _mm512_maskz_mov_epi16(is_above | _mm512_cmpeq_epi16_mask(a, lowest), a));
    out += WORD_BITS;
  }
}

// Whole loads, then masks: no processor prefetches what a masked load reads.
BITCYCLE_512 void keep_words_avx512(const uint32_t* words, long num_words, const float* g,
                                    float* out) {
  for (long m = 0; m < num_words; ++m, g += WORD_BITS, out += WORD_BITS) {
    __m512 a = _mm512_loadu_ps(g), b = _mm512_loadu_ps(g + 16);
    asm("" : "+v"(a), "+v"(b));  // or the compiler makes masked loads of them
    _mm512_storeu_ps(out, _mm512_maskz_mov_ps(__mmask16(words[m]), a));
    _mm512_storeu_ps(out + 16, _mm512_maskz_mov_ps(__mmask16(words[m] >> 16), b));
  }
}

BITCYCLE_512 void keep_words_avx512(const uint32_t* words, long num_words, const BFloat16* g,
                                    BFloat16* out) {
  for (long m = 0; m < num_words; ++m, g += WORD_BITS, out += WORD_BITS) {
    __m512i a = _mm512_loadu_si512(g);
    asm("" : "+v"(a));
    _mm512_storeu_si512(out, _mm512_maskz_mov_epi16(words[m], a));
  }
}

BITCYCLE_256 void pack_words_avx2(const float* x, long num_words, uint32_t* words, float* out) {
  const __m256 zero = _mm256_setzero_ps();
  for (long m = 0; m < num_words; ++m, x += WORD_BITS) {
    uint32_t word = 0;
    for (int i = 0; i < WORD_BITS; i += 8) {
      const __m256 a = _mm256_loadu_ps(x + i);
      word |= uint32_t(_mm256_movemask_ps(_mm256_cmp_ps(a, zero, _CMP_NLE_UQ))) << i;
      if (out) _mm256_storeu_ps(out + i, _mm256_max_ps(zero, a));
    }
    words[m] = word;
    if (out) out += WORD_BITS;
  }
}

BITCYCLE_256 void pack_words_avx2(const BFloat16* x, long num_words, uint32_t* words,
                                  BFloat16* out) {
  const __m256i low = _mm256_set1_epi16(-128), lowest = _mm256_set1_epi16(-32768);
  const __m256i zero = _mm256_setzero_si256();
  for (long m = 0; m < num_words; ++m, x += WORD_BITS) {
    __m256i passes[2];
    for (int i = 0; i < 2; ++i) {
      const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x) + i);
      const __m256i is_above = _mm256_cmpgt_epi16(a, low);
      passes[i] = _mm256_andnot_si256(_mm256_cmpeq_epi16(a, zero), is_above);
      if (!out) continue;
      const __m256i stays = _mm256_or_si256(is_above, _mm256_cmpeq_epi16(a, lowest));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out) + i, _mm256_and_si256(stays, a));
    }
    const __m256i bytes = _mm256_packs_epi16(passes[0], passes[1]);  // quarters 0 2 1 3
    words[m] = uint32_t(_mm256_movemask_epi8(_mm256_permute4x64_epi64(bytes, 0xD8)));
    if (out) out += WORD_BITS;
  }
}

BITCYCLE_256 void keep_words_avx2(const uint32_t* words, long num_words, const float* g,
                                  float* out) {
  const __m256i places = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  for (long m = 0; m < num_words; ++m, g += WORD_BITS, out += WORD_BITS)
    for (int i = 0; i < WORD_BITS; i += 8) {
      const __m256i bits = _mm256_and_si256(_mm256_set1_epi32(int(words[m] >> i)), places);
      const __m256 kept = _mm256_castsi256_ps(_mm256_cmpeq_epi32(bits, places));
      _mm256_storeu_ps(out + i, _mm256_and_ps(kept, _mm256_loadu_ps(g + i)));
    }
}

BITCYCLE_256 void keep_words_avx2(const uint32_t* words, long num_words, const BFloat16* g,
                                  BFloat16* out) {
  const __m256i places = _mm256_setr_epi16(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096,
                                           8192, 16384, -32768);
  for (long m = 0; m < num_words; ++m, g += WORD_BITS, out += WORD_BITS)
    for (int i = 0; i < 2; ++i) {
      const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(g) + i);
      const __m256i bits = _mm256_and_si256(_mm256_set1_epi16(short(words[m] >> 16 * i)), places);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out) + i,
                          _mm256_and_si256(_mm256_cmpeq_epi16(bits, places), a));
    }
}
#endif

template <typename T>
void pack_words(const T* x, long num_words, uint32_t* words, T* out) {
#if defined(__x86_64__) && defined(__GNUC__)
  if (isa() == Isa::AVX512) return pack_words_avx512(x, num_words, words, out);
  if (isa() == Isa::AVX2) return pack_words_avx2(x, num_words, words, out);
#endif
  for (long m = 0; m < num_words; ++m)
    words[m] = pack_word(x + m * WORD_BITS, WORD_BITS, out ? out + m * WORD_BITS : nullptr);
}

template <typename T>
void keep_words(const uint32_t* words, long num_words, const T* g, T* out) {
#if defined(__x86_64__) && defined(__GNUC__)
  if (isa() == Isa::AVX512) return keep_words_avx512(words, num_words, g, out);
  if (isa() == Isa::AVX2) return keep_words_avx2(words, num_words, g, out);
#endif
  for (long m = 0; m < num_words; ++m)
    keep_word(words[m], g + m * WORD_BITS, WORD_BITS, out + m * WORD_BITS);
}

// The bits of whole words of draws, each 0 or 1.
void pack_draws(const uint8_t* drawn, long num_words, uint32_t* words) {
  for (long m = 0; m < num_words; ++m) {
    uint32_t word = 0;
    for (int i = 0; i < WORD_BITS; i += 8, drawn += 8) {
      uint64_t eight = 0;
      for (int k = 0; k < 8; ++k) eight |= uint64_t(drawn[k]) << 8 * k;
      word |= uint32_t(eight * 0x0102040810204080u >> 56) << i;  // byte k to bit 56 + k
    }
    words[m] = word;
  }
}

// x * factor where the bit is 1, else x * 0, which may be -0.0 or NaN; may be in place.
template <typename T>
BITCYCLE_INLINE void multiply_words_body(const uint32_t* words, long num_words, const T* x,
                                         float factor, T* out) {
  for (long m = 0; m < num_words; ++m, x += WORD_BITS, out += WORD_BITS) {
    const uint32_t word = words[m];
    T made[WORD_BITS];
    for (int i = 0; i < WORD_BITS; ++i) made[i] = multiply(x[i], word >> i & 1 ? factor : 0.0f);
    std::memcpy(out, made, sizeof made);
  }
}
BITCYCLE_FOR_EACH_ISA(multiply_words,
                      (const uint32_t* words, long num_words, const float* x, float factor,
                       float* out),
                      (words, num_words, x, factor, out))
BITCYCLE_FOR_EACH_ISA(multiply_words,
                      (const uint32_t* words, long num_words, const BFloat16* x, float factor,
                       BFloat16* out),
                      (words, num_words, x, factor, out))

// Calls body(first word, number of words) for all whole words.
template <typename Body>
void for_words(const MaskCall& c, const Body& body) {
  const long whole = c.count / WORD_BITS;
  parallel_for((whole + WORDS - 1) / WORDS, int(c.num_threads), [&](long task) {
    body(task * WORDS, std::min(WORDS, whole - task * WORDS));
  });
}

template <typename T>
void pack_positive(const MaskCall& c) {
  const T* x = static_cast<const T*>(c.x);
  T* out = static_cast<T*>(c.out);
  for_words(c, [&](long m, long n) {
    pack_words(x + m * WORD_BITS, n, c.words + m, out ? out + m * WORD_BITS : nullptr);
  });
  const long rest = c.count % WORD_BITS, at = c.count - rest;
  if (rest) c.words[at / WORD_BITS] = pack_word(x + at, rest, out ? out + at : nullptr);
}

template <typename T>
void keep_positive(const MaskCall& c) {
  const T* x = static_cast<const T*>(c.x);
  T* out = static_cast<T*>(c.out);
  for_words(c, [&](long m, long n) {
    keep_words(c.words + m, n, x + m * WORD_BITS, out + m * WORD_BITS);
  });
  const long rest = c.count % WORD_BITS, at = c.count - rest;
  if (rest) keep_word(c.words[at / WORD_BITS], x + at, rest, out + at);
}

template <typename T>
void dropout(const MaskCall& c) {
  const T* x = static_cast<const T*>(c.x);
  T* out = static_cast<T*>(c.out);
  const float factor = float(c.factor);
  for_words(c, [&](long m, long n) {
    if (c.drawn) pack_draws(c.drawn + m * WORD_BITS, n, c.words + m);
    multiply_words(c.words + m, n, x + m * WORD_BITS, factor, out + m * WORD_BITS);
  });
  const long rest = c.count % WORD_BITS, at = c.count - rest;
  if (!rest) return;
  uint32_t& word = c.words[at / WORD_BITS];
  if (c.drawn) {
    word = ~0u << rest;
    for (long i = 0; i < rest; ++i) word |= uint32_t(c.drawn[at + i]) << i;
  }
  for (long i = 0; i < rest; ++i)
    out[at + i] = multiply(x[at + i], word >> i & 1 ? factor : 0.0f);
}

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

// The words of x: 0 where x <= 0, else 1, also for a NaN. out: max(x, 0), or null.
BITCYCLE_API void bitcycle_pack_positive(const MaskCall* c) {
  c->is_bfloat16 ? pack_positive<BFloat16>(*c) : pack_positive<float>(*c);
}

// x where the bit is 1, else 0.
BITCYCLE_API void bitcycle_keep_positive(const MaskCall* c) {
  c->is_bfloat16 ? keep_positive<BFloat16>(*c) : keep_positive<float>(*c);
}

// x * factor where the bit is 1, else x * 0. The words are those of `drawn`, or given if it is null.
BITCYCLE_API void bitcycle_dropout(const MaskCall* c) {
  c->is_bfloat16 ? dropout<BFloat16>(*c) : dropout<float>(*c);
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
