#pragma once
#include <cstdint>

#include "floats.h"

namespace bitcycle {

// A convolution of channels-last maps; one-dimensional ones have a height of 1.
struct Conv {
  const uint8_t *a, *w, *e;  // codes: (N, H, W, C), (O, C / groups, kh, kw), (N, Ho, Wo, O)
  const float *a_scale, *a_offset, *a_half;
  const float *w_scale, *w_offset, *w_half;
  const float *e_scale, *e_offset, *e_half;
  const float* bias;  // or null
  void* out;          // maps; grad_weight: (O, C / groups, kh, kw) with the strides below
  int64_t N, H, W, C, Ho, Wo, O;
  int64_t kh, kw, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w, groups;
  int64_t w_o, w_c, w_h, w_w;  // strides of the weight
  int64_t w_scales;            // O, or 1 for one scale
  int64_t e_scales;            // N in grad_input, or 1 for one scale
  int64_t num_threads;
  int64_t out_is_half;        // bfloat16; not of grad_weight
  int64_t out_is_contiguous;  // maps are contiguous, else channels-last

  Results results() const { return {out, out_is_half != 0}; }
  bool is_depthwise() const { return groups > 1 && groups == C && groups == O; }
};

// A kernel of one tap knows no rows: the same with several of them joined, so that loops over a row
// are long. Maps of 4x4 pixels become 1x16.
inline Conv with_joined_rows(Conv c) {
  const bool is_product = c.kh * c.kw == 1 && c.stride_h * c.stride_w == 1 && c.Ho == c.H &&
                          c.Wo == c.W && !c.pad_h && !c.pad_w;
  if (!is_product) return c;
  long num = 1;
  for (long n = 2; n <= c.H && n * c.W <= 256; ++n)
    if (c.H % n == 0) num = n;
  c.H /= num, c.Ho /= num, c.W *= num, c.Wo *= num;
  return c;
}

void conv_output(const Conv& c);
void conv_grad_input(const Conv& c);
void conv_grad_weight(const Conv& c);

// The same for a kernel of one channel each (depthwise.cpp, depthwise_weight.cpp).
void depthwise_output(const Conv& c);
void depthwise_grad_input(const Conv& c);
void depthwise_grad_weight(const Conv& c);

}  // namespace bitcycle
