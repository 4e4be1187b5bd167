#include "panels.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "isa.h"
#include "parallel.h"

namespace bitcycle {
namespace {

void put(bool is_words, char* out, long k, long column, int value) {
  if (is_words) {
    const int16_t v = int16_t(value);
    std::memcpy(out + ((k / 2 * COLUMNS + column) * 2 + k % 2) * 2, &v, 2);
  } else {
    out[(k / 4 * COLUMNS + column) * 4 + k % 4] = char(value);
  }
}

#if defined(__SSE2__)
__m128i load(const uint8_t* x) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(x)); }
void store(char* out, __m128i x) { _mm_storeu_si128(reinterpret_cast<__m128i*>(out), x); }

// Four columns of four codes, one of a step of four or two of two.
template <bool IS_WORDS>
void store_group(__m128i x, __m128i half, char* out) {
  if (!IS_WORDS) return store(out, _mm_sub_epi8(x, half));
  const __m128i zero = _mm_setzero_si128();
  const __m128i low = _mm_shuffle_epi32(_mm_unpacklo_epi8(x, zero), _MM_SHUFFLE(3, 1, 2, 0));
  const __m128i high = _mm_shuffle_epi32(_mm_unpackhi_epi8(x, zero), _MM_SHUFFLE(3, 1, 2, 0));
  store(out, _mm_sub_epi16(_mm_unpacklo_epi64(low, high), half));
  store(out + PANEL_BYTES, _mm_sub_epi16(_mm_unpackhi_epi64(low, high), half));
}

// Four columns, each contiguous, 16 k at a time: a transposition of groups of four.
template <bool IS_WORDS>
void pack_four_columns(const uint8_t* x, long column, long num_k, int half, char* out) {
  constexpr long STEP = IS_WORDS ? 2 * PANEL_BYTES : PANEL_BYTES;
  const __m128i shift = IS_WORDS ? _mm_set1_epi16(short(half)) : _mm_set1_epi8(char(half));
  for (long k = 0; k < num_k; k += 16, out += 4 * STEP) {
    const __m128i a = load(x + k), b = load(x + column + k);
    const __m128i c = load(x + 2 * column + k), d = load(x + 3 * column + k);
    const __m128i ab = _mm_unpacklo_epi32(a, b), cd = _mm_unpacklo_epi32(c, d);
    const __m128i AB = _mm_unpackhi_epi32(a, b), CD = _mm_unpackhi_epi32(c, d);
    store_group<IS_WORDS>(_mm_unpacklo_epi64(ab, cd), shift, out);
    store_group<IS_WORDS>(_mm_unpackhi_epi64(ab, cd), shift, out + STEP);
    store_group<IS_WORDS>(_mm_unpacklo_epi64(AB, CD), shift, out + 2 * STEP);
    store_group<IS_WORDS>(_mm_unpackhi_epi64(AB, CD), shift, out + 3 * STEP);
  }
}

// Four k of 16 columns, each k contiguous.
template <bool IS_WORDS>
void pack_four_rows(const uint8_t* x, long step, int half, char* out) {
  const __m128i shift = IS_WORDS ? _mm_set1_epi16(short(half)) : _mm_set1_epi8(char(half));
  const __m128i a = load(x), b = load(x + step), c = load(x + 2 * step), d = load(x + 3 * step);
  const __m128i ab = _mm_unpacklo_epi8(a, b), cd = _mm_unpacklo_epi8(c, d);
  const __m128i AB = _mm_unpackhi_epi8(a, b), CD = _mm_unpackhi_epi8(c, d);
  store_group<IS_WORDS>(_mm_unpacklo_epi16(ab, cd), shift, out);
  store_group<IS_WORDS>(_mm_unpackhi_epi16(ab, cd), shift, out + 16);
  store_group<IS_WORDS>(_mm_unpacklo_epi16(AB, CD), shift, out + 32);
  store_group<IS_WORDS>(_mm_unpackhi_epi16(AB, CD), shift, out + 48);
}
#endif

// The columns and the k that were packed in whole groups.
struct Done {
  long columns, k;
};

Done pack_groups(const Codes& c, int half, bool is_words, char* out) {
#if defined(__SSE2__)
  if (c.step == 1) {
    const Done done{c.num_columns / 4 * 4, c.K / 16 * 16};
    for (long i = 0; i < done.columns; i += 4)
      (is_words ? pack_four_columns<true> : pack_four_columns<false>)(
          c.x + i * c.column, c.column, done.k, half, out + 16 * i / 4);
    return done;
  }
  if (c.column == 1 && c.num_columns == COLUMNS) {
    const long num_k = c.K / 4 * 4, bytes = is_words ? 2 * PANEL_BYTES : PANEL_BYTES;
    for (long k = 0; k < num_k; k += 4)
      (is_words ? pack_four_rows<true> : pack_four_rows<false>)(c.x + k * c.step, c.step, half,
                                                                out + k / 4 * bytes);
    return {COLUMNS, num_k};
  }
#endif
  return {0, 0};
}

BITCYCLE_INLINE void sum_bytes_body(const uint8_t* x, long n, int64_t* sum) {
  for (long i = 0; i < n;) {
    uint32_t part = 0;
    for (const long end = std::min(n, i + 65536); i < end; ++i) part += x[i];
    *sum += part;
  }
}
BITCYCLE_FOR_EACH_ISA(sum_bytes, (const uint8_t* x, long n, int64_t* sum), (x, n, sum))

BITCYCLE_INLINE void sum_rows_body(const uint8_t* x, long step, long num_k, int64_t* sums) {
  for (long k = 0; k < num_k;) {
    uint32_t part[COLUMNS] = {};
    for (const long end = std::min(num_k, k + 65536); k < end; ++k)
      for (int c = 0; c < COLUMNS; ++c) part[c] += x[k * step + c];
    for (int c = 0; c < COLUMNS; ++c) sums[c] += part[c];
  }
}
BITCYCLE_FOR_EACH_ISA(sum_rows, (const uint8_t* x, long step, long num_k, int64_t* sums),
                      (x, step, num_k, sums))

void sum_columns(const Codes& c, int64_t* sums) {
  if (c.step == 1) {
    for (long i = 0; i < c.num_columns; ++i) sum_bytes(c.x + i * c.column, c.K, sums + i);
  } else if (c.column == 1 && c.num_columns == COLUMNS) {
    sum_rows(c.x, c.step, c.K, sums);
  } else {
    for (long k = 0; k < c.K; ++k)
      for (long i = 0; i < c.num_columns; ++i) sums[i] += c.x[i * c.column + k * c.step];
  }
}

// ---- folds ----------------------------------------------------------------------------------

// What the three passes of a fold do with 16 columns, for one instruction set.
//
// Largest values are compared as integers, in which NaN is larger than all others and so is not
// lost. Values in units are rounded half to even: they are below 2^22, so that the whole number is
// the lowest bits of 1.5 * 2^23 more.
constexpr float MAGIC = 12582912.0f;
constexpr int32_t MAGIC_BITS = 0x4B400000;

struct Folding {
  void (*find_largest)(const Codes& rows, const float* scale, const float* offset, float* out);
  void (*fold)(const Fold& f, char* out);  // pairs of k side by side
  void (*sum)(const Fold& f, long first, long last, int32_t* sums);  // at most 2^16 of k
};

void fold_row(const Fold& f, long k, int32_t* out) {
  const uint8_t* x = f.rows.x + k * f.rows.step;
  for (int c = 0; c < COLUMNS; ++c) {
    const float shifted = (f.scale[k] * float(x[c]) + f.offset[k]) * f.per_unit[c] + MAGIC;
    std::memcpy(out + c, &shifted, 4);
    out[c] -= MAGIC_BITS;
  }
}

const Folding PORTABLE_FOLDING{
    [](const Codes& rows, const float* scale, const float* offset, float* out) {
      int32_t largest[COLUMNS] = {};
      for (long k = 0; k < rows.K; ++k)
        for (int c = 0; c < COLUMNS; ++c) {
          const float v = std::fabs(scale[k] * float(rows.x[k * rows.step + c]) + offset[k]);
          int32_t bits;
          std::memcpy(&bits, &v, 4);
          largest[c] = std::max(largest[c], bits);
        }
      std::memcpy(out, largest, sizeof largest);
    },
    [](const Fold& f, char* out) {
      for (long k = 0; k < f.rows.K; k += 2, out += PANEL_BYTES) {
        int32_t even[COLUMNS], odd[COLUMNS] = {};
        fold_row(f, k, even);
        if (k + 1 < f.rows.K) fold_row(f, k + 1, odd);
        for (int c = 0; c < COLUMNS; ++c)
          even[c] = int32_t((uint32_t(even[c]) & 0xFFFF) | uint32_t(odd[c]) << 16);
        std::memcpy(out, even, sizeof even);
      }
    },
    [](const Fold& f, long first, long last, int32_t* sums) {
      for (long k = first; k < last; ++k) {
        int32_t row[COLUMNS];
        fold_row(f, k, row);
        for (int c = 0; c < COLUMNS; ++c) sums[c] += row[c];
      }
    }};

#if defined(__x86_64__) && defined(__GNUC__)

// Compilers convert codes one by one in such loops, so these are written out.
#define AVX2_CODE __attribute__((target("avx2")))
#define AVX512_CODE __attribute__((target("avx512f")))

AVX2_CODE inline __m256 values_avx2(const uint8_t* x, float scale, float offset) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(x));
  const __m256 codes = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
  return _mm256_add_ps(_mm256_mul_ps(codes, _mm256_set1_ps(scale)), _mm256_set1_ps(offset));
}

AVX2_CODE inline __m256i fold_avx2(const Fold& f, long k, int at) {
  const __m256 v = values_avx2(f.rows.x + k * f.rows.step + at, f.scale[k], f.offset[k]);
  const __m256 shifted =
      _mm256_add_ps(_mm256_mul_ps(v, _mm256_loadu_ps(f.per_unit + at)), _mm256_set1_ps(MAGIC));
  return _mm256_sub_epi32(_mm256_castps_si256(shifted), _mm256_set1_epi32(MAGIC_BITS));
}

AVX2_CODE void find_largest_avx2(const Codes& rows, const float* scale,
                                   const float* offset, float* out) {
  for (int at = 0; at < COLUMNS; at += 8) {
    __m256i largest = _mm256_setzero_si256();
    for (long k = 0; k < rows.K; ++k) {
      const __m256 v = values_avx2(rows.x + k * rows.step + at, scale[k], offset[k]);
      const __m256i magnitude =
          _mm256_and_si256(_mm256_castps_si256(v), _mm256_set1_epi32(0x7FFFFFFF));
      largest = _mm256_max_epi32(largest, magnitude);
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + at), largest);
  }
}

AVX2_CODE void fold_all_avx2(const Fold& f, char* out) {
  for (int at = 0; at < COLUMNS; at += 8)
    for (long k = 0; k < f.rows.K; k += 2) {
      const __m256i even = _mm256_and_si256(fold_avx2(f, k, at), _mm256_set1_epi32(0xFFFF));
      const __m256i odd =
          k + 1 < f.rows.K ? fold_avx2(f, k + 1, at) : _mm256_setzero_si256();
      auto* to = reinterpret_cast<__m256i*>(out + k / 2 * PANEL_BYTES + 4 * at);
      _mm256_storeu_si256(to, _mm256_or_si256(even, _mm256_slli_epi32(odd, 16)));
    }
}

AVX2_CODE void sum_folded_avx2(const Fold& f, long first, long last, int32_t* sums) {
  for (int at = 0; at < COLUMNS; at += 8) {
    __m256i sum = _mm256_setzero_si256();
    for (long k = first; k < last; ++k) sum = _mm256_add_epi32(sum, fold_avx2(f, k, at));
    auto* to = reinterpret_cast<__m256i*>(sums + at);
    _mm256_storeu_si256(to, _mm256_add_epi32(_mm256_loadu_si256(to), sum));
  }
}

const Folding AVX2_FOLDING{find_largest_avx2, fold_all_avx2, sum_folded_avx2};

AVX512_CODE inline __m512 values_avx512(const uint8_t* x, float scale, float offset) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x));
  const __m512 codes = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes));
  return _mm512_add_ps(_mm512_mul_ps(codes, _mm512_set1_ps(scale)), _mm512_set1_ps(offset));
}

AVX512_CODE inline __m512i fold_avx512(const Fold& f, long k, int at) {
  const __m512 v = values_avx512(f.rows.x + k * f.rows.step + at, f.scale[k], f.offset[k]);
  const __m512 shifted =
      _mm512_add_ps(_mm512_mul_ps(v, _mm512_loadu_ps(f.per_unit + at)), _mm512_set1_ps(MAGIC));
  return _mm512_sub_epi32(_mm512_castps_si512(shifted), _mm512_set1_epi32(MAGIC_BITS));
}

AVX512_CODE void find_largest_avx512(const Codes& rows, const float* scale,
                                   const float* offset, float* out) {
  for (int at = 0; at < COLUMNS; at += 16) {
    __m512i largest = _mm512_setzero_si512();
    for (long k = 0; k < rows.K; ++k) {
      const __m512 v = values_avx512(rows.x + k * rows.step + at, scale[k], offset[k]);
      const __m512i magnitude =
          _mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(0x7FFFFFFF));
      largest = _mm512_max_epi32(largest, magnitude);
    }
    _mm512_storeu_si512(reinterpret_cast<__m512i*>(out + at), largest);
  }
}

AVX512_CODE void fold_all_avx512(const Fold& f, char* out) {
  for (int at = 0; at < COLUMNS; at += 16)
    for (long k = 0; k < f.rows.K; k += 2) {
      const __m512i even = _mm512_and_si512(fold_avx512(f, k, at), _mm512_set1_epi32(0xFFFF));
      const __m512i odd =
          k + 1 < f.rows.K ? fold_avx512(f, k + 1, at) : _mm512_setzero_si512();
      auto* to = reinterpret_cast<__m512i*>(out + k / 2 * PANEL_BYTES + 4 * at);
      _mm512_storeu_si512(to, _mm512_or_si512(even, _mm512_slli_epi32(odd, 16)));
    }
}

AVX512_CODE void sum_folded_avx512(const Fold& f, long first, long last, int32_t* sums) {
  for (int at = 0; at < COLUMNS; at += 16) {
    __m512i sum = _mm512_setzero_si512();
    for (long k = first; k < last; ++k) sum = _mm512_add_epi32(sum, fold_avx512(f, k, at));
    auto* to = reinterpret_cast<__m512i*>(sums + at);
    _mm512_storeu_si512(to, _mm512_add_epi32(_mm512_loadu_si512(to), sum));
  }
}

const Folding AVX512_FOLDING{find_largest_avx512, fold_all_avx512, sum_folded_avx512};

const Folding& folding() {
  const Isa set = isa();
  return set == Isa::AVX512 ? AVX512_FOLDING : set == Isa::AVX2 ? AVX2_FOLDING : PORTABLE_FOLDING;
}

#else

const Folding& folding() { return PORTABLE_FOLDING; }

#endif

BITCYCLE_INLINE void sum_values_body(const Codes& rows, const float* scale, const float* offset,
                                     const double* weight, double* sums) {
  double total[COLUMNS] = {};
  for (long k = 0; k < rows.K; ++k) {
    const double s = weight[k] * scale[k], o = weight[k] * offset[k];
    const uint8_t* x = rows.x + k * rows.step;
    for (int c = 0; c < COLUMNS; ++c) total[c] += s * x[c] + o;
  }
  for (int c = 0; c < COLUMNS; ++c) sums[c] += total[c];
}
BITCYCLE_FOR_EACH_ISA(sum_values,
                      (const Codes& rows, const float* scale, const float* offset,
                       const double* weight, double* sums),
                      (rows, scale, offset, weight, sums))

}  // namespace

void pack_codes(const Codes& c, int half, bool is_words, char* out, int64_t* sums) {
  const Done done = pack_groups(c, half, is_words, out);
  const bool is_whole = done.columns == COLUMNS && done.k == round_up(c.K, 4);
  if (!is_whole) {
    for (long k = 0; k < round_up(c.K, 4); ++k)
      for (long i = k < done.k ? done.columns : 0; i < COLUMNS; ++i) {
        const bool exists = i < c.num_columns && k < c.K;
        put(is_words, out, k, i, exists ? c.x[i * c.column + k * c.step] - half : 0);
      }
  }
  std::fill_n(sums, COLUMNS, 0);
  sum_columns(c, sums);
  for (long i = 0; i < c.num_columns; ++i) sums[i] -= half * c.K;
}

Codes as_rows_of_16(const Codes& c) {
  if (c.column == 1 && c.step == COLUMNS && c.num_columns == COLUMNS) return c;
  uint8_t* copy = new_array<uint8_t>(SMALL, c.K * COLUMNS);
  if (c.num_columns < COLUMNS) std::memset(copy, 0, c.K * COLUMNS);
  copy_as_rows(c, copy);
  return {copy, 1, COLUMNS, COLUMNS, c.K};
}

namespace {

// 16 rows of 16 bytes as columns.
void transpose_square(const uint8_t* x, long row, uint8_t* out) {
#if defined(__SSE2__)
  __m128i a[16], b[16];
  for (int i = 0; i < 16; ++i)
    a[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x + i * row));
  for (int round = 0; round < 4; ++round) {  // rows i and i + 8 are shuffled, four times
    for (int i = 0; i < 8; ++i) {
      b[2 * i] = _mm_unpacklo_epi8(a[i], a[i + 8]);
      b[2 * i + 1] = _mm_unpackhi_epi8(a[i], a[i + 8]);
    }
    std::memcpy(a, b, sizeof a);
  }
  for (int i = 0; i < 16; ++i) _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i * 16), a[i]);
#else
  for (int i = 0; i < 16; ++i)
    for (int j = 0; j < 16; ++j) out[j * 16 + i] = x[i * row + j];
#endif
}

}  // namespace

void copy_as_rows(const Codes& c, uint8_t* rows) {
  if (c.column == 1) {
    for (long k = 0; k < c.K; ++k) std::memcpy(rows + k * COLUMNS, c.x + k * c.step, c.num_columns);
    return;
  }
  long first = 0;
  if (c.step == 1 && c.num_columns == COLUMNS)
    for (; first + COLUMNS <= c.K; first += COLUMNS)
      transpose_square(c.x + first, c.column, rows + first * COLUMNS);
  for (long k0 = first; k0 < c.K; k0 += 64)  // in squares, so that neither side jumps
    for (long i = 0; i < c.num_columns; ++i)
      for (long k = k0; k < std::min(c.K, k0 + 64); ++k)
        rows[k * COLUMNS + i] = c.x[i * c.column + k * c.step];
}

Fold find_units(const Codes& rows, const float* scale, const float* offset) {
  Fold f{rows, scale, offset, {}, {}};
  folding().find_largest(rows, scale, offset, f.unit);
  for (int c = 0; c < COLUMNS; ++c) {
    f.per_unit[c] = f.unit[c] > 1e-30f ? 32767.0f / f.unit[c] : 0.0f;
    f.unit[c] /= 32767.0f;
  }
  return f;
}

void pack_folded(const Fold& f, char* out) {
  const long K = f.rows.K, rest = round_up(K, 4) / 2 - divide_up(K, 2);
  folding().fold(f, out);
  std::memset(out + divide_up(K, 2) * PANEL_BYTES, 0, rest * PANEL_BYTES);
}

void add_folded(const Fold& f, long first_k, long num_k, int64_t* sums) {
  for (long k = first_k, last = first_k + num_k; k < last; k += 65536) {
    int32_t part[COLUMNS] = {};
    folding().sum(f, k, std::min(last, k + 65536), part);
    for (int c = 0; c < COLUMNS; ++c) sums[c] += part[c];
  }
}

void add_values(const Codes& rows, const float* scale, const float* offset, const double* weight,
                double* sums) {
  sum_values(rows, scale, offset, weight, sums);
}

void add_codes(const Codes& rows, int64_t* sums) { sum_rows(rows.x, rows.step, rows.K, sums); }

}  // namespace bitcycle
