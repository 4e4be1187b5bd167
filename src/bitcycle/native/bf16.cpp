// Float tensors rounded to bfloat16, one pass: to the last bit what `to_bf16` of
// `formats/rounding.py` computes. Finite values saturate, and a NaN or an infinity stays one.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <limits>

#include "isa.h"
#include "parallel.h"

namespace bitcycle {
namespace {

constexpr long CHUNK = 16384;  // elements of a task
constexpr uint32_t MAGNITUDE = 0x7FFFFFFF, INFINITE = 0x7F800000;
constexpr uint16_t HALF_MAGNITUDE = 0x7FFF, HALF_INFINITE = 0x7F80, HALF_NAN = 0x7FC0;

// top: the largest magnitude, as bits.
BITCYCLE_INLINE void round_floats_body(const uint32_t* __restrict x, long n,
                                       uint16_t* __restrict out, uint32_t* top) {
  uint32_t largest = 0;
  for (long i = 0; i < n; ++i) {
    const uint32_t bits = x[i], magnitude = bits & MAGNITUDE;
    largest = std::max(largest, magnitude);
    uint32_t rounded = (magnitude + 0x7FFFu + (magnitude >> 16 & 1u)) >> 16;
    rounded = magnitude < INFINITE && rounded == HALF_INFINITE ? HALF_INFINITE - 1u : rounded;
    rounded = magnitude > INFINITE ? HALF_NAN : rounded;
    out[i] = uint16_t(bits >> 16 & 0x8000u | rounded);
  }
  *top = largest;
}
BITCYCLE_FOR_EACH_ISA(round_floats,
                      (const uint32_t* x, long n, uint16_t* out, uint32_t* top), (x, n, out, top))

BITCYCLE_INLINE void find_top_body(const uint16_t* x, long n, uint16_t* top) {
  uint16_t largest = 0;
  for (long i = 0; i < n; ++i) largest = std::max<uint16_t>(largest, x[i] & HALF_MAGNITUDE);
  *top = largest;
}
BITCYCLE_FOR_EACH_ISA(find_top, (const uint16_t* x, long n, uint16_t* top), (x, n, top))

}  // namespace
}  // namespace bitcycle

using namespace bitcycle;

struct Bf16Call {
  const void* x;
  int64_t is_half;  // x is bfloat16 already: nothing is written
  int64_t count;
  uint16_t* out;
  float* flag;  // turns NaN if an element is not finite; or null
  int64_t num_threads;
};

BITCYCLE_API void bitcycle_to_bf16(const Bf16Call* call) {
  std::atomic<bool> is_finite{true};
  parallel_for((call->count + CHUNK - 1) / CHUNK, int(call->num_threads), [&](long task) {
    const long at = task * CHUNK, n = std::min<long>(CHUNK, call->count - at);
    bool fits;
    if (call->is_half) {
      uint16_t top;
      find_top(static_cast<const uint16_t*>(call->x) + at, n, &top);
      fits = top < HALF_INFINITE;
    } else {
      uint32_t top;
      round_floats(static_cast<const uint32_t*>(call->x) + at, n, call->out + at, &top);
      fits = top < INFINITE;
    }
    if (!fits) is_finite = false;
  });
  if (call->flag && !is_finite) *call->flag = std::numeric_limits<float>::quiet_NaN();
}
