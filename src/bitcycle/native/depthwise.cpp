// Depthwise convolutions: a kernel of one channel for each channel of the map.
//
// There is no axis of channels to sum over, so no tile. Codes are multiplied as they lie, channel
// by channel: with the values of the kernel in float32, whose few taps are summed, and as whole
// numbers with each other for the gradient of the weight, which sums over all pixels.
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

// The taps of one result that lie on the map: codes and values of the kernel, for every channel.
struct Window {
  const uint8_t** x;
  const float** kernel;
  long num_taps, channels;
};

// sums = or += NUM taps
template <int NUM, bool IS_FIRST>
BITCYCLE_INLINE void add_taps(const uint8_t* const* x, const float* const* kernel, long n,
                              float* __restrict sums) {
  const uint8_t* codes[NUM];
  const float* values[NUM];
  for (int t = 0; t < NUM; ++t) codes[t] = x[t], values[t] = kernel[t];
  for (long c = 0; c < n; ++c) {
    float sum = IS_FIRST ? 0.0f : sums[c];
    for (int t = 0; t < NUM; ++t) sum += float(codes[t][c]) * values[t][c];
    sums[c] = sum;
  }
}

BITCYCLE_INLINE void sum_window_body(const Window& t, float* __restrict sums) {
  const long n = t.channels;
  long at = 0;
  if (t.num_taps >= 3)
    add_taps<3, true>(t.x, t.kernel, n, sums), at = 3;
  else
    for (long c = 0; c < n; ++c) sums[c] = 0.0f;
  for (; at + 3 <= t.num_taps; at += 3) add_taps<3, false>(t.x + at, t.kernel + at, n, sums);
  for (; at < t.num_taps; ++at) add_taps<1, false>(t.x + at, t.kernel + at, n, sums);
}
BITCYCLE_FOR_EACH_ISA(sum_window, (const Window& t, float* sums), (t, sums))

// out = scale * sums + (offset * constants + bias)
template <typename T>
BITCYCLE_INLINE void finish_window_as(const float* sums, float scale, float offset,
                                      const float* constants, const float* bias, long n,
                                      T* __restrict out) {
  if (bias)
    for (long c = 0; c < n; ++c)
      store(scale * sums[c] + (offset * constants[c] + bias[c]), out[c]);
  else
    for (long c = 0; c < n; ++c) store(scale * sums[c] + offset * constants[c], out[c]);
}

BITCYCLE_INLINE void finish_window_body(const float* sums, float scale, float offset,
                                        const float* constants, const float* bias, long n,
                                        Results out) {
  if (out.is_half)
    finish_window_as(sums, scale, offset, constants, bias, n, static_cast<BFloat16*>(out.data));
  else
    finish_window_as(sums, scale, offset, constants, bias, n, static_cast<float*>(out.data));
}
BITCYCLE_FOR_EACH_ISA(finish_window,
                      (const float* sums, float scale, float offset, const float* constants,
                       const float* bias, long n, Results out),
                      (sums, scale, offset, constants, bias, n, out))

struct Correlation {
  const uint8_t* map;
  long N, C;
  Axis h, w;
  std::vector<float> kernel;  // values, [tap_h][tap_w][C]
  const float *scale, *offset, *bias;
  long num_scales;            // one, or one for each image
  Results out;
  long out_image, out_row, out_pixel;
  long num_threads;
};

void correlate(const Correlation& c) {
  const BorderConstants constants(c.h, c.w, c.kernel, nullptr, c.C);
  const long row = c.w.size * c.C, num_w = long(c.w.taps.size());
  std::vector<Range> on_w;
  for (long j = 0; j < c.w.count; ++j) on_w.push_back(c.w.taps_of(j));
  parallel_for(c.N * c.h.count, int(c.num_threads), [&](long task) {
    const long image = task / c.h.count, i = task % c.h.count, s = c.num_scales > 1 ? image : 0;
    const long max_taps = long(c.h.taps.size()) * num_w;
    float* sums = new_array<float>(SUMS, c.C);
    Window window{new_array<const uint8_t*>(FIRST, max_taps),
                  new_array<const float*>(SECOND, max_taps), 0, c.C};
    const Range on_h = c.h.taps_of(i);
    for (long j = 0; j < c.w.count; ++j) {
      const uint8_t* x =
          c.map + (image * c.h.size + i * c.h.step) * row + j * c.w.step * c.C;
      window.num_taps = 0;
      for (long h = on_h.first; h < on_h.last; ++h)
        for (long w = on_w[j].first; w < on_w[j].last; ++w, ++window.num_taps) {
          window.x[window.num_taps] = x + c.h.taps[h] * row + c.w.taps[w] * c.C;
          window.kernel[window.num_taps] = c.kernel.data() + (h * num_w + w) * c.C;
        }
      sum_window(window, sums);
      finish_window(sums, c.scale[s], c.offset[s], constants.values() + constants.at(i, j), c.bias,
                    c.C, c.out.from(image * c.out_image + i * c.out_row + j * c.out_pixel));
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
             kernel_values(c, tap_h, tap_w), c.a_scale, c.a_offset, c.bias, 1, c.results(),
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
                 c.results().from((ph * c.W + pw) * c.C), c.H * c.W * c.C, c.stride_h * c.W * c.C,
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
    float* out = static_cast<float*>(c.out) + h * c.w_h + w * c.w_w;
    for (long n = 0; n < c.C; ++n)
      out[n * c.w_o] =
          float(se * sa * double(sums[n]) + se * oa * double(sums[size + n]) +
                oe * sa * double(sums[2 * size + n]) + oe * oa * pixels);
  }
}

}  // namespace bitcycle
