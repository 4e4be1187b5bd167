// Products of two matrices of codes: out = values(A) values(B)^T + bias, in float32.
//
//   value(A) = a_scale * a + a_offset               a in 0..a_levels, unsigned bytes
//   value(B) = b_scale[n] * b + b_offset[n]         b likewise; one scale, or one per column n
//
// With b' = b - half (signed) and o'[n] = b_offset[n] + half * b_scale[n] the sum over k is
//
//   a_scale b_scale[n] (A.B')  +  a_scale o'[n] sum(A)  +  a_offset (b_scale[n] sum(B') + K o'[n])
//
// whole-number sums, exact, and three terms: per row, per column, and of both.
#include "gemm.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "isa.h"
#include "parallel.h"
#include "product.h"

namespace bitcycle {
namespace {

constexpr long BLOCK_BYTES = 192 * 1024;  // of the first operand: stays in the second-level cache

BITCYCLE_INLINE void sum_bytes_body(const uint8_t* x, long n, float* sum) {
  int64_t total = 0;
  for (long i = 0; i < n;) {
    uint32_t part = 0;
    const long end = std::min(n, i + 65536);
    for (; i < end; ++i) part += x[i];
    total += part;
  }
  *sum = float(total);
}
BITCYCLE_FOR_EACH_ISA(sum_bytes, (const uint8_t* x, long n, float* sum), (x, n, sum))

// out[i] = (x0[i], x1[i], x2[i], x3[i]) - shift: four rows of bytes as one of groups.
BITCYCLE_INLINE void interleave_body(const uint8_t* x, long stride, long n, uint8_t shift,
                                     uint8_t* out) {
  const uint8_t *x0 = x, *x1 = x + stride, *x2 = x + 2 * stride, *x3 = x + 3 * stride;
  for (long i = 0; i < n; ++i) {
    out[4 * i] = uint8_t(x0[i] - shift);
    out[4 * i + 1] = uint8_t(x1[i] - shift);
    out[4 * i + 2] = uint8_t(x2[i] - shift);
    out[4 * i + 3] = uint8_t(x3[i] - shift);
  }
}
BITCYCLE_FOR_EACH_ISA(interleave,
                      (const uint8_t* x, long stride, long n, uint8_t shift, uint8_t* out),
                      (x, stride, n, shift, out))

BITCYCLE_INLINE void subtract_body(uint8_t* x, long n, uint8_t shift) {
  for (long i = 0; i < n; ++i) x[i] = uint8_t(x[i] - shift);
}
BITCYCLE_FOR_EACH_ISA(subtract, (uint8_t * x, long n, uint8_t shift), (x, n, shift))

BITCYCLE_INLINE void widen_bytes_body(const uint8_t* x, long n, int16_t* out) {
  for (long i = 0; i < n; ++i) out[i] = x[i];
}
BITCYCLE_FOR_EACH_ISA(widen_bytes, (const uint8_t* x, long n, int16_t* out), (x, n, out))

BITCYCLE_INLINE void add_groups_body(const int8_t* x, long steps, int32_t* sums) {
  for (long s = 0; s < steps; ++s, x += 64)
    for (int c = 0; c < COLUMNS; ++c)
      sums[c] += (x[4 * c] + x[4 * c + 1]) + (x[4 * c + 2] + x[4 * c + 3]);
}
BITCYCLE_FOR_EACH_ISA(add_groups, (const int8_t* x, long steps, int32_t* sums), (x, steps, sums))

// One panel of 16 columns from k = 0 on: bytes [step][16][4], or int16 [step][16][2].
void pack_panel(const Gemm& g, const uint8_t* b, long column, bool is_words, char* out,
                float* sums) {
  const long num = std::min<long>(COLUMNS, g.N - column), steps = (g.K + 3) / 4;
  const uint8_t half = uint8_t(*g.b_half);
  int32_t totals[COLUMNS] = {};
  uint8_t* bytes = is_words ? static_cast<uint8_t*>(workspace(SMALL, steps * PANEL_BYTES))
                            : reinterpret_cast<uint8_t*>(out);
  const uint8_t* x = b + column * g.b_row;
  const long whole = g.K / 4;
  if (g.b_row == 1 && num == COLUMNS) {
    for (long s = 0; s < whole; ++s)
      interleave(x + 4 * s * g.b_k, g.b_k, COLUMNS, half, bytes + s * PANEL_BYTES);
  } else if (g.b_k == 1) {
    for (long c = 0; c < num; ++c)
      for (long s = 0; s < whole; ++s)
        std::memcpy(bytes + s * PANEL_BYTES + 4 * c, x + c * g.b_row + 4 * s, 4);
    subtract(bytes, whole * PANEL_BYTES, half);
  } else {
    for (long s = 0; s < whole; ++s)
      for (long c = 0; c < num; ++c)
        for (long i = 0; i < 4; ++i)
          bytes[s * PANEL_BYTES + 4 * c + i] =
              uint8_t(x[c * g.b_row + (4 * s + i) * g.b_k] - half);
  }
  if (num < COLUMNS)
    for (long s = 0; s < whole; ++s)
      std::memset(bytes + s * PANEL_BYTES + 4 * num, 0, 4 * (COLUMNS - num));
  if (whole < steps) {
    uint8_t* last = bytes + whole * PANEL_BYTES;
    std::memset(last, 0, PANEL_BYTES);
    for (long c = 0; c < num; ++c)
      for (long k = 4 * whole; k < g.K; ++k)
        last[4 * c + k - 4 * whole] = uint8_t(x[c * g.b_row + k * g.b_k] - half);
  }
  add_groups(reinterpret_cast<int8_t*>(bytes), steps, totals);
  for (int c = 0; c < COLUMNS; ++c) sums[c] = float(totals[c]);
  if (!is_words) return;
  int16_t* words = reinterpret_cast<int16_t*>(out);  // a step of four is two of two
  for (long s = 0; s < steps; ++s)
    for (int c = 0; c < COLUMNS; ++c)
      for (int i = 0; i < 4; ++i)
        words[(2 * s + i / 2) * 32 + 2 * c + i % 2] = int8_t(bytes[s * PANEL_BYTES + 4 * c + i]);
}

// Rows [m0, m1) of the first operand in the form that tiles read.
struct Block {
  const Gemm& g;
  bool is_words;
  std::vector<const void*> at;
  std::vector<float> row_sums;
  long row_step;

  void load(const uint8_t* a, long m0, long m1) {
    const long count = m1 - m0, padded = round_up(count, ROWS);
    at.resize(padded), row_sums.resize(padded);
    const uint8_t* x = a + m0 * g.a_row;
    if (is_words)
      load_words(x, count);
    else if (g.a_k == 1)
      load_rows(x, count, m1 == g.M);
    else
      load_columns(x, count);
    for (long r = count; r < padded; ++r) at[r] = at[0];
  }

  void load_rows(const uint8_t* x, long count, bool is_last) {
    row_step = 4;
    for (long r = 0; r < count; ++r) {
      at[r] = x + r * g.a_row;
      sum_bytes(x + r * g.a_row, g.K, &row_sums[r]);
    }
    if (is_last && g.K % 4) {  // nothing may be read behind the last row
      const long first = count > ROWS ? count - ROWS : 0, row = round_up(g.K, 64);
      char* copy = static_cast<char*>(workspace(FIRST, ROWS * row));
      for (long r = first; r < count; ++r)
        at[r] = std::memcpy(copy + (r - first) * row, at[r], g.K);
    }
  }

  void load_columns(const uint8_t* x, long count) {
    const long steps = (g.K + 3) / 4, whole = g.K / 4;
    row_step = 4 * count;
    uint8_t* out = static_cast<uint8_t*>(workspace(FIRST, steps * row_step));
    if (g.a_row == 1) {
      for (long s = 0; s < whole; ++s)
        interleave(x + 4 * s * g.a_k, g.a_k, count, 0, out + s * row_step);
    } else {
      for (long s = 0; s < whole; ++s)
        for (long r = 0; r < count; ++r)
          for (long i = 0; i < 4; ++i)
            out[s * row_step + 4 * r + i] = x[r * g.a_row + (4 * s + i) * g.a_k];
    }
    if (whole < steps) {
      std::memset(out + whole * row_step, 0, row_step);
      for (long r = 0; r < count; ++r)
        for (long k = 4 * whole; k < g.K; ++k)
          out[whole * row_step + 4 * r + k - 4 * whole] = x[r * g.a_row + k * g.a_k];
    }
    std::vector<int64_t> sums(count);
    for (long s = 0; s < steps; ++s)
      for (long r = 0; r < count; ++r) {
        const uint8_t* q = out + s * row_step + 4 * r;
        sums[r] += (q[0] + q[1]) + (q[2] + q[3]);
      }
    for (long r = 0; r < count; ++r) at[r] = out + 4 * r, row_sums[r] = float(sums[r]);
  }

  void load_words(const uint8_t* x, long count) {
    const long row = round_up(g.K, 4);
    row_step = 4;
    int16_t* out = static_cast<int16_t*>(workspace(FIRST, count * row * 2));
    for (long r = 0; r < count; ++r) {
      int16_t* o = out + r * row;
      at[r] = o;
      if (g.a_k == 1) widen_bytes(x + r * g.a_row, g.K, o);
      for (long k = g.K; k < row; ++k) o[k] = 0;
    }
    if (g.a_k != 1)
      for (long k0 = 0; k0 < g.K; k0 += 32)  // in squares, so that neither side jumps
        for (long r = 0; r < count; ++r)
          for (long k = k0; k < std::min(g.K, k0 + 32); ++k)
            out[r * row + k] = x[r * g.a_row + k * g.a_k];
    for (long r = 0; r < count; ++r) {
      int64_t sum = 0;
      for (long k = 0; k < g.K; ++k) sum += out[r * row + k];
      row_sums[r] = float(sum);
    }
  }
};

struct Scales {
  std::vector<float> scale, slope, constant;

  Scales(const Gemm& g, const float* column_sums) : scale(g.N), slope(g.N), constant(g.N) {
    const float sa = *g.a_scale, oa = *g.a_offset, half = *g.b_half;
    for (long n = 0; n < g.N; ++n) {
      const float sb = g.b_scale[g.b_scales == 1 ? 0 : n];
      const float ob = g.b_offset[g.b_scales == 1 ? 0 : n] + half * sb;
      scale[n] = sa * sb;
      slope[n] = sa * ob;
      constant[n] = oa * (sb * column_sums[n] + float(g.K) * ob) + (g.bias ? g.bias[n] : 0.0f);
    }
  }
};

void multiply_rows(const Gemm& g, const Arithmetic& how, const Columns& columns,
                   const Scales& scales, const uint8_t* a, float* out, long m0, long m1) {
  static const long NO_OFFSET = 0;
  Block block{g, how.is_words, {}, {}, 0};
  block.load(a, m0, m1);
  std::vector<const float*> constants(block.at.size(), scales.constant.data());
  std::vector<float*> outs(block.at.size());
  for (long r = 0; r < m1 - m0; ++r) outs[r] = out + (m0 + r) * g.N;
  const Rows rows{block.at.data(), m1 - m0, &NO_OFFSET, 1,
                  round_up(g.K, 4) / how.group(), block.row_step};
  multiply(how, rows, columns,
           {scales.scale.data(), scales.slope.data(), block.row_sums.data(), constants.data(),
            outs.data()});
}

}  // namespace

void gemm(const Gemm& g) {
  if (g.M == 0 || g.N == 0) return;
  const Arithmetic how = choose_bytes_or_words(2 * *g.a_half - 1, *g.b_half);
  const long steps = round_up(g.K, 4) / how.group(), panel_bytes = steps * PANEL_BYTES;
  const long num_panels = (g.N + COLUMNS - 1) / COLUMNS;
  const long code_bytes = how.is_words ? 2 : 1;
  const long fitting = std::max(1L, BLOCK_BYTES / std::max<long>(1, g.K * code_bytes) / ROWS) * ROWS;

  auto pack = [&](const uint8_t* b, char* panels, float* sums, long p) {
    pack_panel(g, b, p * COLUMNS, how.is_words, panels + p * panel_bytes, sums + p * COLUMNS);
  };
  const long num_batches = g.num_outer * g.num_inner;
  if (num_batches > 1) {
    parallel_for(num_batches, int(g.num_threads), [&](long i) {
      char* panels = static_cast<char*>(workspace(SECOND, num_panels * panel_bytes));
      std::vector<float> sums(num_panels * COLUMNS);
      const long outer = i / g.num_inner, inner = i % g.num_inner;
      const uint8_t* a = g.a + outer * g.a_outer + inner * g.a_inner;
      const uint8_t* b = g.b + outer * g.b_outer + inner * g.b_inner;
      for (long p = 0; p < num_panels; ++p) pack(b, panels, sums.data(), p);
      const Scales scales(g, sums.data());
      for (long m = 0; m < g.M; m += fitting)
        multiply_rows(g, how, {panels, panel_bytes, g.N}, scales, a,
                      g.out + i * g.M * g.N, m, std::min<long>(g.M, m + fitting));
    });
    return;
  }
  char* panels = static_cast<char*>(workspace(SECOND, num_panels * panel_bytes));
  std::vector<float> sums(num_panels * COLUMNS);
  parallel_for(num_panels, int(g.num_threads), [&](long p) { pack(g.b, panels, sums.data(), p); });
  const Scales scales(g, sums.data());
  // enough blocks of rows for every thread, then of columns
  const long share = round_up((g.M + g.num_threads - 1) / g.num_threads, ROWS);
  const long rows = std::min(fitting, share), num_rows = (g.M + rows - 1) / rows;
  const long wanted = num_rows >= 2 * g.num_threads ? 1 : (2 * g.num_threads + num_rows - 1) / num_rows;
  const long parts = std::max(1L, std::min<long>(wanted, num_panels / 2));
  const long width = round_up((num_panels + parts - 1) / parts, 2);
  const long num_parts = (num_panels + width - 1) / width;
  parallel_for(num_rows * num_parts, int(g.num_threads), [&](long task) {
    const long m = task / num_parts * rows, p = task % num_parts * width, n = p * COLUMNS;
    const Columns columns{panels + p * panel_bytes, panel_bytes,
                          std::min<long>(g.N - n, width * COLUMNS)};
    Gemm part = g;
    part.out += n;
    Scales shifted = scales;
    shifted.scale.erase(shifted.scale.begin(), shifted.scale.begin() + n);
    shifted.slope.erase(shifted.slope.begin(), shifted.slope.begin() + n);
    shifted.constant.erase(shifted.constant.begin(), shifted.constant.begin() + n);
    multiply_rows(part, how, columns, shifted, g.a, part.out, m, std::min<long>(g.M, m + rows));
  });
}


namespace {

// |scale[k] * b[k][c] + offset[k]|, the largest over k of each of 16 columns.
BITCYCLE_INLINE void find_largest_body(const uint8_t* b, long b_k, long num_k, const float* scale,
                                       const float* offset, float* largest) {
  for (long k = 0; k < num_k; ++k) {
    const float s = scale[k], o = offset[k];
    const uint8_t* row = b + k * b_k;
    for (int c = 0; c < COLUMNS; ++c) {
      const float v = std::fabs(s * float(row[c]) + o);
      largest[c] = v > largest[c] ? v : largest[c];
    }
  }
}
BITCYCLE_FOR_EACH_ISA(find_largest,
                      (const uint8_t* b, long b_k, long num_k, const float* scale,
                       const float* offset, float* largest),
                      (b, b_k, num_k, scale, offset, largest))

BITCYCLE_INLINE void fold_panel_body(const uint8_t* b, long b_k, long num_k, const float* scale,
                                     const float* offset, const float* per_step, int16_t* out,
                                     int32_t* sums) {
  for (long k = 0; k < num_k; ++k) {
    const float s = scale[k], o = offset[k];
    const uint8_t* row = b + k * b_k;
    int16_t* to = out + k / 2 * 32 + k % 2;
    for (int c = 0; c < COLUMNS; ++c) {
      const int32_t f = int32_t(std::nearbyint((s * float(row[c]) + o) * per_step[c]));
      to[2 * c] = int16_t(f);
      sums[c] += f;
    }
  }
}
BITCYCLE_FOR_EACH_ISA(fold_panel,
                      (const uint8_t* b, long b_k, long num_k, const float* scale,
                       const float* offset, const float* per_step, int16_t* out, int32_t* sums),
                      (b, b_k, num_k, scale, offset, per_step, out, sums))

BITCYCLE_INLINE void widen_centred_body(const uint8_t* x, long n, int16_t shift, int16_t* out) {
  for (long i = 0; i < n; ++i) out[i] = int16_t(x[i] - shift);
}
BITCYCLE_FOR_EACH_ISA(widen_centred, (const uint8_t* x, long n, int16_t shift, int16_t* out),
                      (x, n, shift, out))

}  // namespace

// As `gemm`, where the second operand has a scale for each k, the axis that is summed over. Its
// values are rounded once more, to 16 bits with one scale per column, and multiplied as words:
//
//   value(B)[k][n] = b_scale[k] * b[k][n] + b_offset[k]  ~  step[n] * f[k][n],  |f| <= 32767
void gemm_folded(const Gemm& g) {
  if (g.M == 0 || g.N == 0) return;
  const Arithmetic how = folded();
  const long K4 = round_up(g.K, 4), steps = K4 / 2, panel_bytes = steps * PANEL_BYTES;
  const long num_panels = (g.N + COLUMNS - 1) / COLUMNS;
  char* panels = static_cast<char*>(workspace(SECOND, num_panels * panel_bytes));
  std::vector<float> scale(num_panels * COLUMNS), constant(num_panels * COLUMNS);
  const std::vector<float> slope(num_panels * COLUMNS);
  const float sa = *g.a_scale, half = *g.a_half, oa = *g.a_offset + half * sa;
  parallel_for(num_panels, int(g.num_threads), [&](long p) {
    const long first = p * COLUMNS, num = std::min<long>(COLUMNS, g.N - first);
    const uint8_t* b = g.b + first * g.b_row;
    long b_k = g.b_k;
    if (num < COLUMNS || g.b_row != 1) {  // a copy of whole rows
      uint8_t* copy = static_cast<uint8_t*>(workspace(SMALL, g.K * COLUMNS));
      std::memset(copy, 0, g.K * COLUMNS);
      for (long k = 0; k < g.K; ++k)
        for (long c = 0; c < num; ++c) copy[k * COLUMNS + c] = b[c * g.b_row + k * g.b_k];
      b = copy, b_k = COLUMNS;
    }
    float largest[COLUMNS] = {}, per_step[COLUMNS];
    int32_t sums[COLUMNS] = {};
    find_largest(b, b_k, g.K, g.b_scale, g.b_offset, largest);
    for (int c = 0; c < COLUMNS; ++c) per_step[c] = largest[c] > 0 ? 32767.0f / largest[c] : 0.0f;
    int16_t* panel = reinterpret_cast<int16_t*>(panels + p * panel_bytes);
    if (g.K < K4) std::memset(panel + g.K / 2 * 32, 0, panel_bytes - g.K / 2 * PANEL_BYTES);
    fold_panel(b, b_k, g.K, g.b_scale, g.b_offset, per_step, panel, sums);
    for (int c = 0; c < COLUMNS; ++c) {
      const float step = largest[c] / 32767.0f;
      scale[first + c] = sa * step;
      constant[first + c] = oa * step * float(sums[c]) + (g.bias && c < num ? g.bias[first + c] : 0.0f);
    }
  });
  const long fitting = std::max(1L, BLOCK_BYTES / (K4 * 2) / ROWS) * ROWS;
  const long share = round_up((g.M + g.num_threads - 1) / g.num_threads, ROWS);
  const long rows = std::min(fitting, share), num_rows = (g.M + rows - 1) / rows;
  parallel_for(num_rows, int(g.num_threads), [&](long task) {
    static const long NO_OFFSET = 0;
    const long m0 = task * rows, count = std::min<long>(rows, g.M - m0), padded = round_up(count, ROWS);
    int16_t* a = static_cast<int16_t*>(workspace(FIRST, count * K4 * 2));
    std::vector<const void*> at(padded, a);
    std::vector<float> none(padded);
    std::vector<const float*> constants(padded, constant.data());
    std::vector<float*> out(padded);
    for (long r = 0; r < count; ++r) {
      const uint8_t* x = g.a + (m0 + r) * g.a_row;
      int16_t* to = a + r * K4;
      if (g.a_k == 1)
        widen_centred(x, g.K, int16_t(half), to);
      else
        for (long k = 0; k < g.K; ++k) to[k] = int16_t(x[k * g.a_k] - int(half));
      for (long k = g.K; k < K4; ++k) to[k] = 0;
      at[r] = to, out[r] = g.out + (m0 + r) * g.N;
    }
    multiply(how, {at.data(), count, &NO_OFFSET, 1, steps, 4}, {panels, panel_bytes, g.N},
             {scale.data(), slope.data(), none.data(), constants.data(), out.data()});
  });
}

}  // namespace bitcycle

BITCYCLE_API int bitcycle_gemm(const bitcycle::Gemm* g) {
  try {
    bitcycle::gemm(*g);
    return 0;
  } catch (...) {
    return 1;
  }
}

BITCYCLE_API int bitcycle_gemm_folded(const bitcycle::Gemm* g) {
  try {
    bitcycle::gemm_folded(*g);
    return 0;
  } catch (...) {
    return 1;
  }
}

BITCYCLE_API const char* bitcycle_tiles(const char* name) {
  if (name && !bitcycle::choose_tiles(name)) return nullptr;
  return bitcycle::tiles().name;
}
