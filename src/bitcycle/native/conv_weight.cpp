// The gradient for the weight of a convolution: a sum over pixels and images.
//
//   out[o][c][tap] = sum over pixels p of e[p][o] * a[p * stride + tap][c]
//
// Pixels are the summed axis, so both maps are rewritten with a few pixels of each channel side by
// side: the error as rows of tiles, one for each output channel, and the input as panels of 16
// channels. A border has the centred code 0. The taps of a kernel column read the same panels, from
// different rows of the map on; taps of a kernel row side by side are columns side by side.
//
// The error gets one more row of ones: its products are the sums of the inputs that a tap meets,
// which the offset of the error is multiplied with.
#include <algorithm>
#include <cstring>
#include <vector>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "border.h"
#include "conv.h"
#include "isa.h"
#include "parallel.h"
#include "product.h"

namespace bitcycle {
namespace {

constexpr long PASS_BYTES = 512 * 1024;  // of the error and one panel: stays in the cache

// A row of pixels in groups: out[group][channel][pixel of the group], less `shift`. Writes blocks
// of 16 channels, the next one `block` bytes further on.
struct PixelRow {
  const uint8_t* x;
  long pixel;     // bytes from one pixel to the next
  long channels;  // 16 at a time are read and written, also of the last ones
  long num_groups;
  int shift;
  char* out;
  long group, block;  // bytes
};

void interleave_bytes(const uint8_t* x, long pixel, int shift, char* out) {
#if defined(__SSE2__)
  const __m128i s = _mm_set1_epi8(char(shift));
  auto load = [&](long i) {
    return _mm_sub_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x + i * pixel)), s);
  };
  const __m128i a = load(0), b = load(1), c = load(2), d = load(3);
  const __m128i ab = _mm_unpacklo_epi8(a, b), cd = _mm_unpacklo_epi8(c, d);
  const __m128i AB = _mm_unpackhi_epi8(a, b), CD = _mm_unpackhi_epi8(c, d);
  __m128i* to = reinterpret_cast<__m128i*>(out);
  _mm_storeu_si128(to, _mm_unpacklo_epi16(ab, cd));
  _mm_storeu_si128(to + 1, _mm_unpackhi_epi16(ab, cd));
  _mm_storeu_si128(to + 2, _mm_unpacklo_epi16(AB, CD));
  _mm_storeu_si128(to + 3, _mm_unpackhi_epi16(AB, CD));
#else
  for (int c = 0; c < COLUMNS; ++c)
    for (int i = 0; i < 4; ++i) out[4 * c + i] = char(x[i * pixel + c] - shift);
#endif
}

void interleave_words(const uint8_t* x, long pixel, int shift, char* out) {
#if defined(__SSE2__)
  const __m128i s = _mm_set1_epi16(short(shift)), zero = _mm_setzero_si128();
  const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x));
  const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x + pixel));
  const __m128i a0 = _mm_sub_epi16(_mm_unpacklo_epi8(a, zero), s);
  const __m128i a1 = _mm_sub_epi16(_mm_unpackhi_epi8(a, zero), s);
  const __m128i b0 = _mm_sub_epi16(_mm_unpacklo_epi8(b, zero), s);
  const __m128i b1 = _mm_sub_epi16(_mm_unpackhi_epi8(b, zero), s);
  __m128i* to = reinterpret_cast<__m128i*>(out);
  _mm_storeu_si128(to, _mm_unpacklo_epi16(a0, b0));
  _mm_storeu_si128(to + 1, _mm_unpackhi_epi16(a0, b0));
  _mm_storeu_si128(to + 2, _mm_unpacklo_epi16(a1, b1));
  _mm_storeu_si128(to + 3, _mm_unpackhi_epi16(a1, b1));
#else
  for (int c = 0; c < COLUMNS; ++c)
    for (int i = 0; i < 2; ++i) {
      const int16_t v = int16_t(x[i * pixel + c] - shift);
      std::memcpy(out + 4 * c + 2 * i, &v, 2);
    }
#endif
}

void interleave(const PixelRow& r, bool is_words) {
  const long size = is_words ? 2 : 4;
  for (long g = 0; g < r.num_groups; ++g)
    for (long c = 0; c < r.channels; c += COLUMNS)
      (is_words ? interleave_words : interleave_bytes)(
          r.x + g * size * r.pixel + c, r.pixel, r.shift,
          r.out + g * r.group + c / COLUMNS * r.block);
}

// sums[c] += the sum of pixels [first, last) of a row
BITCYCLE_INLINE void sum_pixels_body(const uint8_t* x, long pixel, long first, long last, long n,
                                     int32_t* sums) {
  long c = 0;
  for (; c + COLUMNS <= n; c += COLUMNS) {
    int32_t part[COLUMNS] = {};
    for (long p = first; p < last; ++p)
      for (int i = 0; i < COLUMNS; ++i) part[i] += x[p * pixel + c + i];
    for (int i = 0; i < COLUMNS; ++i) sums[c + i] += part[i];
  }
  for (; c < n; ++c)
    for (long p = first; p < last; ++p) sums[c] += x[p * pixel + c];
}
BITCYCLE_FOR_EACH_ISA(sum_pixels,
                      (const uint8_t* x, long pixel, long first, long last, long n, int32_t* sums),
                      (x, pixel, first, last, n, sums))

class WeightGradient {
 public:
  explicit WeightGradient(const Conv& c)
      : c_(c), how_(choose_bytes_or_words(*c.e_half, *c.a_half)), half_(int(*c.a_half)),
        channels_(c.C / c.groups), rows_(c.O / c.groups), tile_rows_(round_up(rows_ + 1, ROWS)),
        is_joined_(c.dilation_w == 1 || c.kw == 1),
        run_(is_joined_ ? c.kw * channels_ : channels_), num_runs_(is_joined_ ? 1 : c.kw),
        run_panels_(divide_up(run_, COLUMNS)), num_panels_(num_runs_ * run_panels_),
        num_groups_(divide_up(c.Wo, how_.group())),
        copy_pixels_((num_groups_ * how_.group() - 1) * c.stride_w +
                     (c.kw - 1) * c.dilation_w + 1) {
    plan_blocks();
    plan_passes();
  }

  void run() {
    const bool fits = divide_up(c_.N * num_blocks_, num_chunks_) * steps_ <= how_.max_steps;
    fits ? run_with<int32_t>() : run_with<int64_t>();
  }

 private:
  // Rows of the error that are summed at once: those of a map, or fewer where maps are large.
  void plan_blocks() {
    const long row_bytes = num_groups_ * (tile_rows_ * 4 + PANEL_BYTES);
    const long fitting = std::min(PASS_BYTES / row_bytes, how_.max_steps / num_groups_);
    num_blocks_ = divide_up(c_.Ho, std::max(1L, std::min<long>(c_.Ho, fitting)));
    block_ = divide_up(c_.Ho, num_blocks_);
    const long reach = (c_.kh - 1) * c_.dilation_h;
    high_ = divide_up(reach, c_.stride_h) + block_;
    steps_ = block_ * num_groups_;
    unit_ = c_.stride_h * high_ * num_groups_ * PANEL_BYTES;
    e_bytes_ = steps_ * tile_rows_ * 4;
  }

  void plan_passes() {
    const long num_units = c_.N * num_blocks_;
    num_chunks_ = std::min<long>(num_units, c_.num_threads);
    pass_ = std::min(PASS_BYTES / (e_bytes_ + unit_), how_.max_steps / steps_);
    pass_ = std::max(1L, std::min(pass_, divide_up(num_units, num_chunks_)));
    num_totals_ = c_.kh * tile_rows_ * num_panels_ * COLUMNS;
  }

  template <typename Total>
  void run_with() {
    const long num_units = c_.N * num_blocks_;
    Total* totals = new_array<Total>(SCALES, num_chunks_ * c_.groups * num_totals_);
    std::vector<int64_t> e_sums(num_chunks_ * c_.kh * c_.kw * c_.O);
    parallel_for(num_chunks_, int(c_.num_threads), [&](long chunk) {
      const Range units{num_units * chunk / num_chunks_, num_units * (chunk + 1) / num_chunks_};
      sum_errors(units, e_sums.data() + chunk * c_.kh * c_.kw * c_.O);
      for (long g = 0; g < c_.groups; ++g)
        for (long u = units.first; u < units.last; u += pass_) {
          const Range pass{u, std::min(units.last, u + pass_)};
          char* es = new_array<char>(FIRST, pass.count() * e_bytes_);
          char* xs = new_array<char>(SECOND, pass.count() * num_panels_ * unit_);
          for (long i = 0; i < pass.count(); ++i) {
            load_error(pass.first + i, g, es + i * e_bytes_);
            load_input(pass.first + i, g, xs + i * unit_, pass.count() * unit_);
          }
          multiply_pass(pass.count(), es, xs, u == units.first,
                        totals + (chunk * c_.groups + g) * num_totals_);
        }
    });
    finish(totals, e_sums);
  }

  // ---- operands ----

  // The channels of a group in a row of a map, between borders; pixels that are read beyond it have
  // the code `fill` as well. A row is not copied where nothing else is read.
  static const uint8_t* copy_row(const uint8_t* row, long width, long pixel, long channels,
                                 long pad, long num_pixels, int fill) {
    if (!pad && num_pixels <= width && channels == pixel && channels % COLUMNS == 0) return row;
    uint8_t* copy = new_array<uint8_t>(SMALL, num_pixels * channels);
    const long first = std::min(num_pixels, pad), last = std::min(num_pixels, pad + width);
    std::memset(copy, fill, first * channels);
    copy_pixels(row, pixel, channels, last - first, copy + first * channels);
    std::memset(copy + last * channels, fill, (num_pixels - last) * channels);
    return copy;
  }

  static void copy_pixels(const uint8_t* x, long pixel, long channels, long num, uint8_t* out) {
    if (channels == pixel)
      std::memcpy(out, x, num * pixel);
    else if (channels == 4)  // of a known size: no call
      for (long p = 0; p < num; ++p) std::memcpy(out + p * 4, x + p * pixel, 4);
    else
      for (long p = 0; p < num; ++p) std::memcpy(out + p * channels, x + p * pixel, channels);
  }

  void load_error(long unit, long group, char* out) const {
    const long image = unit / num_blocks_, first = unit % num_blocks_ * block_;
    const long row_bytes = num_groups_ * tile_rows_ * 4, size = how_.group();
    for (long i = 0; i < block_; ++i, out += row_bytes) {
      if (first + i >= c_.Ho) {
        std::memset(out, 0, row_bytes);
        continue;
      }
      const uint8_t* row = c_.e + (image * c_.Ho + first + i) * c_.Wo * c_.O + group * rows_;
      const uint8_t* e = copy_row(row, c_.Wo, c_.O, rows_, 0, num_groups_ * size, 0);
      // each group overwrites what the one before has written too much
      interleave({e, rows_, rows_, num_groups_, 0, out, tile_rows_ * 4, PANEL_BYTES},
                 how_.is_words);
      for (long g = 0; g < num_groups_; ++g)
        write_ones(std::min<long>(size, c_.Wo - g * size), out + (g * tile_rows_ + rows_) * 4);
    }
  }

  void write_ones(long num_pixels, char* out) const {
    const long bits = how_.is_words ? 16 : 8;
    uint32_t ones = how_.is_words ? 0x00010001 : 0x01010101;
    if (num_pixels * bits < 32) ones &= (uint32_t(1) << num_pixels * bits) - 1;
    std::memcpy(out, &ones, 4);
  }

  // Rows of the input by what remains after division by the stride, so that those of a tap follow
  // each other: [panel][phase][row][group].
  void load_input(long unit, long group, char* out, long panel) const {
    const long image = unit / num_blocks_;
    const long first = unit % num_blocks_ * block_ * c_.stride_h - c_.pad_h;
    const long row_bytes = num_groups_ * PANEL_BYTES;
    for (long phase = 0; phase < c_.stride_h; ++phase)
      for (long y = 0; y < high_; ++y) {
        char* to = out + (phase * high_ + y) * row_bytes;
        const long h = first + y * c_.stride_h + phase;
        if (h < 0 || h >= c_.H) {
          for (long p = 0; p < num_panels_; ++p) std::memset(to + p * panel, 0, row_bytes);
          continue;
        }
        const uint8_t* row = c_.a + (image * c_.H + h) * c_.W * c_.C + group * channels_;
        const uint8_t* a =
            copy_row(row, c_.W, c_.C, channels_, c_.pad_w, copy_pixels_, half_);
        for (long r = 0; r < num_runs_; ++r)
          interleave({a + r * c_.dilation_w * channels_, c_.stride_w * channels_, run_, num_groups_,
                      half_, to + r * run_panels_ * panel, PANEL_BYTES, panel},
                     how_.is_words);
      }
  }

  // ---- sums ----

  template <typename Total>
  void multiply_pass(long num_units, const char* es, const char* xs, bool is_first,
                     Total* totals) const {
    alignas(64) int32_t sums[ROWS * 2 * COLUMNS];
    std::vector<long> offsets(num_units);
    for (long u = 0; u < num_units; ++u) offsets[u] = u * e_bytes_;
    // a single row may be longer than 32-bit sums hold: in parts (the pass is one unit then)
    const long part = std::min(steps_, how_.max_steps);
    Tile tile;
    tile.taps = offsets.data(), tile.num_taps = num_units;
    tile.row_step = tile_rows_ * 4, tile.panel_gap = unit_ - steps_ * PANEL_BYTES;
    tile.sums = sums;
    for (long p = 0; p < num_panels_;) {
      const int panels = num_panels_ - p >= 2 ? tiles().max_panels : 1;
      for (long t = 0; t < c_.kh; ++t) {
        const long h = t * c_.dilation_h;
        const long start = (h % c_.stride_h * high_ + h / c_.stride_h) * num_groups_ * PANEL_BYTES;
        for (long at = 0; at < steps_ * tile_rows_; at += ROWS) {
          const long o = at % tile_rows_, step = at / tile_rows_ * part;
          if (step >= steps_) break;
          tile.num_steps = std::min(part, steps_ - step);
          for (int i = 0; i < panels; ++i)
            tile.panels[i] = xs + (p + i) * num_units * unit_ + start + step * PANEL_BYTES;
          for (int i = 0; i < ROWS; ++i) tile.rows[i] = es + (o + i) * 4 + step * tile.row_step;
          if (how_.is_words)
            tiles().words(tile, panels);
          else
            tiles().bytes(tile, panels, how_.widen);
          Total* to = totals + ((t * tile_rows_ + o) * num_panels_ + p) * COLUMNS;
          const int32_t* from = sums;
          for (int r = 0; r < ROWS; ++r, to += num_panels_ * COLUMNS, from += panels * COLUMNS)
            for (int i = 0; i < panels * COLUMNS; ++i)
              to[i] = from[i] + (is_first && step == 0 ? 0 : to[i]);
        }
      }
      p += panels;
    }
  }

  // Sums of the errors whose tap lies on the map, [tap][o]: all but those of pixels at the ends of
  // a row and of rows at the ends of the map.
  void sum_errors(const Range& units, int64_t* out) const {
    const long O = c_.O, kh = c_.kh, kw = c_.kw;
    std::vector<int64_t> sums((1 + kh) * (1 + kw) * O);  // [all, missing rows][all, missing pixels]
    std::vector<int32_t> row((1 + kw) * O);
    for (long u = units.first; u < units.last; ++u) {
      const long image = u / num_blocks_, first = u % num_blocks_ * block_;
      for (long i = first; i < std::min<long>(c_.Ho, first + block_); ++i) {
        sum_row(c_.e + (image * c_.Ho + i) * c_.Wo * O, row.data());
        add(row, sums.data());
        for (long h = 0; h < kh; ++h) {
          const long y = i * c_.stride_h + h * c_.dilation_h - c_.pad_h;
          if (y < 0 || y >= c_.H) add(row, sums.data() + (1 + h) * (1 + kw) * O);
        }
      }
    }
    auto at = [&](long h, long w) { return sums.data() + (h * (1 + kw) + w) * O; };
    for (long h = 0; h < kh; ++h)
      for (long w = 0; w < kw; ++w)
        for (long o = 0; o < O; ++o)
          out[(h * kw + w) * O + o] =
              at(0, 0)[o] - at(0, 1 + w)[o] - at(1 + h, 0)[o] + at(1 + h, 1 + w)[o];
  }

  static void add(const std::vector<int32_t>& row, int64_t* out) {
    for (size_t i = 0; i < row.size(); ++i) out[i] += row[i];
  }

  // All pixels of a row, then those that the taps of each kernel column miss.
  void sum_row(const uint8_t* e, int32_t* out) const {
    std::fill_n(out, (1 + c_.kw) * c_.O, 0);
    sum_pixels(e, c_.O, 0, c_.Wo, c_.O, out);
    for (long w = 0; w < c_.kw; ++w) {
      const Range on = on_map(w * c_.dilation_w - c_.pad_w, c_.stride_w, c_.W, c_.Wo);
      out += c_.O;
      if (on.first > 0) sum_pixels(e, c_.O, 0, on.first, c_.O, out);
      if (on.last < c_.Wo) sum_pixels(e, c_.O, on.last, c_.Wo, c_.O, out);
    }
  }

  // ---- the result ----

  long column(long w, long c) const {
    return is_joined_ ? w * channels_ + c : w * run_panels_ * COLUMNS + c;
  }

  template <typename Total>
  void finish(const Total* totals, const std::vector<int64_t>& e_sums) const {
    const double se = *c_.e_scale, oe = *c_.e_offset, sa = *c_.a_scale;
    const double oa = *c_.a_offset + half_ * sa;
    const long width = num_panels_ * COLUMNS, num_taps = c_.kh * c_.kw;
    auto sum_of = [&](long g, long h, long row, long at) {
      int64_t sum = 0;
      for (long k = 0; k < num_chunks_; ++k)
        sum += totals[(k * c_.groups + g) * num_totals_ + (h * tile_rows_ + row) * width + at];
      return double(sum);
    };
    std::vector<double> of_input(num_taps * c_.C);  // oe * (sa * sum(a') + oa * count)
    for (long h = 0; h < c_.kh; ++h)
      for (long w = 0; w < c_.kw; ++w) {
        const Range on_h = on_map(h * c_.dilation_h - c_.pad_h, c_.stride_h, c_.H, c_.Ho);
        const Range on_w = on_map(w * c_.dilation_w - c_.pad_w, c_.stride_w, c_.W, c_.Wo);
        const double pixels = double(c_.N) * double(on_h.count() * on_w.count());
        for (long c = 0; c < c_.C; ++c)
          of_input[(h * c_.kw + w) * c_.C + c] =
              oe * (sa * sum_of(c / channels_, h, rows_, column(w, c % channels_)) + oa * pixels);
      }
    parallel_for(c_.O, int(c_.num_threads), [&](long o) {
      const long g = o / rows_;
      for (long h = 0; h < c_.kh; ++h)
        for (long w = 0; w < c_.kw; ++w) {
          const long tap = h * c_.kw + w;
          int64_t e_sum = 0;
          for (long k = 0; k < num_chunks_; ++k) e_sum += e_sums[(k * num_taps + tap) * c_.O + o];
          const double of_error = se * oa * double(e_sum);
          float* out = static_cast<float*>(c_.out) + o * c_.w_o + h * c_.w_h + w * c_.w_w;
          const double* input = of_input.data() + tap * c_.C + g * channels_;
          const Total* total =
              totals + g * num_totals_ + (h * tile_rows_ + o % rows_) * width + column(w, 0);
          for (long c = 0; c < channels_; ++c) {
            int64_t sum = total[c];
            for (long k = 1; k < num_chunks_; ++k) sum += total[k * c_.groups * num_totals_ + c];
            out[c * c_.w_c] = float(se * sa * double(sum) + of_error + input[c]);
          }
        }
    });
  }

  const Conv c_;
  const Arithmetic how_;
  const int half_;
  const long channels_, rows_, tile_rows_;  // of a group; the error has one more row of ones
  const bool is_joined_;
  const long run_, num_runs_, run_panels_, num_panels_;
  const long num_groups_, copy_pixels_;  // of a row
  // A unit is a block of rows of an image; a chunk the units of a thread; a pass those in a cache.
  long num_blocks_, block_, high_, steps_;
  long unit_, e_bytes_;  // bytes of a unit: of one panel, and of the error
  long num_chunks_, pass_, num_totals_;
};

}  // namespace

void conv_grad_weight(const Conv& conv) {
  Conv c = conv;
  const long count = c.O * (c.C / c.groups) * c.kh * c.kw;
  Raised(c.e_scale, c.e_offset, 1).run({c.out, false}, count, [&](Results out) {
    c.out = out.data;
    c.is_depthwise() ? depthwise_grad_weight(c) : WeightGradient(with_joined_rows(c)).run();
  });
}

}  // namespace bitcycle
