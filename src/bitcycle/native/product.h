// Rows of codes times packed columns: the part that all products share.
#pragma once
#include <cstdint>

#include "tiles.h"

namespace bitcycle {

// How two operands are multiplied: chosen by the bits of the step.
struct Arithmetic {
  bool is_words;   // int16 codes, else bytes
  long widen;      // steps that 16-bit sums hold (bytes on AVX2)
  long max_steps;  // steps that 32-bit sums hold
  int group() const { return is_words ? 2 : 4; }  // codes of a step
  int code_bytes() const { return is_words ? 2 : 1; }
};

// Unsigned codes up to 2 * a_half - 1 times codes that are centred around b_half.
Arithmetic choose_bytes_or_words(float a_half, float b_half);

// Codes that are centred around `half` times values that were folded to 16 bits.
Arithmetic folded(float half);

// Row r starts at[r]. There are enough pointers (to anything readable) to fill the last tile.
struct Rows {
  const void** at;
  float* sums;              // of each row's codes; unused without a slope
  const float** constants;  // of each row: one for every column
  void** out;
  bool is_half;  // of the results: bfloat16
  long count;
  const long* taps;
  long num_taps, num_steps, row_step;
  bool is_streamed;         // results are many: they need not stay in the cache
};

constexpr long STREAM_BYTES = 2 << 20;  // of results from which they are

// Constants, scale and slope can be read up to a multiple of COLUMNS: see `with_spare`.
struct Columns {
  const char* panels;
  long panel_bytes;
  long count;
  const float *scale, *slope;  // slope may be null
};

// out[r][c] = scale[c] * (row . column) + (sums[r] * slope[c] + constants[r][c])
void multiply(const Arithmetic& how, const Rows& rows, const Columns& columns);

// Arrays for `count` rows, in the workspace of the calling thread.
Rows new_rows(long count);

// The size of an array of columns' numbers.
constexpr long with_spare(long num_columns) { return num_columns + COLUMNS - 1; }

inline long round_up(long n, long to) { return (n + to - 1) / to * to; }
inline long divide_up(long n, long by) { return (n + by - 1) / by; }

}  // namespace bitcycle
