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
  int64_t num_batches, a_batch, b_batch, out_batch;
  int64_t M, N, K;
  int64_t a_row, a_k, b_row, b_k, out_row;
  int64_t b_scales;  // N, or 1 for one scale
  int64_t num_threads;
};

void gemm(const Gemm& g);

}  // namespace bitcycle
