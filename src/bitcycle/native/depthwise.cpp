// Depthwise convolutions: a kernel of one channel for each channel of the map.
//
// There is no axis of channels to sum over, so no tile. Codes are multiplied as they lie, 16 channels
// at a time: with the values of the kernel in float32, whose few taps are summed, and with each other
// as whole numbers for the gradient of the weight, which sums over all pixels.
#include <algorithm>
#include <vector>

#include "border.h"
#include "conv.h"
#include "isa.h"
#include "parallel.h"

namespace bitcycle {
namespace {

constexpr int LANES = 16;

// ---- output and grad_input ------------------------------------------------------------------

// The taps of one result, and what becomes of their sum: out = scale * sum + constant.
struct Window {
  const uint8_t* x;  // where a tap of (0, 0) would be
  long row, pixel;   // distances of taps in the map
  Range h, w;
  const float* kernel;  // [tap_h][tap_w][channels]
  long kernel_row, channels;
  float scale, constant_scale;
  const float *constant, *bias;  // bias may be null
  float* out;
};

// sums += NUM taps side by side
template <int NUM>
BITCYCLE_INLINE void add_taps(const uint8_t* const* x, const float* kernel, long n,
                              float* __restrict sums) {
  const uint8_t *x0 = x[0], *x1 = x[NUM / 2], *x2 = x[NUM - 1];
  const float *k0 = kernel, *k1 = kernel + n, *k2 = kernel + 2 * n;
  for (long c = 0; c < n; ++c)
    sums[c] += NUM == 1 ? float(x0[c]) * k0[c]
                        : float(x0[c]) * k0[c] + (float(x1[c]) * k1[c] + float(x2[c]) * k2[c]);
}

BITCYCLE_INLINE void sum_window_body(const Window& t, const long* at_h, const long* at_w,
                                     float* __restrict sums) {
  const long n = t.channels;
  for (long c = 0; c < n; ++c) sums[c] = 0.0f;
  for (long h = t.h.first; h < t.h.last; ++h)
    for (long w = t.w.first; w < t.w.last;) {
      const float* kernel = t.kernel + h * t.kernel_row + w * n;
      const uint8_t* row = t.x + at_h[h] * t.row;
      const bool is_three = t.w.last - w >= 3;
      const uint8_t* x[3];
      for (int i = 0; i < (is_three ? 3 : 1); ++i) x[i] = row + at_w[w + i] * t.pixel;
      if (is_three)
        add_taps<3>(x, kernel, n, sums);
      else
        add_taps<1>(x, kernel, n, sums);
      w += is_three ? 3 : 1;
    }
  float* __restrict out = t.out;
  if (t.bias)
    for (long c = 0; c < n; ++c)
      out[c] = t.scale * sums[c] + (t.constant_scale * t.constant[c] + t.bias[c]);
  else
    for (long c = 0; c < n; ++c) out[c] = t.scale * sums[c] + t.constant_scale * t.constant[c];
}
BITCYCLE_FOR_EACH_ISA(sum_window,
                      (const Window& t, const long* at_h, const long* at_w, float* sums),
                      (t, at_h, at_w, sums))

struct Correlation {
  const uint8_t* map;
  long N, C;
  Axis h, w;
  std::vector<float> kernel;  // values, [tap_h][tap_w][C]
  const float *scale, *offset, *bias;
  long num_scales;            // one, or one for each image
  float* out;
  long out_image, out_row, out_pixel;
  long num_threads;
};

void correlate(const Correlation& c) {
  const BorderConstants constants(c.h, c.w, c.kernel, nullptr, c.C);
  const long row = c.w.size * c.C;
  parallel_for(c.N * c.h.count, int(c.num_threads), [&](long task) {
    const long image = task / c.h.count, i = task % c.h.count, s = c.num_scales > 1 ? image : 0;
    float* sums = new_array<float>(SUMS, c.C);
    Window t{};
    t.row = row, t.pixel = c.C, t.h = c.h.taps_of(i);
    t.kernel = c.kernel.data(), t.kernel_row = long(c.w.taps.size()) * c.C, t.channels = c.C;
    t.scale = c.scale[s], t.constant_scale = c.offset[s], t.bias = c.bias;
    for (long j = 0; j < c.w.count; ++j) {
      t.x = c.map + image * c.h.size * row + i * c.h.step * row + j * c.w.step * c.C;
      t.w = c.w.taps_of(j);
      t.constant = constants.values() + constants.at(i, j);
      t.out = c.out + image * c.out_image + i * c.out_row + j * c.out_pixel;
      sum_window(t, c.h.taps.data(), c.w.taps.data(), sums);
    }
  });
}

std::vector<float> kernel_values(const Conv& c, const std::vector<long>& h,
                                 const std::vector<long>& w) {
  std::vector<float> values(h.size() * w.size() * c.C);
  for (size_t y = 0; y < h.size(); ++y)
    for (size_t x = 0; x < w.size(); ++x)
      for (long n = 0; n < c.C; ++n) {
        const long s = c.w_scales == 1 ? 0 : n;
        values[(y * w.size() + x) * c.C + n] =
            c.w_scale[s] * float(c.w[n * c.w_o + h[y] * c.w_h + w[x] * c.w_w]) + c.w_offset[s];
      }
  return values;
}

// ---- grad_weight ----------------------------------------------------------------------------

// Sums over pixels of e * a, of e and of a, for 16 channels of a tap.
struct Sums {
  uint64_t *products, *errors, *inputs;
};

constexpr long MAX_PIXELS = 256;  // sums of codes hold these in 16 bits

BITCYCLE_INLINE void add_lanes(const uint8_t* e, long e_step, const uint8_t* a, long a_step,
                               long num_pixels, const Sums& out, long c, int n) {
  uint32_t products[LANES] = {};
  uint16_t errors[LANES] = {}, inputs[LANES] = {};
  for (long p = 0; p < num_pixels; ++p) {
    const uint8_t *x = e + p * e_step + c, *y = a + p * a_step + c;
    for (int i = 0; i < n; ++i) {
      products[i] += uint16_t(uint16_t(x[i]) * uint16_t(y[i]));
      errors[i] = uint16_t(errors[i] + x[i]);
      inputs[i] = uint16_t(inputs[i] + y[i]);
    }
  }
  for (int i = 0; i < n; ++i) {
    out.products[c + i] += products[i];
    out.errors[c + i] += errors[i];
    out.inputs[c + i] += inputs[i];
  }
}

BITCYCLE_INLINE void add_pixels_body(const uint8_t* e, long e_step, const uint8_t* a, long a_step,
                                     long num_pixels, const Sums& out, long channels) {
  for (long p = 0; p < num_pixels; p += MAX_PIXELS) {
    const long num = std::min(MAX_PIXELS, num_pixels - p);
    const uint8_t *x = e + p * e_step, *y = a + p * a_step;
    long c = 0;
    for (; c + LANES <= channels; c += LANES) add_lanes(x, e_step, y, a_step, num, out, c, LANES);
    if (c < channels) add_lanes(x, e_step, y, a_step, num, out, c, int(channels - c));
  }
}
BITCYCLE_FOR_EACH_ISA(add_pixels,
                      (const uint8_t* e, long e_step, const uint8_t* a, long a_step,
                       long num_pixels, const Sums& out, long channels),
                      (e, e_step, a, a_step, num_pixels, out, channels))

}  // namespace

void depthwise_output(const Conv& c) {
  std::vector<long> taps_h, taps_w, tap_h, tap_w;
  for (long t = 0; t < c.kh; ++t) tap_h.push_back(t), taps_h.push_back(t * c.dilation_h - c.pad_h);
  for (long t = 0; t < c.kw; ++t) tap_w.push_back(t), taps_w.push_back(t * c.dilation_w - c.pad_w);
  correlate({c.a, c.N, c.C, {taps_h, c.stride_h, c.H, c.Ho}, {taps_w, c.stride_w, c.W, c.Wo},
             kernel_values(c, tap_h, tap_w), c.a_scale, c.a_offset, c.bias, 1, c.out,
             c.Ho * c.Wo * c.C, c.Wo * c.C, c.C, c.num_threads});
}

void depthwise_grad_input(const Conv& c) {
  for (long ph = 0; ph < std::min(c.stride_h, c.H); ++ph)
    for (long pw = 0; pw < std::min(c.stride_w, c.W); ++pw) {
      const PhaseTaps h = find_phase(ph, c.kh, c.stride_h, c.pad_h, c.dilation_h);
      const PhaseTaps w = find_phase(pw, c.kw, c.stride_w, c.pad_w, c.dilation_w);
      correlate({c.e, c.N, c.C, {h.offset, 1, c.Ho, (c.H - ph + c.stride_h - 1) / c.stride_h},
                 {w.offset, 1, c.Wo, (c.W - pw + c.stride_w - 1) / c.stride_w},
                 kernel_values(c, h.tap, w.tap), c.e_scale, c.e_offset, nullptr, c.e_scales,
                 c.out + (ph * c.W + pw) * c.C, c.H * c.W * c.C, c.stride_h * c.W * c.C,
                 c.stride_w * c.C, c.num_threads});
    }
}

void depthwise_grad_weight(const Conv& c) {
  const long num_taps = c.kh * c.kw, size = num_taps * c.C;
  const long num_chunks = std::min(c.N * c.Ho, c.num_threads);
  std::vector<uint64_t> memory(num_chunks * 3 * size);
  parallel_for(num_chunks, int(c.num_threads), [&](long chunk) {
    uint64_t* sums = memory.data() + chunk * 3 * size;
    const long num_rows = c.N * c.Ho;
    for (long r = num_rows * chunk / num_chunks; r < num_rows * (chunk + 1) / num_chunks; ++r)
      for (long t = 0; t < num_taps; ++t) {
        const long y = r % c.Ho * c.stride_h + t / c.kw * c.dilation_h - c.pad_h;
        const long x = t % c.kw * c.dilation_w - c.pad_w;
        const Range on = on_map(x, c.stride_w, c.W, c.Wo);
        if (y < 0 || y >= c.H || on.count() == 0) continue;
        const uint8_t* a = c.a + ((r / c.Ho * c.H + y) * c.W + on.first * c.stride_w + x) * c.C;
        add_pixels(c.e + (r * c.Wo + on.first) * c.C, c.C, a, c.stride_w * c.C, on.count(),
                   {sums + t * c.C, sums + size + t * c.C, sums + 2 * size + t * c.C}, c.C);
      }
  });
  for (long k = 1; k < num_chunks; ++k)
    for (long i = 0; i < 3 * size; ++i) memory[i] += memory[k * 3 * size + i];
  const double se = *c.e_scale, oe = *c.e_offset, sa = *c.a_scale, oa = *c.a_offset;
  for (long t = 0; t < num_taps; ++t) {
    const long h = t / c.kw, w = t % c.kw;
    const Range on_h = on_map(h * c.dilation_h - c.pad_h, c.stride_h, c.H, c.Ho);
    const Range on_w = on_map(w * c.dilation_w - c.pad_w, c.stride_w, c.W, c.Wo);
    const double pixels = double(c.N) * double(on_h.count() * on_w.count());
    const uint64_t* sums = memory.data() + t * c.C;
    for (long n = 0; n < c.C; ++n)
      c.out[n * c.w_o + h * c.w_h + w * c.w_w] =
          float(se * sa * double(sums[n]) + se * oa * double(sums[size + n]) +
                oe * sa * double(sums[2 * size + n]) + oe * oa * pixels);
  }
}

}  // namespace bitcycle
