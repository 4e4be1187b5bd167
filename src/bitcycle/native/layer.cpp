// A layer's product in one call for each direction: operands become codes on their grids, codes
// are multiplied, and what backward reads is kept.
#include "layer.h"

#include <algorithm>
#include <cstring>

#include "conv.h"
#include "encode.h"
#include "gemm.h"
#include "isa.h"
#include "layout.h"
#include "parallel.h"

extern "C" {
void bitcycle_noise_key(const int32_t* clock, int32_t* key);
void bitcycle_flag_nonfinite(float* flag, const float* low, const float* high, int64_t count);
void bitcycle_observe(float* row, const float* low, const float* high, double momentum);
void bitcycle_pack_nibbles(const uint8_t* codes, int64_t count, uint8_t* out, int64_t num_threads);
void bitcycle_unpack_nibbles(const uint8_t* packed, int64_t count, uint8_t* out,
                             int64_t num_threads);
}

namespace bitcycle {
namespace {

// Slots of the control tensor, as in nn/control.py.
enum { WEIGHT, ACT, ERROR, CLOCK = 16, CALL = 18, CONTROL_SIZE };
constexpr uint32_t PRODUCT_NOISE = 0x5BD1E995u;

// ---- operands -----------------------------------------------------------------------------------

struct Saved {
  uint8_t* bytes;  // codes, or two of them each
  float *scale, *offset, *half, *low, *high;
};

long saved_bytes(long size, bool is_packed) {
  return ((is_packed ? (size + 1) / 2 : size) + 3) / 4 * 4;
}

// memory: null for a workspace, where the operand lives until the call ends.
Saved lay_out(uint8_t* memory, Slot slot, long size, bool is_packed, long channels) {
  const long bytes = saved_bytes(size, is_packed);
  if (!memory) memory = new_array<uint8_t>(slot, bytes + (4 * channels + 1) * 4);
  float* scale = reinterpret_cast<float*>(memory + bytes);
  float *offset = scale + channels, *half = offset + channels;
  return {memory, scale, offset, half, half + 1, half + 1 + channels};
}

// A float operand and where its codes go.
struct Operand {
  Floats x;  // null: the codes are there
  Block block;
  Saved saved;
  bool is_packed;
  Maps maps;  // to be turned to channels-last; of no images: as they are
  Slot unpacked;  // the workspace of codes that are kept two per byte
  bool has_rows;  // (1, rows, length), rounded to the nearest: ranges are found with the codes
  long size() const { return block.outer * block.channels * block.inner; }
};

struct Rounding {
  Rule rule;
  float floor, levels;
  const int32_t* key;  // or null: to the nearest
  long num_threads;
};

void find_range(const Operand& o, const Rounding& how) {
  find_ranges(o.x, o.block, o.saved.low, o.saved.high, how.num_threads);
  if (!is_symmetric(how.rule)) return;
  for (long c = 0; c < o.block.channels; ++c) {
    const float bound = max_abs(o.saved.low[c], o.saved.high[c]);
    o.saved.low[c] = -bound, o.saved.high[c] = bound;
  }
}

// The codes as products read them; the range of a float operand is known, but of rows.
const uint8_t* encode(const Operand& o, const Rounding& how) {
  const long size = o.size();
  uint8_t* codes = o.is_packed ? new_array<uint8_t>(o.unpacked, size) : o.saved.bytes;
  if (!o.x.data) {
    if (o.is_packed) bitcycle_unpack_nibbles(o.saved.bytes, size, codes, how.num_threads);
    return codes;
  }
  uint8_t* rounded = o.maps.images ? new_array<uint8_t>(TURNED, size) : codes;
  *o.saved.half = (how.levels + 1) * 0.5f;
  if (o.has_rows)
    quantize_rows(o.x, o.block, how.levels, how.floor, how.rule, CODES, rounded, o.saved.low,
                  o.saved.high, o.saved.scale, o.saved.offset, how.num_threads);
  else
    round_to_grids(o.x, o.block, o.saved.low, o.saved.high, how.levels, how.floor, how.rule,
                   how.key, CODES, rounded, o.saved.scale, o.saved.offset, how.num_threads);
  if (o.maps.images) turn_codes(rounded, o.maps, codes, how.num_threads);
  if (o.is_packed) bitcycle_pack_nibbles(codes, size, o.saved.bytes, how.num_threads);
  return codes;
}

// ---- ranges of activations ----------------------------------------------------------------------

// row: of running ranges, or null. low, high: a given range, or null.
void set_range(const ForwardCall& call, const Operand& o, const Rounding& how, float* row,
               const float* low, const float* high, int role) {
  if (row && call.is_evaluating) {
    *o.saved.low = row[1], *o.saved.high = row[1] + row[2];
    return;
  }
  if (low)
    for (long c = 0; c < o.block.channels; ++c) o.saved.low[c] = low[c], o.saved.high[c] = high[c];
  else if (o.x.data)
    find_range(o, how);
  if (call.health)
    bitcycle_flag_nonfinite(call.health + role, o.saved.low, o.saved.high, o.block.channels);
  if (row) bitcycle_observe(row, o.saved.low, o.saved.high, call.momentum);
}

// ---- products -----------------------------------------------------------------------------------

struct Factor {
  const uint8_t* codes;
  const Saved* grid;
};

Gemm matrices(const LayerShape& s, Factor x, Factor y, Results out, long num_threads) {
  Gemm g{};
  g.a = x.codes, g.a_scale = x.grid->scale, g.a_offset = x.grid->offset, g.a_half = x.grid->half;
  g.b = y.codes, g.b_scale = y.grid->scale, g.b_offset = y.grid->offset, g.b_half = y.grid->half;
  g.out = out.data, g.out_is_half = out.is_half;
  g.num_outer = s.num_outer, g.num_inner = s.num_inner;
  g.a_scales = g.b_scales = 1, g.num_threads = num_threads;
  return g;
}

void multiply_output(const LayerShape& s, Factor a, Factor w, const float* bias, Results out,
                     long num_threads) {
  Gemm g = matrices(s, a, w, out, num_threads);
  g.bias = bias, g.a_scales = s.a_rows, g.b_scales = s.w_channels;
  g.M = s.M, g.N = s.N, g.K = s.K, g.a_row = s.a_row, g.a_k = s.a_k, g.b_row = s.w_row;
  g.b_k = s.w_k, g.a_outer = s.a_outer, g.a_inner = s.a_inner, g.b_outer = s.w_outer_step;
  g.b_inner = s.w_inner_step;
  gemm(g);
}

// e is (M, N), contiguous: the distance of two batches.
void set_error_strides(const LayerShape& s, int64_t& outer, int64_t& inner) {
  outer = s.num_inner * s.M * s.N, inner = s.M * s.N;
}

void multiply_grad_input(const LayerShape& s, Factor e, Factor w, Results out, long num_threads) {
  Gemm g = matrices(s, e, w, out, num_threads);
  g.M = s.M, g.N = s.K, g.K = s.N, g.a_row = s.N, g.a_k = 1, g.b_row = s.w_k, g.b_k = s.w_row;
  set_error_strides(s, g.a_outer, g.a_inner);
  g.b_outer = s.w_outer_step, g.b_inner = s.w_inner_step, g.b_scales = s.w_channels;
  s.w_channels > 1 ? gemm_folded(g) : gemm(g);
}

// x (rows, columns) as (columns, rows).
void transpose(const float* x, long rows, long columns, float* out, long num_threads) {
  constexpr long SIDE = 16;
  parallel_for((columns + SIDE - 1) / SIDE, int(num_threads), [&](long task) {
    const long first = task * SIDE, last = std::min(columns, first + SIDE);
    for (long r = 0; r < rows; r += SIDE)
      for (long c = first; c < last; ++c)
        for (long i = r; i < std::min(rows, r + SIDE); ++i)
          out[c * rows + i] = x[i * columns + c];
  });
}

// The scales of a's rows lie on the summed axis and are folded into the error: (a^T e)^T.
void multiply_grad_weight_of_rows(const LayerShape& s, Factor e, Factor a, Results out,
                                  long num_threads) {
  float* turned = new_array<float>(RESULTS, s.N * s.K);
  Gemm g = matrices(s, a, e, {turned, false}, num_threads);
  float* grid = new_array<float>(RANGES, 2 * s.M);
  std::fill_n(grid, s.M, *e.grid->scale), std::fill_n(grid + s.M, s.M, *e.grid->offset);
  g.b_scale = grid, g.b_offset = grid + s.M;
  g.M = s.K, g.N = s.N, g.K = s.M, g.a_row = s.a_k, g.a_k = s.a_row, g.b_row = 1, g.b_k = s.N;
  g.a_scales = g.b_scales = s.M;
  gemm_folded(g);
  transpose(turned, s.K, s.N, static_cast<float*>(out.data), num_threads);
}

// A weight (N, K) has the gradient e^T a; a second activation, (K, N) in memory, a^T e.
void multiply_grad_weight(const LayerShape& s, Factor e, Factor a, Results out, long num_threads) {
  if (s.a_rows > 1) return multiply_grad_weight_of_rows(s, e, a, out, num_threads);
  const bool is_weight = s.second == WEIGHT;
  Gemm g = matrices(s, is_weight ? e : a, is_weight ? a : e, out, num_threads);
  g.K = s.M;
  if (is_weight) {
    g.M = s.N, g.N = s.K, g.a_row = 1, g.a_k = s.N, g.b_row = s.a_k, g.b_k = s.a_row;
  } else {
    g.M = s.K, g.N = s.N, g.a_row = s.a_k, g.a_k = s.a_row, g.b_row = 1, g.b_k = s.N;
    g.a_outer = s.a_outer, g.a_inner = s.a_inner;
    set_error_strides(s, g.b_outer, g.b_inner);
  }
  gemm(g);
}

Conv convolution(const LayerShape& s, Results out, bool is_contiguous, long num_threads) {
  Conv c{};
  c.N = s.images, c.H = s.H, c.W = s.W, c.C = s.C, c.Ho = s.Ho, c.Wo = s.Wo, c.O = s.O;
  c.kh = s.kh, c.kw = s.kw, c.stride_h = s.stride_h, c.stride_w = s.stride_w;
  c.pad_h = s.pad_h, c.pad_w = s.pad_w, c.dilation_h = s.dilation_h, c.dilation_w = s.dilation_w;
  c.groups = s.groups, c.w_o = s.w_o, c.w_c = s.w_c, c.w_h = s.w_h, c.w_w = s.w_w;
  c.w_scales = s.w_channels, c.e_scales = 1, c.num_threads = num_threads;
  c.out = out.data, c.out_is_half = out.is_half, c.out_is_contiguous = is_contiguous;
  return c;
}

void set_input(Conv& c, Factor a) {
  c.a = a.codes, c.a_scale = a.grid->scale, c.a_offset = a.grid->offset, c.a_half = a.grid->half;
}

void set_weight(Conv& c, Factor w) {
  c.w = w.codes, c.w_scale = w.grid->scale, c.w_offset = w.grid->offset, c.w_half = w.grid->half;
}

void set_error(Conv& c, Factor e) {
  c.e = e.codes, c.e_scale = e.grid->scale, c.e_offset = e.grid->offset, c.e_half = e.grid->half;
}

// ---- directions ---------------------------------------------------------------------------------

Operand first_operand(const LayerShape& s, const void* a, uint8_t* saved) {
  const bool is_packed = s.a_is_packed;
  return {{a, s.a_is_half != 0}, {1, s.a_rows, s.a_size / s.a_rows},
          lay_out(saved, FIRST_OPERAND, s.a_size, is_packed, s.a_rows), is_packed,
          {s.a_images, s.a_channels, s.a_pixels}, FIRST_CODES, s.a_rows > 1};
}

Operand second_operand(const LayerShape& s, const void* w, uint8_t* saved) {
  const bool is_packed = s.w_is_packed;
  Operand o{{w, s.w_is_half != 0}, {s.w_outer, s.w_channels, s.w_inner},
            lay_out(saved, SECOND_OPERAND, s.w_size, is_packed, s.w_channels), is_packed, {},
            SECOND_CODES, false};
  if (s.second == WEIGHT) {  // the range of a weight is not kept
    o.saved.low = new_array<float>(RANGES, 2 * s.w_channels);
    o.saved.high = o.saved.low + s.w_channels;
  }
  return o;
}

void forward(const ForwardCall& call, const LayerShape& s) {
  const long num_threads = call.num_threads;
  if (call.counts_call) call.control[CALL] = int32_t(uint32_t(call.control[CALL]) + 1);
  if (call.copy) {
    std::memcpy(call.copy, call.control, CONTROL_SIZE * sizeof(int32_t));
    call.copy[CLOCK] = int32_t(uint32_t(call.copy[CLOCK]) + uint32_t(call.product) * PRODUCT_NOISE);
  }
  auto rounding = [&](int role) {
    const float levels = call.control ? float(call.control[role]) : 0;
    return Rounding{Rule(s.rule), float(s.floor), levels, nullptr, num_threads};
  };
  const Operand a = first_operand(s, call.a, call.a_saved);
  if (call.control && !a.has_rows)
    set_range(call, a, rounding(ACT), call.a_range, call.a_low, call.a_high, ACT);
  const Factor first{encode(a, rounding(ACT)), &a.saved};
  if (a.has_rows && call.health)
    bitcycle_flag_nonfinite(call.health + ACT, a.saved.low, a.saved.high, s.a_rows);
  const Operand w = second_operand(s, call.w, call.w_saved);
  const int role = int(s.second);
  if (call.control) set_range(call, w, rounding(role), call.w_range, call.w_low, call.w_high, role);
  const Factor second{encode(w, rounding(role)), &w.saved};
  const Results out{call.out, s.out_is_half != 0};
  if (!s.is_convolution) return multiply_output(s, first, second, call.bias, out, num_threads);
  Conv c = convolution(s, out, s.out_is_contiguous, num_threads);
  set_input(c, first), set_weight(c, second), c.bias = call.bias;
  conv_output(c);
}

void backward(const BackwardCall& call, const LayerShape& s) {
  const long num_threads = call.num_threads;
  int32_t key[2];
  if (s.is_stochastic) bitcycle_noise_key(call.control + CLOCK, key);
  const Rounding how{Rule(s.rule), float(s.floor), float(call.control[ERROR]),
                     s.is_stochastic ? key : nullptr, num_threads};
  const Operand e{{call.e, s.out_is_half != 0}, {1, 1, s.e_size},
                  lay_out(nullptr, ERROR_OPERAND, s.e_size, false, 1), false,
                  {s.e_images, s.e_channels, s.e_pixels}, FIRST_CODES, false};
  if (call.e_low)
    *e.saved.low = *call.e_low, *e.saved.high = *call.e_high;
  else
    find_range(e, how);
  if (call.health)
    bitcycle_flag_nonfinite(call.health + ERROR, e.saved.low, e.saved.high, 1);
  const Factor error{encode(e, how), &e.saved};
  if (call.grad_a) {
    const Operand w = second_operand(s, nullptr, call.w_saved);
    const Factor second{encode(w, how), &w.saved};
    const Results out{call.grad_a, s.a_is_half != 0};
    if (s.is_convolution) {
      Conv c = convolution(s, out, s.out_is_contiguous, num_threads);
      set_error(c, error), set_weight(c, second);
      conv_grad_input(c);
    } else {
      multiply_grad_input(s, error, second, out, num_threads);
    }
  }
  if (!call.grad_w) return;
  const Operand a = first_operand(s, nullptr, call.a_saved);
  const Factor first{encode(a, how), &a.saved};
  const Results out{call.grad_w, s.second != WEIGHT && s.w_is_half};
  if (s.is_convolution) {
    Conv c = convolution(s, out, false, num_threads);
    c.w_o = s.grad_o, c.w_c = s.grad_c, c.w_h = s.grad_h, c.w_w = s.grad_w;
    set_input(c, first), set_error(c, error);
    conv_grad_weight(c);
  } else {
    multiply_grad_weight(s, error, first, out, num_threads);
  }
}

template <typename Call>
int run(void (*function)(const Call&, const LayerShape&), const Call* call, const LayerShape* s) {
  try {
    function(*call, *s);
    return 0;
  } catch (...) {
    return 1;
  }
}

}  // namespace
}  // namespace bitcycle

BITCYCLE_API int bitcycle_forward(const bitcycle::ForwardCall* call,
                                  const bitcycle::LayerShape* shape) {
  return bitcycle::run(bitcycle::forward, call, shape);
}

BITCYCLE_API int bitcycle_backward(const bitcycle::BackwardCall* call,
                                   const bitcycle::LayerShape* shape) {
  return bitcycle::run(bitcycle::backward, call, shape);
}
