// Rows of codes times packed columns: the part that all products share.
#pragma once
#include <cstdint>

#include "tiles.h"

namespace bitcycle {

// How two operands are multiplied: chosen by the bits of the step.
struct Arithmetic {
  bool is_words;    // int16 codes, else bytes
  long widen;       // steps that 16-bit sums hold (bytes on AVX2)
  long max_steps;   // steps that 32-bit sums hold
  int group() const { return is_words ? 2 : 4; }    // codes of a step
};
Arithmetic choose_bytes_or_words(float a_levels, float b_half);
Arithmetic folded();  // 16-bit values times bytes: sums hold 255 steps

struct Rows {
  const void* const* at;  // of each row, then of enough rows (any) to fill the last tile
  long count;
  const long* taps;
  long num_taps, num_steps, row_step;
};

struct Columns {
  const char* panels;
  long panel_bytes;
  long count;
};

// out[r][c] = sums * scale[c] + (row_sums[r] * slope[c] + constants[r][c])
struct Finish {
  const float *scale, *slope;
  const float* row_sums;
  const float* const* constants;
  float* const* out;
};

void multiply(const Arithmetic& how, const Rows& rows, const Columns& columns, const Finish& finish);

inline long round_up(long n, long to) { return (n + to - 1) / to * to; }

}  // namespace bitcycle
