#pragma once
#include <cstdint>

#include "floats.h"

namespace bitcycle {

// out = values(A) values(B)^T + bias: (M, K) x (N, K)^T, for a grid of batches.
struct Gemm {
  const uint8_t *a, *b;
  const float *a_scale, *a_offset, *a_half;
  const float *b_scale, *b_offset, *b_half;
  const float* bias;  // or null
  void* out;          // contiguous
  void* packed;       // B as `pack` wrote it, or null
  int64_t num_outer, num_inner;  // batches: (images, heads) of a transposed view
  int64_t a_outer, a_inner, b_outer, b_inner;
  int64_t M, N, K;
  int64_t a_row, a_k, b_row, b_k;
  int64_t a_scales, b_scales;  // 1, M (of A, without batches), N (of B), or K in a folded product
  int64_t num_threads;
  int64_t out_is_half;  // bfloat16

  Results results() const { return {out, out_is_half != 0}; }
};

void gemm(const Gemm& g);
void pack(const Gemm& g);  // B into g.packed

// The same where B has a scale for each k, and A one or also one for each k. No batches.
void gemm_folded(const Gemm& g);
void pack_folded(const Gemm& g);

}  // namespace bitcycle
