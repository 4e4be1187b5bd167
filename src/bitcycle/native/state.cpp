// Small updates of a layer's buffers, one call each: its clock, its flags and its running ranges.
#include <cmath>
#include <cstdint>
#include <cstring>

#include "isa.h"

namespace bitcycle {
namespace {

uint32_t hash(uint32_t x) {  // `hash32` of ops/noise.py with the key (0, 0), and its last step
  x *= 0xED5AD4BBu;
  x = (x ^ (x >> 15)) * 0xAC4C1B51u;
  x = (x ^ (x >> 14)) * 0x31848BABu;
  return x ^ (x >> 16);
}

}  // namespace
}  // namespace bitcycle

using namespace bitcycle;

// The key of a call's noise. clock: base, step, call.
BITCYCLE_API void bitcycle_noise_key(const int32_t* clock, int32_t* key) {
  const uint32_t word = uint32_t(clock[0]) + uint32_t(clock[1]) * 0x2C1B3C6Du +
                        uint32_t(clock[2]) * 0x297A2D39u;
  key[0] = int32_t(hash(word));
  key[1] = int32_t(hash(word + 0x9E3779B9u));
}

// Adds 1 to *number, which lies among the `count` numbers, and copies them.
BITCYCLE_API void bitcycle_count_up(int32_t* number, const int32_t* numbers, int64_t count,
                                  int32_t* copy) {
  *number = int32_t(uint32_t(*number) + 1);
  std::memcpy(copy, numbers, count * sizeof(int32_t));
}

// Turns *flag NaN if an end of a range is not finite.
BITCYCLE_API void bitcycle_flag_nonfinite(float* flag, const float* low, const float* high,
                                        int64_t count) {
  float sum = 0;
  for (long i = 0; i < count; ++i) sum += 0 * (high[i] - low[i]);
  *flag += sum;
}

// row: observations, lowest value, range; the new range counts by `momentum` or, if that is 0, as
// one of the mean. A range that is not finite changes nothing.
BITCYCLE_API void bitcycle_observe(float* row, const float* low, const float* high,
                                   double momentum) {
  const float range = *high - *low;
  if (!std::isfinite(range)) return;
  const float count = row[0] + 1;
  const float share = momentum == 0 ? 1 / count : count > 1 ? float(momentum) : 1.0f;
  const float ends[] = {*low, range};
  row[0] = count;
  for (int i = 0; i < 2; ++i) row[i + 1] += share * (ends[i] - row[i + 1]);
}
