// Products of two matrices of codes: out = values(A) values(B)^T + bias, in float32, which may be
// rounded to bfloat16 at last.
//
//   value(A) = a_scale[m] * a + a_offset[m]         a in 0..a_levels, unsigned bytes
//   value(B) = b_scale[n] * b + b_offset[n]         b likewise
//
// with one scale, or one per row m and one per column n.
//
// With b' = b - half (signed) and o'[n] = b_offset[n] + half * b_scale[n] the sum over k is
//
//   a_scale b_scale[n] (A.B')  +  a_scale o'[n] sum(A)  +  a_offset (b_scale[n] sum(B') + K o'[n])
//
// whole-number sums, exact, and three terms: per row, per column, and of both. Tiles multiply by
// the scales of columns; where A has one per row, its scale and offset come last (`scale_rows`).
//
// A folded product has a scale for each k, the axis that is summed over. B's values are rounded
// once more, to 16-bit numbers f with one unit per column, and multiplied with a' = a - half:
//
//   value(B)[k][n] ~ unit[n] f[k][n]      sum = a_scale unit[n] (A'.F)  +  a_offset' unit[n] sum(F)
//
// Where A has a scale for each k as well, f takes it in, and the second term is summed from values.
#include "gemm.h"

#include <algorithm>
#include <cstring>

#include "isa.h"
#include "panels.h"
#include "parallel.h"
#include "product.h"

namespace bitcycle {
namespace {

constexpr long ROWS_BYTES = 192 * 1024;  // of the first operand: stays in the second-level cache
constexpr long OUT_BYTES = 512 * 1024;

// ---- the second operand ---------------------------------------------------------------------

// Panels, and what the terms of a column need; `packed_bytes` in products.py knows the size.
struct Second {
  int64_t* sums;      // of centred codes, or of folded values
  double* constants;  // of a folded product whose operands both have a scale for each k
  float* units;       // of folded values
  char* panels;
  long panel_bytes, num_panels;
};

long second_bytes(const Gemm& g, const Arithmetic& how) {
  const long columns = round_up(g.N, COLUMNS);
  return columns * 24 + columns / COLUMNS * panel_bytes(g.K, how.is_words);
}

Second lay_out(const Gemm& g, const Arithmetic& how, void* memory) {
  const long columns = round_up(g.N, COLUMNS);
  char* at = static_cast<char*>(memory);
  return {reinterpret_cast<int64_t*>(at), reinterpret_cast<double*>(at + columns * 8),
          reinterpret_cast<float*>(at + columns * 16), at + columns * 24,
          panel_bytes(g.K, how.is_words), columns / COLUMNS};
}

Codes panel_codes(const Gemm& g, const uint8_t* b, long panel) {
  const long first = panel * COLUMNS;
  return {b + first * g.b_row, g.b_row, g.b_k, std::min<long>(COLUMNS, g.N - first), g.K};
}

void pack_second(const Gemm& g, const Arithmetic& how, const uint8_t* b, const Second& second,
                 long num_threads) {
  const int half = int(*g.b_half);
  parallel_for(second.num_panels, int(num_threads), [&](long p) {
    pack_codes(panel_codes(g, b, p), half, how.is_words, second.panels + p * second.panel_bytes,
               second.sums + p * COLUMNS);
  });
}

// The codes of four panels whose columns lie side by side, each as rows of 16.
uint8_t* copy_panels(const Gemm& g, long panel) {
  const long first = panel * COLUMNS, num = std::min<long>(4 * COLUMNS, g.N - first);
  uint8_t* copy = new_array<uint8_t>(SMALL, 4 * g.K * COLUMNS);
  const uint8_t* x = g.b + first;
  if (num < 4 * COLUMNS) std::memset(copy, 0, 4 * g.K * COLUMNS);
  for (long k = 0; k < g.K; ++k, x += g.b_k)
    for (long c = 0; c < num; c += COLUMNS)
      std::memcpy(copy + (c * g.K + k * COLUMNS), x + c, std::min<long>(COLUMNS, num - c));
  return copy;
}

void fold_second(const Gemm& g, const Second& second) {
  const float *scale = g.b_scale, *offset = g.b_offset;
  double* weight = nullptr;  // what a column's value is multiplied with besides a's code
  if (g.a_scales > 1) {
    weight = new_array<double>(SUMS, g.K * 2);
    float* scaled = reinterpret_cast<float*>(weight + g.K);
    for (long k = 0; k < g.K; ++k) {
      weight[k] = double(g.a_offset[k]) + double(*g.a_half) * g.a_scale[k];
      scaled[k] = g.a_scale[k] * g.b_scale[k];
      scaled[g.K + k] = g.a_scale[k] * g.b_offset[k];
    }
    scale = scaled, offset = scaled + g.K;
  }
  // Four panels are a cache line of columns: their codes are copied together, line by line.
  const bool is_rowwise = g.b_row == 1;
  parallel_for(divide_up(second.num_panels, 4), int(g.num_threads), [&](long four) {
    uint8_t* copy = is_rowwise ? copy_panels(g, four * 4) : nullptr;
    for (long p = four * 4; p < std::min(second.num_panels, four * 4 + 4); ++p) {
      const Codes rows = copy ? Codes{copy + p % 4 * g.K * COLUMNS, 1, COLUMNS, COLUMNS, g.K}
                              : as_rows_of_16(panel_codes(g, g.b, p));
      const Fold fold = find_units(rows, scale, offset);
      pack_folded(fold, second.panels + p * second.panel_bytes);
      std::copy_n(fold.unit, COLUMNS, second.units + p * COLUMNS);
      std::fill_n(second.sums + p * COLUMNS, COLUMNS, 0);
      std::fill_n(second.constants + p * COLUMNS, COLUMNS, 0.0);
      if (weight)
        add_values(rows, g.b_scale, g.b_offset, weight, second.constants + p * COLUMNS);
      else
        add_folded(fold, 0, g.K, second.sums + p * COLUMNS);
    }
  });
}

// ---- the first operand ----------------------------------------------------------------------

BITCYCLE_INLINE void sum_row_body(const uint8_t* x, long n, float* sum) {
  int64_t total = 0;
  for (long i = 0; i < n;) {
    uint32_t part = 0;
    for (const long end = std::min(n, i + 65536); i < end; ++i) part += x[i];
    total += part;
  }
  *sum = float(total);
}
BITCYCLE_FOR_EACH_ISA(sum_row, (const uint8_t* x, long n, float* sum), (x, n, sum))

BITCYCLE_INLINE void widen_row_body(const uint8_t* x, long n, int shift, int16_t* out) {
  for (long i = 0; i < n; ++i) out[i] = int16_t(x[i] - shift);
}
BITCYCLE_FOR_EACH_ISA(widen_row, (const uint8_t* x, long n, int shift, int16_t* out),
                      (x, n, shift, out))

// Four rows of bytes as one of groups, or two as one of words, 16 columns at a time.
template <bool IS_WORDS>
BITCYCLE_INLINE void join_columns(const uint8_t* const* x, long at, long num, int shift,
                                  uint32_t* __restrict out) {
  const uint8_t *a = x[0] + at, *b = x[1] + at;
  const uint8_t *c = IS_WORDS ? a : x[2] + at, *d = IS_WORDS ? a : x[3] + at;
  for (long i = 0; i < num; ++i)
    out[at + i] = IS_WORDS ? (uint32_t(a[i] - shift) & 0xFFFF) | uint32_t(b[i] - shift) << 16
                           : uint32_t(a[i]) | uint32_t(b[i]) << 8 | uint32_t(c[i]) << 16 |
                                 uint32_t(d[i]) << 24;
}

// x[k * step + r] for r < n; the group of step s is in out[s * n ...]. none: stands for k >= K.
template <bool IS_WORDS>
BITCYCLE_INLINE void join_all(const uint8_t* x, long step, long K, long n, int shift,
                              const uint8_t* none, uint32_t* out) {
  constexpr long GROUP = IS_WORDS ? 2 : 4;
  for (long k = 0; k < round_up(K, 4); k += GROUP, out += n) {
    const uint8_t* from[GROUP];
    for (long i = 0; i < GROUP; ++i) from[i] = k + i < K ? x + (k + i) * step : none;
    long at = 0;
    for (; at + 16 <= n; at += 16) join_columns<IS_WORDS>(from, at, 16, shift, out);
    if (at < n && n >= 16)
      join_columns<IS_WORDS>(from, n - 16, 16, shift, out);  // some of them again
    else
      join_columns<IS_WORDS>(from, at, n - at, shift, out);
  }
}

BITCYCLE_INLINE void join_rows_body(const uint8_t* x, long step, long K, long n, int shift,
                                    bool is_words, const uint8_t* none, uint32_t* out) {
  is_words ? join_all<true>(x, step, K, n, shift, none, out)
           : join_all<false>(x, step, K, n, shift, none, out);
}
BITCYCLE_FOR_EACH_ISA(join_rows,
                      (const uint8_t* x, long step, long K, long n, int shift, bool is_words,
                       const uint8_t* none, uint32_t* out),
                      (x, step, K, n, shift, is_words, none, out))

BITCYCLE_INLINE void add_row_body(const uint8_t* x, long n, uint32_t* sums) {
  for (long i = 0; i < n; ++i) sums[i] += x[i];
}
BITCYCLE_FOR_EACH_ISA(add_row, (const uint8_t* x, long n, uint32_t* sums), (x, n, sums))

// Rows of a matrix in the form that tiles read; `shift` is subtracted from words.
struct First {
  const uint8_t* x;
  long row, k;  // strides
  long K;
  int shift;
  bool is_words, needs_sums;

  void load(Rows& rows, bool is_last) const {
    rows.num_steps = round_up(K, 4) / (is_words ? 2 : 4);
    if (k == 1 && (is_words || row >= 4))
      is_words ? widen(rows) : point(rows, is_last);
    else if (row == 1)
      join(rows);
    else
      copy(rows.count).load(rows, true);
    for (long r = rows.count; r < round_up(rows.count, ROWS); ++r) rows.at[r] = rows.at[0];
  }

 private:
  First copy(long count) const {
    const long length = round_up(K, 4);
    uint8_t* out = new_array<uint8_t>(SMALL, count * length);
    for (long r = 0; r < count; ++r)
      for (long i = 0; i < K; ++i) out[r * length + i] = x[r * row + i * k];
    return {out, length, 1, K, shift, is_words, needs_sums};
  }

  void point(Rows& rows, bool is_last) const {
    rows.row_step = 4;
    for (long r = 0; r < rows.count; ++r) {
      rows.at[r] = x + r * row;
      if (needs_sums) sum_row(x + r * row, K, rows.sums + r);
    }
    if (!is_last || K % 4 == 0) return;
    const long length = round_up(K, 4);  // nothing may be read behind the last row
    rows.at[rows.count - 1] =
        std::memcpy(new_array<char>(FIRST, length), rows.at[rows.count - 1], K);
  }

  void widen(Rows& rows) const {
    const long length = round_up(K, 4);
    int16_t* out = new_array<int16_t>(FIRST, rows.count * length);
    rows.row_step = 4;
    for (long r = 0; r < rows.count; ++r, out += length) {
      widen_row(x + r * row, K, shift, out);
      for (long i = K; i < length; ++i) out[i] = 0;
      rows.at[r] = out;
      if (needs_sums) sum_row(x + r * row, K, rows.sums + r);
    }
  }

  void join(Rows& rows) const {
    const long n = rows.count;
    uint32_t* out = new_array<uint32_t>(FIRST, rows.num_steps * n);
    uint8_t* none = new_array<uint8_t>(SMALL, n);  // rows behind the last k
    std::memset(none, shift, n);
    join_rows(x, k, K, n, shift, is_words, none, out);
    rows.row_step = 4 * n;
    for (long r = 0; r < n; ++r) rows.at[r] = out + r;
    if (needs_sums) sum_joined(rows);
  }

  void sum_joined(Rows& rows) const {
    const long n = rows.count;
    uint32_t* part = new_array<uint32_t>(SMALL, n);
    double* total = new_array<double>(SUMS, n);
    std::fill_n(total, n, 0.0);
    for (long i = 0; i < K;) {
      std::fill_n(part, n, 0);
      for (const long end = std::min(K, i + (1 << 24)); i < end; ++i) add_row(x + i * k, n, part);
      for (long r = 0; r < n; ++r) total[r] += part[r];
    }
    for (long r = 0; r < n; ++r) rows.sums[r] = float(total[r]);
  }
};

// ---- the product ----------------------------------------------------------------------------

// The terms of each column, in the workspace of the calling thread.
struct Terms {
  float *scale, *slope, *constant;
};

Terms new_terms(long N) {
  float* memory = new_array<float>(SCALES, with_spare(3 * N));
  return {memory, memory + N, memory + 2 * N};
}

Terms find_terms(const Gemm& g, const int64_t* sums) {
  const Terms terms = new_terms(g.N);
  const float sa = *g.a_scale, oa = *g.a_offset, half = *g.b_half;
  for (long n = 0; n < g.N; ++n) {
    const long s = g.b_scales == 1 ? 0 : n;
    const float sb = g.b_scale[s], ob = g.b_offset[s] + half * sb;
    terms.scale[n] = sa * sb;
    terms.slope[n] = sa * ob;
    terms.constant[n] =
        oa * (sb * float(sums[n]) + float(g.K) * ob) + (g.bias ? g.bias[n] : 0.0f);
  }
  return terms;
}

// Of a product whose rows are scaled at last: as if a_scale were 1 and a_offset 0. `row_slope` is
// what a row's offset is multiplied with.
struct RowScaling {
  Terms terms;
  float* row_slope;
};

RowScaling find_terms_of_rows(const Gemm& g, const int64_t* sums) {
  float* memory = new_array<float>(SCALES, with_spare(4 * g.N));
  const Terms terms{memory, memory + g.N, memory + 2 * g.N};
  float* row_slope = memory + 3 * g.N;
  const float half = *g.b_half;
  for (long n = 0; n < g.N; ++n) {
    const long s = g.b_scales == 1 ? 0 : n;
    const float sb = g.b_scale[s], ob = g.b_offset[s] + half * sb;
    terms.scale[n] = sb, terms.slope[n] = ob, terms.constant[n] = 0.0f;
    row_slope[n] = sb * float(sums[n]) + float(g.K) * ob;
  }
  return {terms, row_slope};
}

template <bool HAS_BIAS, typename T>
BITCYCLE_INLINE void scale_loop(const float* x, long n, float scale, float offset,
                                const float* slope, const float* bias, T* out) {
#pragma GCC ivdep  // out may be x itself
  for (long i = 0; i < n; ++i) {
    const float term = offset * slope[i] + (HAS_BIAS ? bias[i] : 0.0f);
    store(x[i] * scale + term, out[i]);
  }
}

template <typename T>
BITCYCLE_INLINE void scale_as(const float* x, long n, float scale, float offset,
                              const float* slope, const float* bias, T* out) {
  bias ? scale_loop<true>(x, n, scale, offset, slope, bias, out)
       : scale_loop<false>(x, n, scale, offset, slope, bias, out);
}

BITCYCLE_INLINE void scale_row_body(const float* x, long n, float scale, float offset,
                                    const float* slope, const float* bias, Results out) {
  out.is_half ? scale_as(x, n, scale, offset, slope, bias, static_cast<BFloat16*>(out.data))
              : scale_as(x, n, scale, offset, slope, bias, static_cast<float*>(out.data));
}
BITCYCLE_FOR_EACH_ISA(scale_row,
                      (const float* x, long n, float scale, float offset, const float* slope,
                       const float* bias, Results out),
                      (x, n, scale, offset, slope, bias, out))

Terms find_folded_terms(const Gemm& g, const Second& second) {
  Terms terms = new_terms(g.N);
  const bool is_scaled = g.a_scales > 1;
  for (long n = 0; n < g.N; ++n) {
    const double unit = second.units[n], total = double(second.sums[n]);
    terms.scale[n] = float(is_scaled ? unit : *g.a_scale * unit);
    const float constant =
        is_scaled ? float(second.constants[n])
                  : folded_constant(*g.a_half, total, terms.scale[n], *g.a_offset * unit);
    terms.constant[n] = constant + (g.bias ? g.bias[n] : 0.0f);
  }
  terms.slope = nullptr;
  return terms;
}

// Rows [m0, m1) times the columns from `first` on.
void multiply_block(const Gemm& g, const Arithmetic& how, const First& whole, const Second& second,
                    const Terms& terms, Results out, long m0, long m1, long first, long count) {
  static const long NO_OFFSET = 0;
  First part = whole;
  part.x += m0 * part.row;
  Rows rows = new_rows(m1 - m0);
  rows.taps = &NO_OFFSET, rows.num_taps = 1, rows.is_half = out.is_half;
  part.load(rows, m1 == g.M);
  for (long r = 0; r < rows.count; ++r) {
    rows.constants[r] = terms.constant + first;
    rows.out[r] = out.at((m0 + r) * g.N + first);
  }
  multiply(how, rows,
           {second.panels + first / COLUMNS * second.panel_bytes, second.panel_bytes, count,
            terms.scale + first, terms.slope ? terms.slope + first : nullptr});
}

// Rows that are multiplied with all columns before the next ones are loaded.
long rows_of_block(const Gemm& g, const Arithmetic& how) {
  const long by_first = ROWS_BYTES / (g.K * how.code_bytes());
  const long by_out = OUT_BYTES / (g.results().element_bytes() * g.N);
  return std::max<long>(4, std::min(by_first, std::max<long>(by_out, 48)) / ROWS) * ROWS;
}

void multiply_alone(const Gemm& g, const Arithmetic& how, const First& first, const Second& second,
                    const Terms& terms, Results out) {
  const long block = rows_of_block(g, how);
  for (long m = 0; m < g.M; m += block)
    multiply_block(g, how, first, second, terms, out, m, std::min<long>(g.M, m + block), 0, g.N);
}

// Results of rows [m0, m1) and columns from `first` on, to their scales and their place.
void scale_rows(const Gemm& g, Results unscaled, const float* row_slope, long m0, long m1,
                long first, long count) {
  for (long m = m0; m < m1; ++m) {
    const long at = m * g.N + first;
    scale_row(reinterpret_cast<const float*>(unscaled.at(at)), count, g.a_scale[m], g.a_offset[m],
              row_slope + first, g.bias ? g.bias + first : nullptr, g.results().from(at));
  }
}

// Blocks of rows; where these are few, blocks of columns too. row_slope: for `scale_rows`, or null.
void multiply_together(const Gemm& g, const Arithmetic& how, const First& first,
                       const Second& second, const Terms& terms, Results out,
                       const float* row_slope = nullptr) {
  const long wanted = g.num_threads == 1 ? 1 : 2 * g.num_threads;
  const long share = g.M < 48 * g.num_threads ? g.M : divide_up(g.M, g.num_threads);
  const long rows = std::min(rows_of_block(g, how), round_up(share, ROWS));
  const long num_rows = divide_up(g.M, rows);
  const long parts = std::max(1L, std::min(divide_up(wanted, num_rows), second.num_panels / 2));
  const long width = round_up(divide_up(second.num_panels, parts), 2) * COLUMNS;
  const long num_parts = divide_up(g.N, width);
  parallel_for(num_rows * num_parts, int(g.num_threads), [&](long task) {
    const long m = task / num_parts * rows, n = task % num_parts * width;
    const long end = std::min<long>(g.M, m + rows), count = std::min<long>(g.N - n, width);
    multiply_block(g, how, first, second, terms, out, m, end, n, count);
    if (row_slope) scale_rows(g, out, row_slope, m, end, n, count);
  });
}

// One scale for each row of A, without batches.
void gemm_of_rows(const Gemm& g) {
  const Arithmetic how = choose_bytes_or_words(*g.a_half, *g.b_half);
  const First first{g.a, g.a_row, g.a_k, g.K, 0, how.is_words, true};
  const Second second = lay_out(g, how, workspace(SECOND, second_bytes(g, how)));
  pack_second(g, how, g.b, second, g.num_threads);
  const auto [terms, row_slope] = find_terms_of_rows(g, second.sums);
  const Results unscaled =
      g.out_is_half ? Results{new_array<float>(RESULTS, g.M * g.N), false} : g.results();
  multiply_together(g, how, first, second, terms, unscaled, row_slope);
}

}  // namespace

void pack(const Gemm& g) {
  const Arithmetic how = choose_bytes_or_words(*g.a_half, *g.b_half);
  pack_second(g, how, g.b, lay_out(g, how, g.packed), g.num_threads);
}

namespace {

void multiply_batches(const Gemm& g) {
  if (g.a_scales > 1) return gemm_of_rows(g);
  const Arithmetic how = choose_bytes_or_words(*g.a_half, *g.b_half);
  const First first{g.a, g.a_row, g.a_k, g.K, 0, how.is_words, true};
  const long num_batches = g.num_outer * g.num_inner;
  const bool is_shared = g.packed || num_batches == 1 || (g.b_outer == 0 && g.b_inner == 0);
  Second second{};
  if (is_shared) {
    void* memory = g.packed ? g.packed : workspace(SECOND, second_bytes(g, how));
    second = lay_out(g, how, memory);
    if (!g.packed) pack_second(g, how, g.b, second, g.num_threads);
  }
  auto batch = [&](long i, bool is_alone) {
    const long outer = i / g.num_inner, inner = i % g.num_inner;
    First a = first;
    a.x += outer * g.a_outer + inner * g.a_inner;
    Second b = second;
    if (!is_shared) {
      b = lay_out(g, how, workspace(SECOND, second_bytes(g, how)));
      pack_second(g, how, g.b + outer * g.b_outer + inner * g.b_inner, b,
                  is_alone ? 1 : g.num_threads);
    }
    const Terms terms = find_terms(g, b.sums);
    const Results out = g.results().from(i * g.M * g.N);
    is_alone ? multiply_alone(g, how, a, b, terms, out)
             : multiply_together(g, how, a, b, terms, out);
  };
  if (num_batches < g.num_threads || g.num_threads == 1)
    for (long i = 0; i < num_batches; ++i) batch(i, false);
  else
    parallel_for(num_batches, int(g.num_threads), [&](long i) { batch(i, true); });
}

void multiply_folded(const Gemm& g) {
  const Arithmetic how = folded(*g.a_half);
  const First first{g.a, g.a_row, g.a_k, g.K, int(*g.a_half), true, false};
  const Second second =
      lay_out(g, how, g.packed ? g.packed : workspace(SECOND, second_bytes(g, how)));
  if (!g.packed) fold_second(g, second);
  multiply_together(g, how, first, second, find_folded_terms(g, second), g.results());
}

// With the first operand raised if its values are tiny, or else the second one, unless that was
// packed as it is.
void in_range(void (*function)(const Gemm&), Gemm g) {
  auto multiply = [&](Results out) {
    g.out = out.data, g.out_is_half = out.is_half;
    function(g);
  };
  const long count = g.num_outer * g.num_inner * g.M * g.N;
  const Results out = g.results();
  const Raised a(g.a_scale, g.a_offset, g.a_scales);
  if (a.is_raised()) {
    const float* bias = g.bias;
    g.bias = nullptr;
    return a.run(out, count, multiply, bias, g.N);
  }
  if (g.packed || g.bias) return multiply(out);
  Raised(g.b_scale, g.b_offset, g.b_scales).run(out, count, multiply);
}

}  // namespace

void gemm(const Gemm& g) { in_range(multiply_batches, g); }
void gemm_folded(const Gemm& g) { in_range(multiply_folded, g); }

void pack_folded(const Gemm& g) {
  fold_second(g, lay_out(g, folded(128), g.packed));
}

}  // namespace bitcycle

namespace {

int call(void (*function)(const bitcycle::Gemm&), const bitcycle::Gemm* g) {
  try {
    function(*g);
    return 0;
  } catch (...) {
    return 1;
  }
}

}  // namespace

BITCYCLE_API int bitcycle_gemm(const bitcycle::Gemm* g) { return call(bitcycle::gemm, g); }
BITCYCLE_API int bitcycle_gemm_folded(const bitcycle::Gemm* g) {
  return call(bitcycle::gemm_folded, g);
}
BITCYCLE_API int bitcycle_pack(const bitcycle::Gemm* g) { return call(bitcycle::pack, g); }
BITCYCLE_API int bitcycle_pack_folded(const bitcycle::Gemm* g) {
  return call(bitcycle::pack_folded, g);
}
