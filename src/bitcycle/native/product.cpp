#include "product.h"

#include <algorithm>
#include <cstring>

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#endif

#include "floats.h"
#include "isa.h"
#include "parallel.h"

namespace bitcycle {
namespace {

constexpr int MAX_WIDTH = 2 * COLUMNS;
constexpr double MAX_SUM = 2147483647.0;

void run(const Arithmetic& how, const Tile& tile, int num_panels) {
  if (how.is_words)
    tiles().words(tile, num_panels);
  else
    tiles().bytes(tile, num_panels, how.widen);
}

// A sum that 32 bits cannot hold: in parts, added as doubles.
BITCYCLE_INLINE void sum_in_parts(const Arithmetic& how, Tile tile, int num_panels,
                                  double* totals) {
  const int size = ROWS * num_panels * COLUMNS;
  const long* taps = tile.taps;
  const long num_taps = tile.num_taps, num_steps = tile.num_steps;
  const long whole = std::max(1L, how.max_steps / num_steps);  // taps in a part
  const long part = divide_up(num_steps, divide_up(num_steps, how.max_steps));
  for (int i = 0; i < size; ++i) totals[i] = 0;
  for (long tap = 0; tap < num_taps; tap += whole)
    for (long step = 0; step < num_steps; step += part) {
      const long first = taps[tap] + step * tile.row_step;
      tile.num_taps = std::min(whole, num_taps - tap);
      tile.taps = step ? &first : taps + tap;
      tile.num_steps = std::min(part, num_steps - step);
      run(how, tile, num_panels);
      for (int p = 0; p < num_panels; ++p)
        tile.panels[p] = static_cast<const char*>(tile.panels[p]) +
                         tile.num_taps * tile.num_steps * PANEL_BYTES;
      for (int i = 0; i < size; ++i) totals[i] += tile.sums[i];
    }
}

// The terms of a row's results.
struct RowTerms {
  const float *scale, *slope, *constant;
  float sum;
  RowTerms from(int c) const { return {scale + c, slope + c, constant + c, sum}; }
};

template <int NUM, bool HAS_SLOPE, typename Sum, typename T>
BITCYCLE_INLINE void finish_columns(const Sum* __restrict sums, const RowTerms& terms,
                                    T* __restrict out) {
  const float *__restrict scale = terms.scale, *__restrict slope = terms.slope;
  const float *__restrict constant = terms.constant, sum = terms.sum;
#pragma GCC unroll 1  // before it becomes vectors: gcc 12 leaves 16 scalar steps otherwise
  for (int c = 0; c < NUM; ++c)
    store(float(sums[c]) * scale[c] + (HAS_SLOPE ? sum * slope[c] + constant[c] : constant[c]),
          out[c]);
}

// Fewer than COLUMNS results, by copies of fixed sizes.
template <typename T>
BITCYCLE_INLINE void copy_results(const T* from, int num, T* to) {
  auto copy = [&](int n) {
    if (num & n) std::memcpy(to, from, n * sizeof(T)), from += n, to += n;
  };
  copy(8), copy(4), copy(2), copy(1);
}

// Sums are int32_t, or double where they were added in parts; T: float or BFloat16.
template <bool HAS_SLOPE, typename T, typename Sum>
BITCYCLE_INLINE void finish_rows(const Sum* sums, int width, const Rows& rows, long row,
                                 const Columns& columns, long at) {
  const int num_rows = int(std::min<long>(ROWS, rows.count - row));
  const int num = int(std::min<long>(width, columns.count - at));
  for (int r = 0; r < num_rows; ++r) {
    T* out = static_cast<T*>(rows.out[row + r]) + at;
    const Sum* s = sums + r * width;
    const RowTerms terms{columns.scale + at, HAS_SLOPE ? columns.slope + at : columns.scale + at,
                         rows.constants[row + r] + at, HAS_SLOPE ? rows.sums[row + r] : 0.0f};
    if (num == MAX_WIDTH) {
      finish_columns<MAX_WIDTH, HAS_SLOPE>(s, terms, out);
      continue;
    }
    const int whole = num / COLUMNS * COLUMNS;  // 0 or COLUMNS
    if (whole) finish_columns<COLUMNS, HAS_SLOPE>(s, terms, out);
    if (whole == num) continue;
    T last[COLUMNS];
    finish_columns<COLUMNS, HAS_SLOPE>(s + whole, terms.from(whole), last);
    copy_results(last, num - whole, out + whole);
  }
}

template <typename T, typename Sum>
BITCYCLE_INLINE void finish_as(const Sum* sums, int width, const Rows& rows, long row,
                               const Columns& columns, long at) {
  columns.slope ? finish_rows<true, T>(sums, width, rows, row, columns, at)
                : finish_rows<false, T>(sums, width, rows, row, columns, at);
}

template <typename Sum>
BITCYCLE_INLINE void finish(const Sum* sums, int width, const Rows& rows, long row,
                            const Columns& columns, long at) {
  rows.is_half ? finish_as<BFloat16>(sums, width, rows, row, columns, at)
               : finish_as<float>(sums, width, rows, row, columns, at);
}

// The sums of a tile to results. Those of a large tensor go to memory past the cache, which would
// only read what they overwrite.
using FinishTile = void (*)(const int32_t* sums, int width, const Rows& rows, long row,
                            const Columns& columns, long at);

#if defined(__x86_64__) && defined(__GNUC__)
// As `store` of a BFloat16.
__attribute__((target("avx512f"))) inline void store_lanes(__m512 value, __mmask16 lanes,
                                                           BFloat16* out) {
  const __m512i bits = _mm512_castps_si512(value);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i half = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
  half = _mm512_mask_mov_epi32(_mm512_srli_epi32(half, 16),
                               _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q),
                               _mm512_set1_epi32(0x7FC0));
  _mm512_mask_cvtepi32_storeu_epi16(out, lanes, half);
}

__attribute__((target("avx512f"))) inline void store_lanes(__m512 value, __mmask16 lanes,
                                                           float* out) {
  _mm512_mask_storeu_ps(out, lanes, value);
}

template <typename T>
__attribute__((target("avx512f"))) void finish_avx512(const int32_t* sums, int width,
                                                      const Rows& rows, long row,
                                                      const Columns& columns, long at) {
  const int num_rows = int(std::min<long>(ROWS, rows.count - row));
  for (int c = 0; c < width && at + c < columns.count; c += COLUMNS) {
    const long num = std::min<long>(COLUMNS, columns.count - at - c);
    const __mmask16 lanes = __mmask16((1u << num) - 1);
    const __m512 scale = _mm512_maskz_loadu_ps(lanes, columns.scale + at + c);
    const __m512 slope = columns.slope ? _mm512_maskz_loadu_ps(lanes, columns.slope + at + c)
                                       : _mm512_setzero_ps();
    for (int r = 0; r < num_rows; ++r) {
      __m512 terms = _mm512_maskz_loadu_ps(lanes, rows.constants[row + r] + at + c);
      if (columns.slope)
        terms = _mm512_add_ps(_mm512_mul_ps(_mm512_set1_ps(rows.sums[row + r]), slope), terms);
      const __m512 sum = _mm512_cvtepi32_ps(_mm512_loadu_si512(sums + r * width + c));
      T* out = static_cast<T*>(rows.out[row + r]) + at + c;
      const __m512 result = _mm512_add_ps(_mm512_mul_ps(sum, scale), terms);
      if (sizeof(T) == 4 && rows.is_streamed && num == COLUMNS &&
          reinterpret_cast<uintptr_t>(out) % 64 == 0)
        _mm512_stream_ps(reinterpret_cast<float*>(out), result);
      else
        store_lanes(result, lanes, out);
    }
  }
}

FinishTile find_finish(const Rows& rows) {
  if (isa() != Isa::AVX512) return finish<int32_t>;
  return rows.is_half ? finish_avx512<BFloat16> : finish_avx512<float>;
}
void end_stream() { _mm_sfence(); }  // other threads see the results
#else
FinishTile find_finish(const Rows&) { return finish<int32_t>; }
void end_stream() {}
#endif

BITCYCLE_INLINE void multiply_all_body(const Arithmetic& how, const Rows& rows,
                                       const Columns& columns) {
  const int max_panels = tiles().max_panels;
  const FinishTile finish_tile = find_finish(rows);
  const bool fits = rows.num_taps * rows.num_steps <= how.max_steps;
  alignas(64) int32_t sums[ROWS * MAX_WIDTH];
  Tile tile;
  tile.taps = rows.taps, tile.num_taps = rows.num_taps, tile.num_steps = rows.num_steps;
  tile.row_step = rows.row_step, tile.panel_gap = 0, tile.sums = sums;
  for (long at = 0; at < columns.count;) {
    const int num_panels = columns.count - at > COLUMNS ? max_panels : 1;
    const int width = num_panels * COLUMNS;
    for (long row = 0; row < rows.count; row += ROWS) {
      std::memcpy(tile.rows, rows.at + row, sizeof tile.rows);
      for (int p = 0; p < num_panels; ++p)
        tile.panels[p] = columns.panels + (at / COLUMNS + p) * columns.panel_bytes;
      if (fits) {
        run(how, tile, num_panels);
        finish_tile(sums, width, rows, row, columns, at);
      } else {
        alignas(64) double totals[ROWS * MAX_WIDTH];
        sum_in_parts(how, tile, num_panels, totals);
        finish(totals, width, rows, row, columns, at);
      }
    }
    at += width;
  }
  if (rows.is_streamed) end_stream();
}
BITCYCLE_FOR_EACH_ISA(multiply_all,
                      (const Arithmetic& how, const Rows& rows, const Columns& columns),
                      (how, rows, columns))

}  // namespace

Arithmetic choose_bytes_or_words(float a_half, float b_half) {
  const double pair = 2.0 * (2 * a_half - 1) * b_half;  // the largest sum of two products
  const long widen = long(32767 / pair);
  const bool is_words = tiles().has_narrow_sums && widen < 1;
  return {is_words, std::max(1L, widen), long(MAX_SUM / (is_words ? pair : 2 * pair))};
}

Arithmetic folded(float half) { return {true, 0, long(MAX_SUM / (2 * 32767.0 * half))}; }

void multiply(const Arithmetic& how, const Rows& rows, const Columns& columns) {
  multiply_all(how, rows, columns);
}

void Raised::lower(const std::vector<float>& results, Results out, const float* bias, long N) {
  for (size_t i = 0; i < results.size(); ++i) {
    const float value = results[i] * 0x1p-96f + (bias ? bias[i % N] : 0.0f);
    if (out.is_half)
      store(value, static_cast<BFloat16*>(out.data)[i]);
    else
      store(value, static_cast<float*>(out.data)[i]);
  }
}

Rows new_rows(long count) {
  const long padded = round_up(count, ROWS);
  char* memory = static_cast<char*>(workspace(ROW_ARRAYS, padded * 28));
  Rows rows{};
  rows.at = reinterpret_cast<const void**>(memory);
  rows.constants = reinterpret_cast<const float**>(memory + 8 * padded);
  rows.out = reinterpret_cast<void**>(memory + 16 * padded);
  rows.sums = reinterpret_cast<float*>(memory + 24 * padded);
  rows.count = count;
  return rows;
}

}  // namespace bitcycle
