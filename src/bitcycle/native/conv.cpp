// The three products of a convolution, without unrolling it into a matrix.
//
// An image is copied with its border into the cache, as bytes or int16. There the inputs of an output
// pixel are one pointer and, for every tap of the kernel, the same distance from it for all pixels:
// the tiles read them in place. A border is code 0, which adds nothing to a sum of codes; what offsets
// add depends on the taps that lie on the image.
#include "conv.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <vector>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "isa.h"
#include "parallel.h"
#include "product.h"

namespace bitcycle {
namespace {

constexpr long BLOCK_BYTES = 192 * 1024;
constexpr long MAX_SUMMED = 65536;  // pixels: 255 * 128 * 65536 < 2^31

BITCYCLE_INLINE void widen_shifted_body(const uint8_t* x, long n, int16_t shift, int16_t* out) {
  for (long i = 0; i < n; ++i) out[i] = int16_t(x[i] - shift);
}
BITCYCLE_FOR_EACH_ISA(widen_shifted, (const uint8_t* x, long n, int16_t shift, int16_t* out),
                      (x, n, shift, out))

// Sums of `n` bytes, n a multiple of 4, of pixels that follow each other.
BITCYCLE_INLINE void sum_channels_body(const uint8_t* x, long pixels, long n, int32_t* out) {
#if defined(__SSE2__)
  if (n % 16 == 0) {
    for (long p = 0; p < pixels; ++p, x += n) {
      __m128i sum = _mm_setzero_si128();
      for (long i = 0; i < n; i += 16)
        sum = _mm_add_epi64(sum, _mm_sad_epu8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x + i)),
                                              _mm_setzero_si128()));
      out[p] = _mm_cvtsi128_si32(sum) + _mm_cvtsi128_si32(_mm_unpackhi_epi64(sum, sum));
    }
    return;
  }
#endif
  for (long p = 0; p < pixels; ++p, x += n) {
    int32_t sum = 0;
    for (long i = 0; i < n; ++i) sum += x[i];
    out[p] = sum;
  }
}
BITCYCLE_FOR_EACH_ISA(sum_channels, (const uint8_t* x, long pixels, long n, int32_t* out),
                      (x, pixels, n, out))

// out[j] += x[j * step]
BITCYCLE_INLINE void add_row_body(const int32_t* x, long step, long n, int32_t* out) {
  if (step == 1)
    for (long j = 0; j < n; ++j) out[j] += x[j];
  else
    for (long j = 0; j < n; ++j) out[j] += x[j * step];
}
BITCYCLE_FOR_EACH_ISA(add_row, (const int32_t* x, long step, long n, int32_t* out),
                      (x, step, n, out))

struct Tap {
  long h, w;
};

// out[pixel] = sum over taps of source[pixel * step + tap] . columns[tap], for the pixels of a grid.
struct Correlation {
  const uint8_t* source;
  long N, Hs, Ws, Cs;         // of the source
  long step_h, step_w;        // source pixels from one result to the next
  std::vector<Tap> taps;      // may be negative
  long rows, columns;         // of the grid of results
  float* out;
  long out_image, out_row, out_pixel;  // distances in floats
  Arithmetic how;
  int16_t shift;              // subtracted from words
  long first_channel, channels;        // of this group
  Columns second;
  const float *scale, *slope; // slope is null when no row sum is needed
  std::vector<float> tap_constant;     // [tap][column]: what a tap on the image adds
  const float* bias;          // or null
  long num_threads;
};

// Constants by the set of taps that lie on the image: few sets, many pixels.
class Constants {
 public:
  explicit Constants(const Correlation& c) : c_(c), of_(c.rows * c.columns) {
    const long num_taps = long(c.taps.size()), N = c.second.count;
    std::map<std::vector<bool>, long> known;
    std::vector<std::vector<bool>> of_row(c.rows), of_column(c.columns);
    for (long i = 0; i < c.rows; ++i) of_row[i] = on_image(i * c.step_h, c.Hs, true);
    for (long j = 0; j < c.columns; ++j) of_column[j] = on_image(j * c.step_w, c.Ws, false);
    std::map<std::pair<std::vector<bool>, std::vector<bool>>, long> sets;
    for (long i = 0; i < c.rows; ++i)
      for (long j = 0; j < c.columns; ++j) {
        auto [found, is_new] = sets.try_emplace({of_row[i], of_column[j]}, long(sets.size()));
        if (is_new) {
          values_.emplace_back(round_up(N, COLUMNS));
          std::vector<float>& v = values_.back();
          for (long t = 0; t < num_taps; ++t)
            if (of_row[i][t] && of_column[j][t])
              for (long n = 0; n < N; ++n) v[n] += c.tap_constant[t * N + n];
          if (c.bias)
            for (long n = 0; n < N; ++n) v[n] += c.bias[n];
        }
        of_[i * c.columns + j] = found->second;
      }
  }
  const float* at(long pixel) const { return values_[of_[pixel]].data(); }

 private:
  std::vector<bool> on_image(long at, long size, bool is_row) const {
    std::vector<bool> on;
    for (const Tap& t : c_.taps) {
      const long x = at + (is_row ? t.h : t.w);
      on.push_back(x >= 0 && x < size);
    }
    return on;
  }
  const Correlation& c_;
  std::vector<long> of_;
  std::vector<std::vector<float>> values_;
};

void correlate(const Correlation& c) {
  long low_h = c.taps[0].h, high_h = low_h, low_w = c.taps[0].w, high_w = low_w;
  for (const Tap& t : c.taps) {
    low_h = std::min(low_h, t.h), high_h = std::max(high_h, t.h);
    low_w = std::min(low_w, t.w), high_w = std::max(high_w, t.w);
  }
  const long code = c.how.is_words ? 2 : 1;
  const long width = (c.columns - 1) * c.step_w + high_w - low_w + 1;  // of a copied row, in pixels
  const long pixel_bytes = round_up(c.channels, 4) * code, row_bytes = width * pixel_bytes;
  const long fitting = std::max(1L, (BLOCK_BYTES / row_bytes - (high_h - low_h)) / c.step_h);
  const long at_least = (ROWS * 2 + c.columns - 1) / c.columns;
  long block = std::min(c.rows, std::max(fitting, at_least));
  if (c.N * ((c.rows + block - 1) / block) < 2 * c.num_threads)
    block = std::max(at_least, (c.rows + 2 * c.num_threads - 1) / (2 * c.num_threads));
  const long num_blocks = (c.rows + block - 1) / block;
  const Constants constants(c);
  std::vector<long> offsets;
  for (const Tap& t : c.taps)
    offsets.push_back((t.h - low_h) * row_bytes + (t.w - low_w) * pixel_bytes);

  parallel_for(c.N * num_blocks, int(c.num_threads), [&](long task) {
    const long image = task / num_blocks, i0 = task % num_blocks * block;
    const long i1 = std::min(c.rows, i0 + block), first = i0 * c.step_h + low_h;
    const long height = (i1 - i0 - 1) * c.step_h + high_h - low_h + 1;
    char* copy = static_cast<char*>(workspace(FIRST, height * row_bytes + 64));
    // columns of the copy that lie on the image
    const long x0 = std::max(0L, -low_w), x1 = std::min(width, c.Ws - low_w);
    int32_t* sums = nullptr;
    if (c.slope) {
      sums = static_cast<int32_t*>(workspace(SUMS, height * width * 4));
      std::memset(sums, 0, height * width * 4);
    }
    for (long y = 0; y < height; ++y) {
      char* row = copy + y * row_bytes;
      const long h = first + y;
      if (h < 0 || h >= c.Hs || x1 <= x0) {
        std::memset(row, 0, row_bytes);
        continue;
      }
      std::memset(row, 0, x0 * pixel_bytes);
      std::memset(row + x1 * pixel_bytes, 0, (width - x1) * pixel_bytes);
      const uint8_t* x = c.source + ((image * c.Hs + h) * c.Ws + x0 + low_w) * c.Cs + c.first_channel;
      char* to = row + x0 * pixel_bytes;
      const bool is_dense = c.Cs == c.channels && c.channels % 4 == 0;
      if (is_dense && code == 1) {
        std::memcpy(to, x, (x1 - x0) * c.channels);
      } else if (is_dense) {
        widen_shifted(x, (x1 - x0) * c.channels, c.shift, reinterpret_cast<int16_t*>(to));
      } else {
        for (long p = x0; p < x1; ++p, x += c.Cs, to += pixel_bytes) {
          if (code == 1)
            std::memcpy(to, x, c.channels);
          else
            widen_shifted(x, c.channels, c.shift, reinterpret_cast<int16_t*>(to));
          std::memset(to + c.channels * code, 0, pixel_bytes - c.channels * code);
        }
        x -= (x1 - x0) * c.Cs;
      }
      if (c.slope) {
        int32_t* to_sum = sums + y * width + x0;
        if (c.Cs == c.channels)
          sum_channels(x, x1 - x0, c.channels, to_sum);
        else
          for (long p = 0; p < x1 - x0; ++p) sum_channels(x + p * c.Cs, 1, c.channels, to_sum + p);
      }
    }
    const long num_pixels = (i1 - i0) * c.columns, padded = round_up(num_pixels, ROWS);
    char* small = static_cast<char*>(workspace(SMALL, padded * 32));
    auto** at = reinterpret_cast<const void**>(small);
    auto** out = reinterpret_cast<float**>(small + 8 * padded);
    auto** constant = reinterpret_cast<const float**>(small + 16 * padded);
    auto* row_sums = reinterpret_cast<float*>(small + 24 * padded);
    auto* whole = reinterpret_cast<int32_t*>(small + 28 * padded);
    for (long i = 0, p = 0; i < i1 - i0; ++i) {
      const char* from = copy + i * c.step_h * row_bytes;
      float* to = c.out + image * c.out_image + (i0 + i) * c.out_row;
      for (long j = 0; j < c.columns; ++j)
        at[p + j] = from + j * c.step_w * pixel_bytes, out[p + j] = to + j * c.out_pixel;
      for (long j = 0; j < c.columns; ++j) constant[p + j] = constants.at((i0 + i) * c.columns + j);
      if (c.slope) {
        std::memset(whole + p, 0, c.columns * 4);
        for (const Tap& t : c.taps)
          add_row(sums + (i * c.step_h + t.h - low_h) * width + t.w - low_w, c.step_w, c.columns,
                  whole + p);
        for (long j = 0; j < c.columns; ++j) row_sums[p + j] = float(whole[p + j]);
      } else {
        for (long j = 0; j < c.columns; ++j) row_sums[p + j] = 0.0f;
      }
      p += c.columns;
    }
    for (long p = num_pixels; p < padded; ++p) at[p] = at[0];
    static const std::vector<float> none(4096);
    multiply(c.how,
             {at, num_pixels, offsets.data(), long(offsets.size()),
              round_up(c.channels, 4) / c.how.group(), 4},
             c.second,
             {c.scale, c.slope ? c.slope : none.data(), row_sums, constant, out});
  });
}

}  // namespace

void conv_output(const Conv& c) {
  const Arithmetic how = choose_bytes_or_words(2 * *c.a_half - 1, *c.w_half);
  const long Cg = c.C / c.groups, Og = c.O / c.groups, num_taps = c.kh * c.kw;
  const long steps = round_up(Cg, 4) / how.group(), num_panels = (Og + COLUMNS - 1) / COLUMNS;
  const long panel_bytes = num_taps * steps * PANEL_BYTES;
  const long half = long(*c.w_half);
  const float sa = *c.a_scale, oa = *c.a_offset;
  for (long g = 0; g < c.groups; ++g) {
    char* panels = static_cast<char*>(workspace(SECOND, num_panels * panel_bytes));
    std::memset(panels, 0, num_panels * panel_bytes);
    std::vector<float> scale(num_panels * COLUMNS), slope(num_panels * COLUMNS);
    Correlation k{};
    k.tap_constant.resize(num_taps * Og);
    for (long n = 0; n < Og; ++n) {
      const long o = g * Og + n, s = c.w_scales == 1 ? 0 : o;
      const float sw = c.w_scale[s], ow = c.w_offset[s] + float(half) * sw;
      scale[n] = sa * sw, slope[n] = sa * ow;
      char* panel = panels + n / COLUMNS * panel_bytes;
      for (long t = 0; t < num_taps; ++t) {
        const uint8_t* w = c.w + o * c.w_o + t / c.kw * c.w_h + t % c.kw * c.w_w;
        int32_t sum = 0;
        for (long i = 0; i < Cg; ++i) {
          const int v = int(w[i * c.w_c]) - int(half);
          sum += v;
          if (how.is_words)
            reinterpret_cast<int16_t*>(panel)[((t * steps + i / 2) * COLUMNS + n % COLUMNS) * 2 + i % 2] = int16_t(v);
          else
            panel[((t * steps + i / 4) * COLUMNS + n % COLUMNS) * 4 + i % 4] = char(v);
        }
        k.tap_constant[t * Og + n] = oa * (sw * float(sum) + float(Cg) * ow);
      }
    }
    for (long t = 0; t < num_taps; ++t)
      k.taps.push_back({t / c.kw * c.dilation_h - c.pad_h, t % c.kw * c.dilation_w - c.pad_w});
    k.source = c.a, k.N = c.N, k.Hs = c.H, k.Ws = c.W, k.Cs = c.C;
    k.step_h = c.stride_h, k.step_w = c.stride_w, k.rows = c.Ho, k.columns = c.Wo;
    k.out = c.out + g * Og, k.out_image = c.Ho * c.Wo * c.O, k.out_row = c.Wo * c.O, k.out_pixel = c.O;
    k.how = how, k.shift = 0, k.first_channel = g * Cg, k.channels = Cg;
    k.second = {panels, panel_bytes, Og};
    k.scale = scale.data(), k.slope = slope.data();
    k.bias = c.bias ? c.bias + g * Og : nullptr, k.num_threads = c.num_threads;
    correlate(k);
  }
}

// The weight's scales lie on the axis that is summed over (output channels). So its values are
// rounded once more, to 16 bits with one scale per input channel, and multiplied as words.
void conv_grad_input(const Conv& c) {
  const Arithmetic how = folded();
  const long Cg = c.C / c.groups, Og = c.O / c.groups;
  const long steps = round_up(Og, 4) / 2, num_panels = (Cg + COLUMNS - 1) / COLUMNS;
  const float se = *c.e_scale, half = *c.e_half, oe = *c.e_offset + half * se;
  for (long g = 0; g < c.groups; ++g) {
    std::vector<float> largest(Cg), step(Cg), scale(num_panels * COLUMNS);
    auto value = [&](long n, long o, long y, long x) {
      const long s = c.w_scales == 1 ? 0 : g * Og + o;
      return c.w_scale[s] * float(c.w[(g * Og + o) * c.w_o + n * c.w_c + y * c.w_h + x * c.w_w]) + c.w_offset[s];
    };
    for (long o = 0; o < Og; ++o)
      for (long n = 0; n < Cg; ++n)
        for (long y = 0; y < c.kh; ++y)
          for (long x = 0; x < c.kw; ++x) largest[n] = std::max(largest[n], std::fabs(value(n, o, y, x)));
    for (long n = 0; n < Cg; ++n) step[n] = largest[n] / 32767.0f, scale[n] = se * step[n];
    for (long rh = 0; rh < c.stride_h; ++rh)
      for (long rw = 0; rw < c.stride_w; ++rw) {
        Correlation k{};
        std::vector<std::pair<long, long>> kernel;
        for (long y = 0; y < c.kh; ++y)
          for (long x = 0; x < c.kw; ++x) {
            const long h = rh + c.pad_h - y * c.dilation_h, w = rw + c.pad_w - x * c.dilation_w;
            if (h % c.stride_h || w % c.stride_w) continue;
            k.taps.push_back({h / c.stride_h, w / c.stride_w});
            kernel.push_back({y, x});
          }
        k.rows = (c.H - rh + c.stride_h - 1) / c.stride_h;
        k.columns = (c.W - rw + c.stride_w - 1) / c.stride_w;
        if (k.rows <= 0 || k.columns <= 0) continue;
        k.out = c.out + (rh * c.W + rw) * c.C + g * Cg;
        k.out_image = c.H * c.W * c.C, k.out_row = c.stride_h * c.W * c.C, k.out_pixel = c.stride_w * c.C;
        if (k.taps.empty()) {
          for (long b = 0; b < c.N; ++b)
            for (long i = 0; i < k.rows; ++i)
              for (long j = 0; j < k.columns; ++j)
                std::fill_n(k.out + b * k.out_image + i * k.out_row + j * k.out_pixel, Cg, 0.0f);
          continue;
        }
        const long num_taps = long(k.taps.size()), panel_bytes = num_taps * steps * PANEL_BYTES;
        char* panels = static_cast<char*>(workspace(SECOND, num_panels * panel_bytes));
        std::memset(panels, 0, num_panels * panel_bytes);
        k.tap_constant.resize(num_taps * Cg);
        for (long n = 0; n < Cg; ++n) {
          int16_t* panel = reinterpret_cast<int16_t*>(panels + n / COLUMNS * panel_bytes);
          for (long t = 0; t < num_taps; ++t) {
            int64_t sum = 0;
            for (long o = 0; o < Og; ++o) {
              const float v = value(n, o, kernel[t].first, kernel[t].second);
              const long f = step[n] > 0 ? std::lrint(v / step[n]) : 0;
              sum += f;
              panel[((t * steps + o / 2) * COLUMNS + n % COLUMNS) * 2 + o % 2] = int16_t(f);
            }
            k.tap_constant[t * Cg + n] = oe * step[n] * float(sum);
          }
        }
        k.source = c.e, k.N = c.N, k.Hs = c.Ho, k.Ws = c.Wo, k.Cs = c.O;
        k.step_h = k.step_w = 1;
        k.how = how, k.shift = int16_t(half), k.first_channel = g * Og, k.channels = Og;
        k.second = {panels, panel_bytes, Cg};
        k.scale = scale.data(), k.slope = nullptr, k.bias = nullptr, k.num_threads = c.num_threads;
        correlate(k);
      }
  }
}


namespace {

// A row of pixels in groups: out[group][channel][pixel of the group], less `shift`. Pixels before
// `first` and from `last` on are not on the image: they read `blank`, whose codes become 0.
struct PixelRow {
  const uint8_t* x;       // pixel 0, which may not exist
  long pixel;             // bytes from one pixel to the next
  long first, last;       // that exist
  long num_groups;
  const uint8_t* blank;
  long channels;          // a multiple of 16, or fewer than 16
  long shift;
  char* out;
  long group_bytes, panel_bytes;  // to the next group, and to the next 16 channels
};

BITCYCLE_INLINE void group_bytes_body(const PixelRow& r) {
  for (long g = 0; g < r.num_groups; ++g) {
    const uint8_t* x[4];
    for (int i = 0; i < 4; ++i) {
      const long p = 4 * g + i;
      x[i] = p >= r.first && p < r.last ? r.x + p * r.pixel : r.blank;
    }
    const uint8_t shift = uint8_t(r.shift);
    for (long c0 = 0; c0 < r.channels; c0 += COLUMNS) {
      uint8_t* out = reinterpret_cast<uint8_t*>(r.out + g * r.group_bytes + c0 / COLUMNS * r.panel_bytes);
      const uint8_t *x0 = x[0] + c0, *x1 = x[1] + c0, *x2 = x[2] + c0, *x3 = x[3] + c0;
#if defined(__SSE2__)
      if (r.channels - c0 >= COLUMNS) {
        const __m128i s = _mm_set1_epi8(char(shift));
        auto load = [&](const uint8_t* p) {
          return _mm_sub_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)), s);
        };
        const __m128i a = load(x0), b = load(x1), c = load(x2), d = load(x3);
        const __m128i ab = _mm_unpacklo_epi8(a, b), cd = _mm_unpacklo_epi8(c, d);
        const __m128i AB = _mm_unpackhi_epi8(a, b), CD = _mm_unpackhi_epi8(c, d);
        __m128i* to = reinterpret_cast<__m128i*>(out);
        _mm_storeu_si128(to, _mm_unpacklo_epi16(ab, cd));
        _mm_storeu_si128(to + 1, _mm_unpackhi_epi16(ab, cd));
        _mm_storeu_si128(to + 2, _mm_unpacklo_epi16(AB, CD));
        _mm_storeu_si128(to + 3, _mm_unpackhi_epi16(AB, CD));
        continue;
      }
#endif
      for (long c = 0; c < std::min<long>(COLUMNS, r.channels - c0); ++c) {
        out[4 * c] = uint8_t(x0[c] - shift);
        out[4 * c + 1] = uint8_t(x1[c] - shift);
        out[4 * c + 2] = uint8_t(x2[c] - shift);
        out[4 * c + 3] = uint8_t(x3[c] - shift);
      }
    }
  }
}
BITCYCLE_FOR_EACH_ISA(group_bytes, (const PixelRow& r), (r))

BITCYCLE_INLINE void group_words_body(const PixelRow& r) {
  for (long g = 0; g < r.num_groups; ++g) {
    const uint8_t* x[2];
    for (int i = 0; i < 2; ++i) {
      const long p = 2 * g + i;
      x[i] = p >= r.first && p < r.last ? r.x + p * r.pixel : r.blank;
    }
    const int16_t shift = int16_t(r.shift);
    for (long c0 = 0; c0 < r.channels; c0 += COLUMNS) {
      int16_t* out = reinterpret_cast<int16_t*>(r.out + g * r.group_bytes + c0 / COLUMNS * r.panel_bytes);
      const uint8_t *x0 = x[0] + c0, *x1 = x[1] + c0;
#if defined(__SSE2__)
      if (r.channels - c0 >= COLUMNS) {
        const __m128i s = _mm_set1_epi16(shift), zero = _mm_setzero_si128();
        const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x0));
        const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x1));
        const __m128i a0 = _mm_sub_epi16(_mm_unpacklo_epi8(a, zero), s), a1 = _mm_sub_epi16(_mm_unpackhi_epi8(a, zero), s);
        const __m128i b0 = _mm_sub_epi16(_mm_unpacklo_epi8(b, zero), s), b1 = _mm_sub_epi16(_mm_unpackhi_epi8(b, zero), s);
        __m128i* to = reinterpret_cast<__m128i*>(out);
        _mm_storeu_si128(to, _mm_unpacklo_epi16(a0, b0));
        _mm_storeu_si128(to + 1, _mm_unpackhi_epi16(a0, b0));
        _mm_storeu_si128(to + 2, _mm_unpacklo_epi16(a1, b1));
        _mm_storeu_si128(to + 3, _mm_unpackhi_epi16(a1, b1));
        continue;
      }
#endif
      for (long c = 0; c < std::min<long>(COLUMNS, r.channels - c0); ++c) {
        out[2 * c] = int16_t(x0[c] - shift);
        out[2 * c + 1] = int16_t(x1[c] - shift);
      }
    }
  }
}
BITCYCLE_FOR_EACH_ISA(group_words, (const PixelRow& r), (r))

void group(const PixelRow& r, bool is_words) { is_words ? group_words(r) : group_bytes(r); }

BITCYCLE_INLINE void add_codes_body(const uint8_t* x, long n, int32_t* sums) {
  for (long i = 0; i < n; ++i) sums[i] += x[i];
}
BITCYCLE_FOR_EACH_ISA(add_codes, (const uint8_t* x, long n, int32_t* sums), (x, n, sums))

struct Range {
  long first, last;  // [first, last)
};

// Results i in [0, count) for which i * stride + offset lies in [0, size).
Range on_image(long offset, long stride, long size, long count) {
  const long first = offset >= 0 ? 0 : (-offset + stride - 1) / stride;
  const long last = offset >= size ? 0 : (size - 1 - offset) / stride + 1;
  return {std::min(first, count), std::max(std::min(first, count), std::min(last, count))};
}

}  // namespace

void conv_grad_weight(const Conv& c) {
  const Arithmetic how = choose_bytes_or_words(2 * *c.e_half - 1, *c.a_half);
  const long Cg = c.C / c.groups, Og = c.O / c.groups, num_taps = c.kh * c.kw;
  const long G = how.group(), Q = (c.Wo + G - 1) / G, steps = c.Ho * Q;
  const long half = long(*c.a_half);
  const int max_panels = tiles().max_panels;
  const long num_panels = round_up((Cg + COLUMNS - 1) / COLUMNS, 1);
  const long tile_rows = round_up(Og, ROWS);
  // rows of the input by what remains after division by the stride, so that those of a tap follow
  // each other
  const long reach = (c.kh - 1) * c.dilation_h, high = (reach + c.stride_h - 1) / c.stride_h + c.Ho;
  const long version = c.stride_h * high * Q * PANEL_BYTES;  // of one kw and panel
  const long e_bytes = steps * tile_rows * 4, x_bytes = c.kw * num_panels * version;
  // The error of some images, and the panel of their inputs that is multiplied, stay in the cache.
  const long images = std::max(1L, std::min<long>(384 * 1024 / (e_bytes + x_bytes / num_panels),
                                                  MAX_SUMMED / (c.Ho * c.Wo)));
  const long chunks = std::min(c.N, c.num_threads);
  const long num_totals = num_taps * tile_rows * num_panels * COLUMNS;
  const long e_map = c.Ho * c.Wo * c.O, x_map = c.H * c.W * c.C;
  std::vector<std::vector<int64_t>> totals(chunks * c.groups);
  std::vector<std::vector<int32_t>> e_sums(chunks), x_sums(chunks);
  const std::vector<uint8_t> e_blank(round_up(Og, 16)), x_blank(round_up(Cg, 16), uint8_t(half));

  parallel_for(chunks, int(c.num_threads), [&](long chunk) {
    const long n0 = c.N * chunk / chunks, n1 = c.N * (chunk + 1) / chunks;
    e_sums[chunk].resize(e_map), x_sums[chunk].resize(x_map);
    for (long n = n0; n < n1; ++n) {
      add_codes(c.e + n * e_map, e_map, e_sums[chunk].data());
      add_codes(c.a + n * x_map, x_map, x_sums[chunk].data());
    }
    for (long g = 0; g < c.groups; ++g) {
      std::vector<int64_t>& total = totals[chunk * c.groups + g];
      total.resize(num_totals);
      std::vector<int32_t> part(num_totals);
      long in_part = 0;  // pixels whose products `part` holds
      auto flush = [&] {
        for (long i = 0; i < num_totals; ++i) total[i] += part[i], part[i] = 0;
        in_part = 0;
      };
      for (long n = n0; n < n1; n += images) {
        const long num = std::min(images, n1 - n);
        if (in_part + num * c.Ho * c.Wo > MAX_SUMMED) flush();
        in_part += num * c.Ho * c.Wo;
        char* es = static_cast<char*>(workspace(FIRST, num * e_bytes + 64));
        char* xs = static_cast<char*>(workspace(SECOND, num * x_bytes + 64));
        if (Cg % COLUMNS) std::memset(xs, 0, num * x_bytes);  // columns that do not exist
        for (long b = 0; b < num; ++b) {
          const uint8_t* e = c.e + (n + b) * e_map + g * Og;
          for (long oh = 0; oh < c.Ho; ++oh)
            group({e + oh * c.Wo * c.O, c.O, 0, c.Wo, Q, e_blank.data(), Og, 0,
                   es + b * e_bytes + oh * Q * tile_rows * 4, tile_rows * 4, PANEL_BYTES},
                  how.is_words);
          const uint8_t* a = c.a + (n + b) * x_map + g * Cg;
          for (long kw = 0; kw < c.kw; ++kw) {
            const long dw = kw * c.dilation_w - c.pad_w;
            const Range columns = on_image(dw, c.stride_w, c.W, c.Wo);
            for (long r = 0; r < c.stride_h; ++r)
              for (long y = 0; y < high; ++y) {
                const long h = y * c.stride_h + r - c.pad_h;
                const bool is_in = h >= 0 && h < c.H;
                group({a + (h * c.W + dw) * c.C, c.stride_w * c.C, is_in ? columns.first : 0,
                       is_in ? columns.last : 0, Q, x_blank.data(), Cg, half,
                       xs + b * x_bytes + kw * num_panels * version + (r * high + y) * Q * PANEL_BYTES,
                       PANEL_BYTES, version},
                      how.is_words);
              }
          }
        }
        const long no_offset = 0;
        for (long p = 0; p < num_panels;) {
          const int panels = num_panels - p >= 2 ? max_panels : 1;
          for (long t = 0; t < num_taps; ++t) {
            const long kh = t / c.kw * c.dilation_h, kw = t % c.kw;
            const long start = (kh % c.stride_h * high + kh / c.stride_h) * Q * PANEL_BYTES;
            for (long o = 0; o < tile_rows; o += ROWS) {
              alignas(64) int32_t sums[ROWS * 2 * COLUMNS] = {};
              for (long b = 0; b < num; ++b) {
                Tile tile;
                for (int i = 0; i < ROWS; ++i) tile.rows[i] = es + b * e_bytes + (o + i) * 4;
                tile.taps = &no_offset, tile.num_taps = 1, tile.num_steps = steps;
                tile.row_step = tile_rows * 4;
                for (int i = 0; i < panels; ++i)
                  tile.panels[i] = xs + b * x_bytes + (kw * num_panels + p + i) * version + start;
                tile.sums = sums;
                if (how.is_words)
                  tiles().words(tile, panels);
                else
                  tiles().bytes(tile, panels, how.widen);
              }
              for (int r = 0; r < ROWS; ++r)
                for (int i = 0; i < panels * COLUMNS; ++i)
                  part[((t * tile_rows + o + r) * num_panels + p) * COLUMNS + i] +=
                      sums[r * panels * COLUMNS + i];
            }
          }
          p += panels;
        }
      }
      flush();
    }
  });

  for (long k = 1; k < chunks; ++k) {
    for (long g = 0; g < c.groups; ++g)
      for (long i = 0; i < num_totals; ++i) totals[g][i] += totals[k * c.groups + g][i];
    for (long i = 0; i < e_map; ++i) e_sums[0][i] += e_sums[k][i];
    for (long i = 0; i < x_map; ++i) x_sums[0][i] += x_sums[k][i];
  }
  const double se = *c.e_scale, oe = *c.e_offset, sa = *c.a_scale;
  const double oa = *c.a_offset + half * sa;
  parallel_for(num_taps, int(c.num_threads), [&](long t) {
    const long dh = t / c.kw * c.dilation_h - c.pad_h, dw = t % c.kw * c.dilation_w - c.pad_w;
    const Range rows = on_image(dh, c.stride_h, c.H, c.Ho), columns = on_image(dw, c.stride_w, c.W, c.Wo);
    const long count = (rows.last - rows.first) * (columns.last - columns.first);
    std::vector<int64_t> e_sum(c.O), x_sum(c.C);
    for (long i = rows.first; i < rows.last; ++i)
      for (long j = columns.first; j < columns.last; ++j) {
        const int32_t* e = e_sums[0].data() + (i * c.Wo + j) * c.O;
        const int32_t* x = x_sums[0].data() + ((i * c.stride_h + dh) * c.W + j * c.stride_w + dw) * c.C;
        for (long o = 0; o < c.O; ++o) e_sum[o] += e[o];
        for (long k = 0; k < c.C; ++k) x_sum[k] += x[k];
      }
    for (long o = 0; o < c.O; ++o) {
      const long g = o / Og;
      const int64_t* total = totals[g].data() + (t * tile_rows + o % Og) * num_panels * COLUMNS;
      for (long k = 0; k < Cg; ++k) {
        const double x = double(x_sum[g * Cg + k]) - double(half * count * c.N);
        c.out[o * c.w_o + k * c.w_c + t / c.kw * c.w_h + t % c.kw * c.w_w] =
            float(se * sa * double(total[k]) + se * oa * double(e_sum[o]) + oe * sa * x +
                  oe * oa * double(count * c.N));
      }
    }
  });
}

}  // namespace bitcycle

BITCYCLE_API int bitcycle_conv_output(const bitcycle::Conv* c) {
  try { bitcycle::conv_output(*c); return 0; } catch (...) { return 1; }
}
BITCYCLE_API int bitcycle_conv_grad_input(const bitcycle::Conv* c) {
  try { bitcycle::conv_grad_input(*c); return 0; } catch (...) { return 1; }
}
BITCYCLE_API int bitcycle_conv_grad_weight(const bitcycle::Conv* c) {
  try { bitcycle::conv_grad_weight(*c); return 0; } catch (...) { return 1; }
}
