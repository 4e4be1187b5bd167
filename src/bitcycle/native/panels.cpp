#include "panels.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
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

// Compared as whole numbers, in which NaN is larger than all others and so is not lost.
BITCYCLE_INLINE void find_largest_body(const Codes& rows, const float* scale, const float* offset,
                                       float* out) {
  int32_t largest[COLUMNS] = {}, bits[COLUMNS];
  float v[COLUMNS];
  for (long k = 0; k < rows.K; ++k) {
    const float s = scale[k], o = offset[k];
    const uint8_t* x = rows.x + k * rows.step;
    for (int c = 0; c < COLUMNS; ++c) v[c] = std::fabs(s * float(x[c]) + o);
    std::memcpy(bits, v, sizeof bits);
    for (int c = 0; c < COLUMNS; ++c) largest[c] = std::max(largest[c], bits[c]);
  }
  std::memcpy(out, largest, sizeof largest);
}
BITCYCLE_FOR_EACH_ISA(find_largest,
                      (const Codes& rows, const float* scale, const float* offset, float* out),
                      (rows, scale, offset, out))

// Rounded to the nearest whole number, half to even: |x| < 2^22.
BITCYCLE_INLINE int32_t round(float x) {
  const float shifted = x + 12582912.0f;  // 1.5 * 2^23: whole numbers are the lowest bits
  int32_t bits;
  std::memcpy(&bits, &shifted, 4);
  return bits - 0x4B400000;
}

BITCYCLE_INLINE void fold_row(const uint8_t* x, float scale, float offset, const float* per_unit,
                              int32_t* out) {
  for (int c = 0; c < COLUMNS; ++c) out[c] = round((scale * float(x[c]) + offset) * per_unit[c]);
}

BITCYCLE_INLINE void fold_all_body(const Fold& f, char* out) {
  float per_unit[COLUMNS];
  std::memcpy(per_unit, f.per_unit, sizeof per_unit);
  int32_t even[COLUMNS], odd[COLUMNS] = {}, both[COLUMNS];
  for (long k = 0; k < f.rows.K; k += 2, out += PANEL_BYTES) {
    const uint8_t* x = f.rows.x + k * f.rows.step;
    fold_row(x, f.scale[k], f.offset[k], per_unit, even);
    if (k + 1 < f.rows.K)
      fold_row(x + f.rows.step, f.scale[k + 1], f.offset[k + 1], per_unit, odd);
    else
      std::memset(odd, 0, sizeof odd);
    for (int c = 0; c < COLUMNS; ++c)
      both[c] = int32_t((uint32_t(even[c]) & 0xFFFF) | uint32_t(odd[c]) << 16);
    std::memcpy(out, both, sizeof both);
  }
}
BITCYCLE_FOR_EACH_ISA(fold_all, (const Fold& f, char* out), (f, out))

BITCYCLE_INLINE void sum_folded_body(const Fold& f, long first, long num_k, int64_t* sums) {
  float per_unit[COLUMNS];
  std::memcpy(per_unit, f.per_unit, sizeof per_unit);
  for (long k = first, last = first + num_k; k < last;) {
    int32_t part[COLUMNS] = {}, row[COLUMNS];
    for (const long end = std::min(last, k + 65536); k < end; ++k) {
      fold_row(f.rows.x + k * f.rows.step, f.scale[k], f.offset[k], per_unit, row);
      for (int c = 0; c < COLUMNS; ++c) part[c] += row[c];
    }
    for (int c = 0; c < COLUMNS; ++c) sums[c] += part[c];
  }
}
BITCYCLE_FOR_EACH_ISA(sum_folded, (const Fold& f, long first, long num_k, int64_t* sums),
                      (f, first, num_k, sums))

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
  if (c.column == 1 && c.num_columns == COLUMNS) return c;
  uint8_t* copy = new_array<uint8_t>(SMALL, c.K * COLUMNS);
  std::memset(copy, 0, c.K * COLUMNS);
  for (long k0 = 0; k0 < c.K; k0 += 64)  // in squares, so that neither side jumps
    for (long i = 0; i < c.num_columns; ++i)
      for (long k = k0; k < std::min(c.K, k0 + 64); ++k)
        copy[k * COLUMNS + i] = c.x[i * c.column + k * c.step];
  return {copy, 1, COLUMNS, COLUMNS, c.K};
}

Fold find_units(const Codes& rows, const float* scale, const float* offset) {
  Fold f{rows, scale, offset, {}, {}};
  find_largest(rows, scale, offset, f.unit);
  for (int c = 0; c < COLUMNS; ++c) {
    f.per_unit[c] = f.unit[c] > 1e-30f ? 32767.0f / f.unit[c] : 0.0f;
    f.unit[c] /= 32767.0f;
  }
  return f;
}

void pack_folded(const Fold& f, char* out) {
  const long K = f.rows.K, rest = round_up(K, 4) / 2 - divide_up(K, 2);
  fold_all(f, out);
  std::memset(out + divide_up(K, 2) * PANEL_BYTES, 0, rest * PANEL_BYTES);
}

void add_folded(const Fold& f, long first_k, long num_k, int64_t* sums) {
  sum_folded(f, first_k, num_k, sums);
}

void add_values(const Codes& rows, const float* scale, const float* offset, const double* weight,
                double* sums) {
  sum_values(rows, scale, offset, weight, sums);
}

void add_codes(const Codes& rows, int64_t* sums) { sum_rows(rows.x, rows.step, rows.K, sums); }

}  // namespace bitcycle
