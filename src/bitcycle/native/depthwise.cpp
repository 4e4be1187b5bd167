// The output of a depthwise convolution, a kernel of one channel for each channel of the map, and
// the gradient for its input.
//
// There is no axis of channels to sum over, so no tile. Codes are multiplied as they lie, channel
// by channel, with the values of the kernel in float32, whose few taps are summed.
#include <algorithm>
#include <vector>

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define AVX2_CODE __attribute__((target("avx2")))
#define AVX512_CODE __attribute__((target("avx512f,avx512bw,avx512vl")))
#endif

#include "border.h"
#include "conv.h"
#include "isa.h"
#include "parallel.h"
#include "product.h"

namespace bitcycle {
namespace {

// Results side by side that have the same taps on the map.
//
//   out[c] = scale * (sum over taps of x[tap + c] * kernel[tap][c]) + constants[c]
struct Span {
  const uint8_t* x;
  const long* taps;            // distances of codes
  const float* const* kernel;  // of each tap
  long num_taps, channels;
  long num_results, step, out_step;  // steps from one result to the next
  float scale;
  const float* constants;
  float* out;
  bool is_streamed;  // past the cache
};

// Channels from `first` on.
void correlate_portable(const Span& s, long first) {
  constexpr int LANES = 16;
  for (long r = 0; r < s.num_results; ++r)
    for (long c = first; c < s.channels; c += LANES) {
      const int n = int(std::min<long>(LANES, s.channels - c));
      float sums[LANES] = {};
      for (long t = 0; t < s.num_taps; ++t) {
        const uint8_t* x = s.x + s.taps[t] + r * s.step + c;
        const float* kernel = s.kernel[t] + c;
        for (int i = 0; i < n; ++i) sums[i] += float(x[i]) * kernel[i];
      }
      float* out = s.out + r * s.out_step + c;
      for (int i = 0; i < n; ++i) out[i] = s.scale * sums[i] + s.constants[c + i];
    }
}

#if defined(__x86_64__) && defined(__GNUC__)

// Compilers convert codes one by one in such loops, so these are written out: a few results at a
// time, so that the kernel is loaded once for all of them.

template <int RESULTS>
AVX2_CODE inline void correlate_few_avx2(const Span& s, long r, long n) {
  for (long c = 0; c < n; c += 8) {
    __m256 sums[RESULTS];
    for (int i = 0; i < RESULTS; ++i) sums[i] = _mm256_setzero_ps();
    for (long t = 0; t < s.num_taps; ++t) {
      const uint8_t* x = s.x + s.taps[t] + r * s.step + c;
      const __m256 kernel = _mm256_loadu_ps(s.kernel[t] + c);
      for (int i = 0; i < RESULTS; ++i) {
        const __m128i codes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(x + i * s.step));
        const __m256 value = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(codes));
        sums[i] = _mm256_add_ps(sums[i], _mm256_mul_ps(value, kernel));
      }
    }
    const __m256 constants = _mm256_loadu_ps(s.constants + c), scale = _mm256_set1_ps(s.scale);
    for (int i = 0; i < RESULTS; ++i)
      _mm256_storeu_ps(s.out + (r + i) * s.out_step + c,
                       _mm256_add_ps(_mm256_mul_ps(scale, sums[i]), constants));
  }
}

AVX2_CODE void correlate_avx2(const Span& s) {
  const long n = s.channels / 8 * 8;
  long r = 0;
  for (; r + 4 <= s.num_results; r += 4) correlate_few_avx2<4>(s, r, n);
  for (; r < s.num_results; ++r) correlate_few_avx2<1>(s, r, n);
  if (n < s.channels) correlate_portable(s, n);
}

AVX512_CODE inline __m512 values_avx512(__m128i codes) {
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(codes));
}

AVX512_CODE inline void store_avx512(bool is_streamed, float* out, __m512 x) {
  if (is_streamed && reinterpret_cast<uintptr_t>(out) % 64 == 0)
    _mm512_stream_ps(out, x);
  else
    _mm512_storeu_ps(out, x);
}

// RESULTS results of 16 * BLOCKS channels.
template <int RESULTS, int BLOCKS>
AVX512_CODE inline void correlate_whole_avx512(const Span& s, long r, long c) {
  __m512 sums[RESULTS][BLOCKS];
  for (int i = 0; i < RESULTS; ++i)
    for (int b = 0; b < BLOCKS; ++b) sums[i][b] = _mm512_setzero_ps();
  for (long t = 0; t < s.num_taps; ++t) {
    const uint8_t* x = s.x + s.taps[t] + r * s.step + c;
    const float* kernel = s.kernel[t] + c;
    for (int b = 0; b < BLOCKS; ++b)
      for (int i = 0; i < RESULTS; ++i) {
        const auto* codes = reinterpret_cast<const __m128i*>(x + i * s.step + 16 * b);
        sums[i][b] = _mm512_add_ps(sums[i][b], _mm512_mul_ps(values_avx512(_mm_loadu_si128(codes)),
                                                             _mm512_loadu_ps(kernel + 16 * b)));
      }
  }
  for (int i = 0; i < RESULTS; ++i)
    for (int b = 0; b < BLOCKS; ++b)
      store_avx512(s.is_streamed, s.out + (r + i) * s.out_step + c + 16 * b,
                   _mm512_add_ps(_mm512_mul_ps(_mm512_set1_ps(s.scale), sums[i][b]),
                                 _mm512_loadu_ps(s.constants + c + 16 * b)));
}

AVX512_CODE inline void correlate_rest_avx512(const Span& s, long r, long c) {
  const __mmask16 lanes = __mmask16((1u << (s.channels - c)) - 1);
  __m512 sum = _mm512_setzero_ps();
  for (long t = 0; t < s.num_taps; ++t) {
    const __m128i codes = _mm_maskz_loadu_epi8(lanes, s.x + s.taps[t] + r * s.step + c);
    const __m512 kernel = _mm512_maskz_loadu_ps(lanes, s.kernel[t] + c);
    sum = _mm512_add_ps(sum, _mm512_mul_ps(values_avx512(codes), kernel));
  }
  const __m512 constants = _mm512_maskz_loadu_ps(lanes, s.constants + c);
  _mm512_mask_storeu_ps(s.out + r * s.out_step + c, lanes,
                        _mm512_add_ps(_mm512_mul_ps(_mm512_set1_ps(s.scale), sum), constants));
}

template <int RESULTS, int BLOCKS>
AVX512_CODE inline void correlate_few_avx512(const Span& s, long r) {
  long c = 0;
  for (; c + 16 * BLOCKS <= s.channels; c += 16 * BLOCKS)
    correlate_whole_avx512<RESULTS, BLOCKS>(s, r, c);
  for (; c + 16 <= s.channels; c += 16) correlate_whole_avx512<RESULTS, 1>(s, r, c);
  if (c < s.channels)
    for (int i = 0; i < RESULTS; ++i) correlate_rest_avx512(s, r + i, c);
}

AVX512_CODE void correlate_avx512(const Span& s) {
  long r = 0;
  for (; r + 4 <= s.num_results; r += 4) correlate_few_avx512<4, 1>(s, r);
  for (; r + 2 <= s.num_results; r += 2) correlate_few_avx512<2, 2>(s, r);
  for (; r < s.num_results; ++r) correlate_few_avx512<1, 4>(s, r);
  if (s.is_streamed) _mm_sfence();  // other threads see the results
}

void correlate_span(const Span& s) {
  const Isa set = isa();
  set == Isa::AVX512 ? correlate_avx512(s) : set == Isa::AVX2 ? correlate_avx2(s)
                                                              : correlate_portable(s, 0);
}

#else

void correlate_span(const Span& s) { correlate_portable(s, 0); }

#endif

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

// Results [first, last) of a row with the same taps.
struct Stretch {
  long first, last;
  Range taps;
};

std::vector<Stretch> find_stretches(const Axis& axis) {
  std::vector<Stretch> found;
  for (long j = 0; j < axis.count; ++j) {
    const Range taps = axis.taps_of(j);
    if (found.empty() || found.back().taps.first != taps.first ||
        found.back().taps.last != taps.last)
      found.push_back({j, j, taps});
    found.back().last = j + 1;
  }
  return found;
}

BITCYCLE_INLINE void store_row_body(const float* x, long n, BFloat16* out) {
  for (long c = 0; c < n; ++c) store(x[c], out[c]);
}
BITCYCLE_FOR_EACH_ISA(store_row, (const float* x, long n, BFloat16* out), (x, n, out))

// offset * constants + bias
void add_bias(const float* constants, float offset, const float* bias, long n, float* out) {
  if (bias)
    for (long c = 0; c < n; ++c) out[c] = offset * constants[c] + bias[c];
  else
    for (long c = 0; c < n; ++c) out[c] = offset * constants[c];
}

void correlate(const Correlation& c) {
  const BorderConstants constants(c.h, c.w, c.kernel, nullptr, c.C);
  const long row = c.w.size * c.C, num_w = long(c.w.taps.size());
  const long max_taps = long(c.h.taps.size()) * num_w;
  const std::vector<Stretch> stretches = find_stretches(c.w);
  const bool is_streamed = c.N * c.h.count * c.w.count * c.C * 4 >= STREAM_BYTES;
  std::vector<float> shared(c.num_scales > 1 ? 0 : constants.size());
  for (long at = 0; at + c.C <= long(shared.size()); at += c.C)
    add_bias(constants.values() + at, *c.offset, c.bias, c.C, shared.data() + at);
  parallel_for(c.N * c.h.count, int(c.num_threads), [&](long task) {
    const long image = task / c.h.count, i = task % c.h.count, s = c.num_scales > 1 ? image : 0;
    long* taps = new_array<long>(FIRST, max_taps);
    const float** kernel = new_array<const float*>(SECOND, max_taps);
    const Range on_h = c.h.taps_of(i);
    for (const Stretch& part : stretches) {
      const float* terms = shared.data() + constants.at(i, part.first);
      if (shared.empty()) {
        float* own = new_array<float>(SUMS, c.C);
        add_bias(constants.values() + constants.at(i, part.first), c.offset[s], c.bias, c.C, own);
        terms = own;
      }
      long num_taps = 0;
      for (long h = on_h.first; h < on_h.last; ++h)
        for (long w = part.taps.first; w < part.taps.last; ++w, ++num_taps) {
          taps[num_taps] = c.h.taps[h] * row + c.w.taps[w] * c.C;
          kernel[num_taps] = c.kernel.data() + (h * num_w + w) * c.C;
        }
      const long count = part.last - part.first;
      const Results out =
          c.out.from(image * c.out_image + i * c.out_row + part.first * c.out_pixel);
      float* results = out.is_half ? new_array<float>(SMALL, count * c.C)
                                   : static_cast<float*>(out.data);
      correlate_span({c.map + (image * c.h.size + i * c.h.step) * row + part.first * c.w.step * c.C,
                      taps, kernel, num_taps, c.C, count, c.w.step * c.C,
                      out.is_half ? c.C : c.out_pixel, c.scale[s], terms, results,
                      is_streamed && !out.is_half});
      if (out.is_half)
        for (long r = 0; r < count; ++r)
          store_row(results + r * c.C, c.C,
                    static_cast<BFloat16*>(out.data) + r * c.out_pixel);
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

}  // namespace bitcycle
