// Rows of codes times packed columns: the part that all products share.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "floats.h"
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

// What offsets add to a product of centred codes whose other operand was folded; total: the sum of
// folded values, scale: of the product of codes. Where all codes are 0 and so is the offset, the
// result is exactly 0: half * total * scale is rounded as the product itself.
inline float folded_constant(float half, double total, float scale, double offset) {
  return float(half * total) * scale + float(offset * total);
}

// Scales and offsets so small that their products would lose digits: a copy of them, times 2^96.
class Raised {
 public:
  Raised(const float*& scale, const float*& offset, long count) {
    float largest = 0;
    for (long i = 0; i < count; ++i)
      largest = std::max(largest, std::max(std::fabs(scale[i]), std::fabs(offset[i])));
    if (largest == 0 || largest >= 0x1p-64f) return;
    copy_.assign(scale, scale + count);
    copy_.insert(copy_.end(), offset, offset + count);
    for (float& x : copy_) x *= 0x1p96f;
    scale = copy_.data(), offset = scale + count;
  }
  bool is_raised() const { return !copy_.empty(); }

  // Calls multiply(results), and brings `count` raised results to where they belong, rounded once.
  // bias: one for each of N columns of raised results, or null; it has the size of the results.
  template <typename Multiply>
  void run(Results out, long count, const Multiply& multiply, const float* bias = nullptr,
           long N = 1) const {
    if (!is_raised()) return multiply(out);
    std::vector<float> results(count);
    multiply(Results{results.data(), false});
    lower(results, out, bias, N);
  }

 private:
  static void lower(const std::vector<float>& results, Results out, const float* bias, long N);
  std::vector<float> copy_;
};

// Arrays for `count` rows, in the workspace of the calling thread.
Rows new_rows(long count);

// The size of an array of columns' numbers.
constexpr long with_spare(long num_columns) { return num_columns + COLUMNS - 1; }

inline long round_up(long n, long to) { return (n + to - 1) / to * to; }
inline long divide_up(long n, long by) { return (n + by - 1) / by; }

}  // namespace bitcycle
