// Elements of float tensors: float32, or bfloat16, which is the upper half of a float32.
#pragma once
#include <cstdint>
#include <cstring>

#include "isa.h"

namespace bitcycle {

struct BFloat16 {
  uint16_t bits;
};

BITCYCLE_INLINE float load(const float& x) { return x; }

BITCYCLE_INLINE float load(const BFloat16& x) {
  const uint32_t bits = uint32_t(x.bits) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

BITCYCLE_INLINE void store(float value, float& out) { out = value; }

// To the nearest, half to even, as torch does. Not vcvtneps2bf16: to that a subnormal is 0.
BITCYCLE_INLINE void store(float value, BFloat16& out) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const uint32_t rounded = (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16;
  out.bits = uint16_t(value != value ? 0x7FC0u : rounded);
}

// A tensor to read.
struct Floats {
  const void* data;
  bool is_half;  // bfloat16
  template <typename T>
  const T* at() const {
    return static_cast<const T*>(data);
  }
  Floats from(long n) const {
    return {static_cast<const char*>(data) + n * (is_half ? 2 : 4), is_half};
  }
};

// A tensor to write.
struct Results {
  void* data;
  bool is_half;
  long element_bytes() const { return is_half ? 2 : 4; }
  char* at(long n) const { return static_cast<char*>(data) + n * element_bytes(); }
  Results from(long n) const { return {at(n), is_half}; }
};

}  // namespace bitcycle
