// A layer's product in one call for each direction (layer.cpp). Fields have 8 bytes each, in the
// order in which native/layer.py packs them.
#pragma once
#include <cstdint>

namespace bitcycle {

// What the shapes of the operands fix: packed once for all calls with these shapes.
struct LayerShape {
  int64_t is_convolution;
  int64_t second;               // the role of w, as in the control tensor
  int64_t rule, is_stochastic;  // of the grids; of the error's rounding
  double floor;                 // the smallest step
  int64_t a_size, w_size, e_size;
  int64_t w_outer, w_channels, w_inner;  // w's memory, with a range for each channel
  int64_t a_is_packed, w_is_packed;      // kept two codes per byte
  // Codes are turned from (images, channels, pixels) to channels-last; 0 images: they are.
  int64_t a_images, a_channels, a_pixels;
  int64_t e_images, e_channels, e_pixels;
  // A product of matrices, a (M, K) w (N, K)^T, for a grid of batches.
  int64_t num_outer, num_inner, a_outer, a_inner, w_outer_step, w_inner_step;
  int64_t M, N, K, a_row, a_k, w_row, w_k;
  // A convolution; its weight's gradient has the last four strides.
  int64_t images, H, W, C, Ho, Wo, O;
  int64_t kh, kw, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w, groups;
  int64_t w_o, w_c, w_h, w_w, grad_o, grad_c, grad_h, grad_w;
  // bfloat16, else float32: a and its gradient; w and, unless w is a weight, its gradient; the
  // output and the error.
  int64_t a_is_half, w_is_half, out_is_half;
  // A convolution's output and its input's gradient: contiguous, else channels-last.
  int64_t out_is_contiguous;
  int64_t a_rows;  // of a product of matrices with a weight: ranges of a; 1, or M
};

// A saved operand is its codes and, from the next multiple of 4 bytes on, floats: scale and offset
// of each channel (of a: of each row), half, and of an activation the lowest and highest values.

struct ForwardCall {
  const void *a, *w;  // null: saved already
  uint8_t *a_saved, *w_saved;  // or null, if backward does not need them
  const float* bias;           // or null
  void* out;
  int32_t* control;
  int32_t* copy;        // of the control tensor, for backward; or null
  int64_t product;      // the number of this product in the call, for its noise
  int64_t counts_call;  // counts a call of the layer first
  float* health;        // or null
  const float *a_low, *a_high, *w_low, *w_high;  // given ranges, or null
  float *a_range, *w_range;  // rows of running ranges: observations, lowest value, range; or null
  int64_t is_evaluating;     // reads the running ranges instead of writing them
  double momentum;
  int64_t num_threads;
};

struct BackwardCall {
  const void* e;  // in the layout of the output
  uint8_t *a_saved, *w_saved;
  const int32_t* control;
  float* health;          // or null
  void *grad_a, *grad_w;  // or null
  const float *e_low, *e_high;  // a given range, or null
  int64_t num_threads;
};

}  // namespace bitcycle
