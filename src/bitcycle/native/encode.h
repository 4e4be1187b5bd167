// Float tensors on affine grids (encode.cpp), for the calls that do more than that.
#pragma once
#include <cmath>
#include <cstdint>

#include "floats.h"

namespace bitcycle {

// A tensor's memory, with one range or grid for each channel.
struct Block {
  long outer, channels, inner;
};

enum Form { VALUES, CODES };  // float; uint8

// How a range becomes a grid.
enum Rule {
  FROM_LOW,   // the lowest value is on the grid
  WITH_ZERO,  // the range includes 0, which is on the grid
  SYMMETRIC,  // around 0, without the lowest code unless there are only two
  POWER       // the same with a step that is a power of two
};

inline bool is_symmetric(Rule rule) { return rule == SYMMETRIC || rule == POWER; }

inline float max_abs(float low, float high) {  // NaN if one of them is
  const float a = std::fabs(low), b = std::fabs(high);
  return a != a || a > b ? a : b;
}

// The lowest and highest value of each channel; NaN where it has one.
void find_ranges(Floats x, Block block, float* low, float* high, long num_threads);

// Ranges, grids, and values or codes of the rows of (1, rows, length), in one pass over memory.
// Arguments as below, but low and high are written.
void quantize_rows(Floats x, Block block, float levels, float floor, Rule rule, Form form,
                   void* out, float* low, float* high, float* scale, float* offset,
                   long num_threads);

// The grids of ranges, and values or codes on them. key: two words for stochastic rounding, or
// null. scale: 0 where codes mean the offset. offset: null if it is the lowest value.
void round_to_grids(Floats x, Block block, const float* low, const float* high, float levels,
                    float floor, Rule rule, const int32_t* key, Form form, void* out, float* scale,
                    float* offset, long num_threads);

}  // namespace bitcycle
