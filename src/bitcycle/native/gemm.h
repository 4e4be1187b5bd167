#pragma once
#include <cstdint>
#include <vector>

namespace bitcycle {

struct Gemm {
  const uint8_t *a, *b;
  const float *a_scale, *a_offset, *a_half;
  const float *b_scale, *b_offset, *b_half;
  const float* bias;  // or null
  float* out;
  int64_t num_outer, num_inner;  // batches, as a grid: (images, heads) of a transposed view
  int64_t a_outer, a_inner, b_outer, b_inner;
  int64_t M, N, K;
  int64_t a_row, a_k, b_row, b_k;  // the result is contiguous
  int64_t b_scales;  // N, or 1 for one scale
  int64_t num_threads;
};

void gemm(const Gemm& g);

}  // namespace bitcycle
