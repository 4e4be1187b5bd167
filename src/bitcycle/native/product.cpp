#include "product.h"

#include <algorithm>
#include <cstring>

#include "isa.h"

namespace bitcycle {
namespace {

constexpr int WIDTH = 2 * COLUMNS;

BITCYCLE_INLINE void finish_tile_body(const int32_t* sums, int width, int rows, int columns,
                                 const float* scale, const float* slope, const float* row_sums,
                                 const float* const* constants, float* const* out, long at) {
  for (int r = 0; r < rows; ++r) {
    const float sum = row_sums[r];
    const float* constant = constants[r] + at;
    float* o = out[r] + at;
    const int32_t* s = sums + r * width;
    for (int c = 0; c < columns; ++c)
      o[c] = float(s[c]) * scale[c] + (sum * slope[c] + constant[c]);
  }
}
BITCYCLE_FOR_EACH_ISA(finish_tile,
                      (const int32_t* sums, int width, int rows, int columns, const float* scale,
                       const float* slope, const float* row_sums, const float* const* constants,
                       float* const* out, long at),
                      (sums, width, rows, columns, scale, slope, row_sums, constants, out, at))

BITCYCLE_INLINE void add_sums_body(const int32_t* sums, int n, double* totals) {
  for (int i = 0; i < n; ++i) totals[i] += sums[i];
}
BITCYCLE_FOR_EACH_ISA(add_sums, (const int32_t* sums, int n, double* totals), (sums, n, totals))

BITCYCLE_INLINE void finish_totals_body(const double* totals, int width, int rows, int columns,
                                        const float* scale, const float* slope,
                                        const float* row_sums, const float* const* constants,
                                        float* const* out, long at) {
  for (int r = 0; r < rows; ++r) {
    const float sum = row_sums[r];
    const float* constant = constants[r] + at;
    float* o = out[r] + at;
    for (int c = 0; c < columns; ++c)
      o[c] = float(totals[r * width + c] * double(scale[c])) + (sum * slope[c] + constant[c]);
  }
}
BITCYCLE_FOR_EACH_ISA(finish_totals,
                      (const double* totals, int width, int rows, int columns, const float* scale,
                       const float* slope, const float* row_sums, const float* const* constants,
                       float* const* out, long at),
                      (totals, width, rows, columns, scale, slope, row_sums, constants, out, at))

// A sum that 32 bits cannot hold: in parts, added as doubles.
void multiply_in_parts(const Arithmetic& how, Tile tile, int panels, int rows, int columns,
                       const Finish& f, long row, long at) {
  const int width = panels * COLUMNS;
  double totals[ROWS * WIDTH] = {};
  const long* taps = tile.taps;
  const long num_taps = tile.num_taps, num_steps = tile.num_steps;
  const long whole = std::max(1L, how.max_steps / num_steps);  // taps in a part
  for (long tap = 0; tap < num_taps; tap += whole)
    for (long step = 0; step < num_steps; step += how.max_steps) {
      std::memset(tile.sums, 0, sizeof(int32_t) * ROWS * width);
      long first = taps[tap] + step * tile.row_step;
      tile.num_taps = std::min(whole, num_taps - tap);
      tile.taps = step ? &first : taps + tap;
      tile.num_steps = std::min(how.max_steps, num_steps - step);
      if (how.is_words)
        tiles().words(tile, panels);
      else
        tiles().bytes(tile, panels, how.widen);
      for (int p = 0; p < panels; ++p)
        tile.panels[p] = static_cast<const char*>(tile.panels[p]) +
                         tile.num_taps * tile.num_steps * PANEL_BYTES;
      add_sums(tile.sums, ROWS * width, totals);
    }
  finish_totals(totals, width, rows, columns, f.scale + at, f.slope + at, f.row_sums + row,
                f.constants + row, f.out + row, at);
}

}  // namespace

Isa isa() {
  static const Isa found = [] {
#if defined(__x86_64__) && defined(__GNUC__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
      return Isa::AVX512;
    if (__builtin_cpu_supports("avx2")) return Isa::AVX2;
#endif
    return Isa::PORTABLE;
  }();
  return found;
}

Arithmetic choose_bytes_or_words(float a_levels, float b_half) {
  const long widen = long(32767 / (2 * a_levels * b_half));
  const bool is_words = tiles().has_narrow_sums && widen < 2;
  return {is_words, std::max(1L, widen), is_words ? 32768 : 16384};
}

Arithmetic folded() { return {true, 0, 255}; }

void multiply(const Arithmetic& how, const Rows& rows, const Columns& columns, const Finish& f) {
  const Tiles& set = tiles();
  const bool fits = rows.num_taps * rows.num_steps <= how.max_steps;
  alignas(64) int32_t sums[ROWS * WIDTH];
  for (long at = 0; at < columns.count;) {
    const long panel = at / COLUMNS;
    const int panels = columns.count - at > COLUMNS ? set.max_panels : 1;
    const int width = panels * COLUMNS;
    const int num_columns = int(std::min<long>(width, columns.count - at));
    for (long row = 0; row < rows.count; row += ROWS) {
      Tile tile;
      std::memcpy(tile.rows, rows.at + row, sizeof tile.rows);
      tile.taps = rows.taps, tile.num_taps = rows.num_taps;
      tile.num_steps = rows.num_steps, tile.row_step = rows.row_step;
      for (int p = 0; p < panels; ++p)
        tile.panels[p] = columns.panels + (panel + p) * columns.panel_bytes;
      tile.sums = sums;
      const int num_rows = int(std::min<long>(ROWS, rows.count - row));
      if (!fits) {
        multiply_in_parts(how, tile, panels, num_rows, num_columns, f, row, at);
        continue;
      }
      std::memset(sums, 0, sizeof(int32_t) * ROWS * width);
      if (how.is_words)
        set.words(tile, panels);
      else
        set.bytes(tile, panels, how.widen);
      finish_tile(sums, width, num_rows, num_columns, f.scale + at, f.slope + at,
                  f.row_sums + row, f.constants + row, f.out + row, at);
    }
    at += width;
  }
}

}  // namespace bitcycle
