// What Python calls to round to formats. Each call is one struct of fields of 8 bytes each, as in
// encode.cpp.
#pragma once
#include <cstdint>

namespace bitcycle {

enum Kind { FP8, MX, NVFP4 };

struct ElementsCall {
  const float* x;
  int64_t count;
  const int32_t* numbers;  // mantissa bits, least exponent, bits of the largest value
  const int32_t* key;      // two words for stochastic rounding, or null
  float* out;
  int64_t num_threads;
};

struct HadamardCall {
  const float* x;
  int64_t outer, n, inner;
  const float* signs;  // 16
  float* out;          // n padded to a multiple of 16
  int64_t num_threads;
};

struct BlocksCall {
  const float* x;
  int64_t outer, n0, mid, n1, inner;  // of the result
  int64_t b0, b1;                     // b1 = 0: one block
  int64_t kind, rounds_up, has_tensor_scale;
  const int32_t *numbers, *key;
  const float* signs;  // null for no Hadamard transform
  int64_t transform_outer, transform_n, transform_inner;  // of x
  float* out;
  int64_t num_threads;
};

}  // namespace bitcycle
