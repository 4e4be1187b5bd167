// The output of a convolution and the gradient for its input, without unrolling it into a matrix.
//
// Both correlate a map with a kernel. The map is copied with its border into the cache, as bytes or
// int16. There the codes of a result's window are one pointer and, for every tap of the kernel, the
// same distance from it for all results: the tiles read them in place. Taps side by side are one
// run of codes. Without a border, bytes are not even copied. A border is code 0, which adds nothing
// to a sum of codes; what offsets add depends on the taps that lie on the map.
#include "conv.h"

#include <algorithm>
#include <cstring>
#include <vector>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "border.h"
#include "isa.h"
#include "layout.h"
#include "panels.h"
#include "parallel.h"
#include "product.h"

namespace bitcycle {
namespace {

constexpr long COPY_BYTES = 192 * 1024, OUT_BYTES = 512 * 1024;  // of a task: for the cache

// ---- loops over codes -----------------------------------------------------------------------

BITCYCLE_INLINE void widen_codes_body(const uint8_t* x, long n, int shift, int16_t* out) {
  for (long i = 0; i < n; ++i) out[i] = int16_t(x[i] - shift);
}
BITCYCLE_FOR_EACH_ISA(widen_codes, (const uint8_t* x, long n, int shift, int16_t* out),
                      (x, n, shift, out))

// out[p] = the sum of n codes from x + p * pixel on
BITCYCLE_INLINE void sum_pixels_body(const uint8_t* x, long num_pixels, long pixel, long n,
                                     int32_t* out) {
  if (n < 16) {
    for (long p = 0; p < num_pixels; ++p, x += pixel) {
      out[p] = x[0];
      for (long i = 1; i < n; ++i) out[p] += x[i];
    }
    return;
  }
  for (long p = 0; p < num_pixels; ++p, x += pixel) {
    int32_t sum = 0;
    long i = 0;
#if defined(__SSE2__)
    __m128i sums = _mm_setzero_si128();
    for (; i + 16 <= n; i += 16)
      sums = _mm_add_epi64(
          sums, _mm_sad_epu8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x + i)),
                             _mm_setzero_si128()));
    sum = _mm_cvtsi128_si32(sums) + _mm_cvtsi128_si32(_mm_unpackhi_epi64(sums, sums));
#endif
    for (; i < n; ++i) sum += x[i];
    out[p] = sum;
  }
}
BITCYCLE_FOR_EACH_ISA(sum_pixels,
                      (const uint8_t* x, long num_pixels, long pixel, long n, int32_t* out),
                      (x, num_pixels, pixel, n, out))

// out[j] = the sum over taps of x[j * step + tap]
BITCYCLE_INLINE void sum_taps_body(const int32_t* x, const long* taps, long num_taps, long step,
                                   long n, int32_t* __restrict out) {
  for (long j = 0; j < n; ++j) out[j] = 0;
  for (long t = 0; t < num_taps; ++t) {
    const int32_t* from = x + taps[t];
    if (step == 1)
      for (long j = 0; j < n; ++j) out[j] += from[j];
    else
      for (long j = 0; j < n; ++j) out[j] += from[j * step];
  }
}
BITCYCLE_FOR_EACH_ISA(sum_taps,
                      (const int32_t* x, const long* taps, long num_taps, long step, long n,
                       int32_t* out),
                      (x, taps, num_taps, step, n, out))

// ---- correlation ----------------------------------------------------------------------------

// out[i][j] = sum over taps of map[i * step_h + tap_h][j * step_w + tap_w] . kernel[tap]
struct Correlation {
  const uint8_t* map;
  long N, H, W, C;
  long image, row, pixel;            // strides of the map
  long step_h, step_w;
  std::vector<long> taps_h, taps_w;  // ascending, may be negative
  long rows, columns;                // results of an image
  Results out;
  long out_image, out_row, out_pixel;
  long out_plane;                    // of a result channel; 1: channels are side by side
  Arithmetic how;
  int shift;                         // subtracted from words
  long groups, O;                    // O: result channels
  const float *image_scale, *image_offset;  // or null: of each image, besides the terms below
  float map_offset;                         // of all images otherwise, in a folded product
  long num_threads;

  // the kernel, filled by `pack_kernel`
  const char* panels = nullptr;      // [group][panel]
  std::vector<float> scale, slope;   // of result channels; slope is empty if it is not needed
  std::vector<float> constants;      // [tap_h][tap_w][O]: what a tap on the map adds
  std::vector<double> totals, units;  // or instead: sums of its folded values, and their units
  const float* bias = nullptr;

  long channels() const { return C / groups; }
  long group_columns() const { return O / groups; }
  long group_panels() const { return divide_up(group_columns(), COLUMNS); }
  bool is_joined() const {  // the taps of a row of the kernel are one run of codes
    return groups == 1 && taps_w.back() - taps_w.front() + 1 == long(taps_w.size());
  }
  long run() const { return is_joined() ? long(taps_w.size()) * C : channels(); }
  long num_runs() const { return long(taps_h.size() * (is_joined() ? 1 : taps_w.size())); }
  long run_bytes() const { return panel_bytes(run(), how.is_words); }
  long kernel_bytes() const { return num_runs() * run_bytes(); }  // of a panel
  long k_of(long h, long w, long c) const {  // the number of a code among `num_runs` padded runs
    const long length = round_up(run(), 4);
    return is_joined() ? h * length + w * C + c : (h * long(taps_w.size()) + w) * length + c;
  }
};

class Correlator {
 public:
  explicit Correlator(const Correlation& c)
      : c_(c), constants_({c.taps_h, c.step_h, c.H, c.rows}, {c.taps_w, c.step_w, c.W, c.columns},
                          c.constants, c.bias, c.O) {
    if (!c.totals.empty()) {
      const BorderConstants totals({c.taps_h, c.step_h, c.H, c.rows},
                                   {c.taps_w, c.step_w, c.W, c.columns}, c.totals, nullptr, c.O);
      totals_.assign(totals.values(), totals.values() + totals.size());
      folded_.resize(totals_.size());
      set_folded(c.scale.data(), c.map_offset, folded_.data());
    }
    const long code = c.how.code_bytes();
    low_h_ = c.taps_h.front(), low_w_ = c.taps_w.front();
    width_ = (c.columns - 1) * c.step_w + c.taps_w.back() - low_w_ + 1;
    is_copied_ = c.how.is_words || constants_.has_border() || c.run() % 4;
    pixel_bytes_ = is_copied_ ? c.C * code : c.pixel;
    row_bytes_ = is_copied_ ? width_ * pixel_bytes_ : c.row;
    for (long h : c.taps_h)
      for (long w : c.taps_w) {
        if (c.is_joined() && w != low_w_) continue;
        offsets_.push_back((h - low_h_) * row_bytes_ + (w - low_w_) * pixel_bytes_);
      }
    plan_tasks();
  }

  void run() {
    const long num_sets = divide_up(c_.N, images_);
    parallel_for(num_sets * num_blocks_, int(c_.num_threads), [&](long task) {
      const long first = task / num_blocks_ * images_, i = task % num_blocks_ * block_;
      Part part{first, std::min(c_.N, first + images_), i, std::min(c_.rows, i + block_)};
      correlate(part);
    });
  }

 private:
  struct Part {
    long first, last;  // images
    long i0, i1;       // rows of results
    long num_rows() const { return i1 - i0; }
  };

  long height(long num_rows) const {  // rows of the map
    return (num_rows - 1) * c_.step_h + c_.taps_h.back() - low_h_ + 1;
  }

  void plan_tasks() {
    const long out_row = c_.columns * c_.O * c_.out.element_bytes(), tasks = 2 * c_.num_threads;
    const long map_row = width_ * c_.C * c_.how.code_bytes();
    const long by_copy = (COPY_BYTES / map_row - height(1)) / c_.step_h;
    const long at_least = divide_up(2 * ROWS, c_.columns);
    block_ = std::min(c_.rows, std::max(at_least, std::min(by_copy + 1, OUT_BYTES / out_row)));
    if (c_.N * divide_up(c_.rows, block_) < tasks)
      block_ = std::max(at_least, divide_up(c_.rows * c_.N, tasks));
    block_ = std::min(block_, c_.rows);
    num_blocks_ = divide_up(c_.rows, block_);
    images_ = 1;
    if (num_blocks_ == 1 && !c_.image_scale) {
      const long by_size = std::min(COPY_BYTES / (height(block_) * map_row),
                                    OUT_BYTES / (block_ * out_row));
      images_ = std::max(1L, std::min(by_size, c_.num_threads > 1 ? c_.N / tasks : c_.N));
    }
  }

  void correlate(const Part& part) {
    const long high = height(part.num_rows());
    const char* source = reinterpret_cast<const char*>(c_.map) + part.first * c_.image +
                         (part.i0 * c_.step_h + low_h_) * c_.row + low_w_ * c_.pixel;
    long image_bytes = c_.image;
    if (is_copied_) {
      image_bytes = high * row_bytes_;
      char* copy = new_array<char>(FIRST, (part.last - part.first) * image_bytes);
      for (long n = part.first; n < part.last; ++n)
        for (long y = 0; y < high; ++y)
          copy_row(n, part.i0 * c_.step_h + low_h_ + y,
                   copy + (n - part.first) * image_bytes + y * row_bytes_);
      source = copy;
    }
    Rows rows = new_rows((part.last - part.first) * part.num_rows() * c_.columns);
    rows.taps = offsets_.data(), rows.num_taps = long(offsets_.size());
    rows.num_steps = round_up(c_.run(), 4) / c_.how.group(), rows.row_step = 4;
    rows.is_half = c_.out.is_half;
    rows.is_streamed =
        c_.out_plane == 1 && c_.N * c_.rows * c_.columns * c_.O * 4 >= STREAM_BYTES;
    Results results = c_.out;
    if (c_.out_plane > 1)
      results.data = new_array<char>(RESULTS, rows.count * c_.O * results.element_bytes());
    const float* constants = folded_.empty() ? constants_.values() : folded_.data();
    const float* scale = c_.scale.data();
    if (c_.image_scale) scale_terms(part.first, scale, constants);
    for (long g = 0; g < c_.groups; ++g) {
      const long channel = g * c_.channels() * (is_copied_ ? c_.how.code_bytes() : 1);
      point(part, source + channel, image_bytes, constants, g, results, rows);
      if (!c_.slope.empty()) sum_windows(part, g, rows);
      const long n = g * c_.group_columns();
      multiply(c_.how, rows,
               {c_.panels + g * c_.group_panels() * c_.kernel_bytes(), c_.kernel_bytes(),
                c_.group_columns(), scale + n, c_.slope.empty() ? nullptr : c_.slope.data() + n});
    }
    if (c_.out_plane > 1) turn(part, results);
  }

  // The results of a task, which are in the cache, to planes of a channel each.
  void turn(const Part& part, Results results) const {
    const bool is_one_run = c_.out_pixel == 1 && c_.out_row == c_.columns;
    const long run = is_one_run ? part.num_rows() * c_.columns : c_.columns;
    for (long n = part.first; n < part.last; ++n)
      for (long i = part.i0; i < part.i1; i += run / c_.columns) {
        turn_pixels(results.data, run, c_.O,
                    {c_.out.from(n * c_.out_image + i * c_.out_row), c_.out_plane, c_.out_pixel});
        results = results.from(run * c_.O);
      }
  }

  // Columns of a copied row that lie on the map.
  Range on_row() const {
    const long first = std::min(width_, std::max(0L, -low_w_));
    return {first, std::max(first, std::min(width_, c_.W - low_w_))};
  }

  void copy_row(long image, long h, char* out) const {
    const Range on = on_row();
    if (h < 0 || h >= c_.H || on.count() == 0) {
      std::memset(out, 0, row_bytes_);
      return;
    }
    std::memset(out, 0, on.first * pixel_bytes_);
    std::memset(out + on.last * pixel_bytes_, 0, (width_ - on.last) * pixel_bytes_);
    const uint8_t* x = c_.map + image * c_.image + h * c_.row + (on.first + low_w_) * c_.pixel;
    out += on.first * pixel_bytes_;
    if (c_.pixel == c_.C) return copy_codes(x, on.count() * c_.C, out);
    for (long p = 0; p < on.count(); ++p)
      copy_codes(x + p * c_.pixel, c_.C, out + p * pixel_bytes_);
  }

  void copy_codes(const uint8_t* x, long n, char* out) const {
    if (c_.how.is_words)
      widen_codes(x, n, c_.shift, reinterpret_cast<int16_t*>(out));
    else
      std::memcpy(out, x, n);
  }

  void point(const Part& part, const char* source, long image_bytes, const float* constants,
             long group, Results results, Rows& rows) const {
    const long first = group * c_.group_columns();
    const bool is_turned = c_.out_plane > 1;
    const long out_bytes = (is_turned ? c_.O : c_.out_pixel) * results.element_bytes();
    long p = 0;
    for (long n = part.first; n < part.last; ++n)
      for (long i = part.i0; i < part.i1; ++i) {
        const char* at = source + (n - part.first) * image_bytes +
                         (i - part.i0) * c_.step_h * row_bytes_;
        char* out = results.at(
            first + (is_turned ? p * c_.O : n * c_.out_image + i * c_.out_row));
        const float* row = constants + constants_.at_row(i) + first;
        const long step = c_.step_w * pixel_bytes_;
        for (long j = 0; j < c_.columns; ++j) rows.at[p + j] = at + j * step;
        for (long j = 0; j < c_.columns; ++j) rows.out[p + j] = out + j * out_bytes;
        for (long j = 0; j < c_.columns; ++j) rows.constants[p + j] = row + constants_.at_column(j);
        p += c_.columns;
      }
    for (; p < round_up(rows.count, ROWS); ++p) rows.at[p] = rows.at[0];
  }

  // Sums of the codes of each window: of pixels, then of those side by side, then of all.
  void sum_windows(const Part& part, long group, Rows& rows) const {
    const long high = height(part.num_rows()), n = c_.columns;
    const Range on = on_row();
    int32_t* pixels = new_array<int32_t>(SUMS, width_ + (high + 1) * n);
    int32_t *lines = pixels + width_, *windows = lines + high * n;
    std::vector<long> taps_w, taps_h;
    for (long w : c_.taps_w) taps_w.push_back(w - low_w_);
    for (long h : c_.taps_h) taps_h.push_back((h - low_h_) * n);
    std::memset(pixels, 0, width_ * 4);
    float* out = rows.sums;
    for (long image = part.first; image < part.last; ++image) {
      const uint8_t* x = c_.map + image * c_.image + (on.first + low_w_) * c_.pixel +
                         group * c_.channels();
      for (long y = 0; y < high; ++y) {
        const long h = part.i0 * c_.step_h + low_h_ + y;
        if (h < 0 || h >= c_.H) {
          std::memset(lines + y * n, 0, n * 4);
          continue;
        }
        sum_pixels(x + h * c_.row, on.count(), c_.pixel, c_.channels(), pixels + on.first);
        sum_taps(pixels, taps_w.data(), long(taps_w.size()), c_.step_w, n, lines + y * n);
      }
      for (long i = 0; i < part.num_rows(); ++i, out += n) {
        sum_taps(lines + i * c_.step_h * n, taps_h.data(), long(taps_h.size()), 1, n, windows);
        for (long j = 0; j < n; ++j) out[j] = float(windows[j]);
      }
    }
  }

  // The constants of a folded product for scales of result channels and an offset of the map.
  void set_folded(const float* scale, double offset, float* out) const {
    for (long i = 0; i < long(totals_.size()); ++i)
      out[i] = folded_constant(float(c_.shift), totals_[i], scale[i % c_.O],
                               offset * c_.units[i % c_.O]);
  }

  void scale_terms(long image, const float*& scale, const float*& constants) const {
    float* scaled = new_array<float>(SCALES, with_spare(c_.O) + long(totals_.size()));
    for (long n = 0; n < c_.O; ++n) scaled[n] = c_.image_scale[image] * scale[n];
    set_folded(scaled, c_.image_offset[image], scaled + with_spare(c_.O));
    scale = scaled, constants = scaled + with_spare(c_.O);
  }

  const Correlation& c_;
  const BorderConstants<float> constants_;
  std::vector<double> totals_;  // of a folded product
  std::vector<float> folded_;
  long low_h_, low_w_, width_;
  bool is_copied_;
  long pixel_bytes_, row_bytes_;
  std::vector<long> offsets_;
  long block_, num_blocks_, images_;
};

// ---- kernels --------------------------------------------------------------------------------

// Calls body(group, panel, first column, number of columns), each in a task of its own.
template <typename Body>
void for_each_panel(const Correlation& k, const Body& body) {
  const long panels = k.group_panels();
  parallel_for(k.groups * panels, int(k.num_threads), [&](long task) {
    const long group = task / panels, first = task % panels * COLUMNS;
    body(task, group, first, std::min<long>(COLUMNS, k.group_columns() - first));
  });
}

// The weight as a correlation reads it.
struct Kernel {
  const uint8_t* w;
  long group, channel, column;  // strides
  std::vector<long> h, w_;      // distances of the taps
  const uint8_t* at(long g, size_t y, size_t x) const { return w + g * group + h[y] + w_[x]; }
};

// One panel's codes as rows of 16, in the order of `k_of`.
Codes gather(const Correlation& k, const Kernel& kernel, long group, long first, long num_columns,
             int fill) {
  const long K = k.num_runs() * round_up(k.run(), 4);
  uint8_t* rows = new_array<uint8_t>(SMALL, K * COLUMNS);
  if (num_columns < COLUMNS || k.run() % 4) std::memset(rows, fill, K * COLUMNS);
  for (size_t h = 0; h < k.taps_h.size(); ++h)
    for (size_t w = 0; w < k.taps_w.size(); ++w)
      copy_as_rows({kernel.at(group, h, w) + first * kernel.column, kernel.column, kernel.channel,
                    num_columns, k.channels()},
                   rows + k.k_of(long(h), long(w), 0) * COLUMNS);
  return {rows, 1, COLUMNS, COLUMNS, K};
}

struct Grid {
  float scale, offset;
};

// A kernel with one grid for each result channel.
template <typename GridOf>
void pack_kernel(Correlation& k, int half, const Grid& map, const Kernel& kernel,
                 const GridOf& grid_of) {
  const long num_w = long(k.taps_w.size()), length = round_up(k.run(), 4);
  k.scale.resize(with_spare(k.O)), k.slope.resize(with_spare(k.O));
  k.constants.resize(k.taps_h.size() * num_w * k.O);
  char* panels = new_array<char>(SECOND, k.groups * k.group_panels() * k.kernel_bytes());
  k.panels = panels;
  for_each_panel(k, [&](long panel, long group, long first, long num) {
    const Codes rows = gather(k, kernel, group, first, num, half);
    int64_t sums[COLUMNS];
    for (long r = 0; r < k.num_runs(); ++r)
      pack_codes({rows.x + r * length * COLUMNS, 1, COLUMNS, COLUMNS, length}, half, k.how.is_words,
                 panels + panel * k.kernel_bytes() + r * k.run_bytes(), sums);
    const long at = group * k.group_columns() + first;
    for (long n = 0; n < num; ++n) {
      const Grid grid = grid_of(at + n);
      k.scale[at + n] = map.scale * grid.scale;
      k.slope[at + n] = map.scale * (grid.offset + float(half) * grid.scale);
    }
    for (long t = 0; t < long(k.taps_h.size()) * num_w; ++t) {
      std::fill_n(sums, COLUMNS, -half * k.channels());
      const long first_k = k.k_of(t / num_w, t % num_w, 0);
      add_codes({rows.x + first_k * COLUMNS, 1, COLUMNS, COLUMNS, k.channels()}, sums);
      for (long n = 0; n < num; ++n) {
        const Grid grid = grid_of(at + n);
        const float offset = grid.offset + float(half) * grid.scale;
        k.constants[t * k.O + at + n] =
            map.offset * (grid.scale * float(sums[n]) + float(k.channels()) * offset);
      }
    }
  });
}

// Results fill maps of this size, of k.O channels.
void set_results(Correlation& k, Results out, long height, long width, bool is_contiguous) {
  k.out = out, k.out_image = height * width * k.O;
  k.out_plane = is_contiguous && k.O > 1 ? height * width : 1;
  k.out_pixel = k.out_plane > 1 ? 1 : k.O, k.out_row = width * k.out_pixel;
}

// A depthwise convolution, whose results are channels-last: a few images at a time, so that they
// are still in the cache when they are turned.
void run_depthwise(const Conv& conv, long height, long width, void (*function)(const Conv&)) {
  if (!conv.out_is_contiguous) return function(conv);
  const long image = height * width * conv.C, size = conv.results().element_bytes();
  const long images = std::max(2 * conv.num_threads, OUT_BYTES / (image * size));
  for (long n = 0; n < conv.N; n += images) {
    Conv c = conv;
    c.N = std::min(images, conv.N - n);
    if (c.a) c.a += n * c.H * c.W * c.C;
    if (c.e) c.e += n * c.Ho * c.Wo * c.O;
    if (c.e_scales > 1) c.e_scale += n, c.e_offset += n, c.e_scales = c.N;
    c.out = new_array<char>(RESULTS, c.N * image * size);
    function(c);
    turn_results(c.results(), {c.N, c.C, height * width}, conv.results().from(n * image),
                 c.num_threads);
  }
}

}  // namespace

void conv_output(const Conv& conv) {
  if (conv.is_depthwise()) return run_depthwise(conv, conv.Ho, conv.Wo, depthwise_output);
  const Conv c = with_joined_rows(conv);
  Correlation k{};
  k.map = c.a, k.N = c.N, k.H = c.H, k.W = c.W, k.C = c.C;
  k.image = c.H * c.W * c.C, k.row = c.W * c.C, k.pixel = c.C;
  k.step_h = c.stride_h, k.step_w = c.stride_w;
  for (long h = 0; h < c.kh; ++h) k.taps_h.push_back(h * c.dilation_h - c.pad_h);
  for (long w = 0; w < c.kw; ++w) k.taps_w.push_back(w * c.dilation_w - c.pad_w);
  k.rows = c.Ho, k.columns = c.Wo;
  k.groups = c.groups, k.O = c.O, k.bias = c.bias, k.num_threads = c.num_threads;
  set_results(k, c.results(), c.Ho, c.Wo, c.out_is_contiguous);
  k.how = choose_bytes_or_words(*c.a_half, *c.w_half), k.shift = 0;
  if (c.kh == 1 && c.kw == 1 && !c.pad_h && !c.pad_w) {  // only the pixels that are read
    k.row *= k.step_h, k.pixel *= k.step_w, k.step_h = k.step_w = 1;
    k.H = divide_up(c.H, c.stride_h), k.W = divide_up(c.W, c.stride_w);
  }
  Kernel kernel{c.w, k.group_columns() * c.w_o, c.w_c, c.w_o, {}, {}};
  for (long h = 0; h < c.kh; ++h) kernel.h.push_back(h * c.w_h);
  for (long w = 0; w < c.kw; ++w) kernel.w_.push_back(w * c.w_w);
  pack_kernel(k, int(*c.w_half), {*c.a_scale, *c.a_offset}, kernel, [&](long o) {
    const long s = c.w_scales == 1 ? 0 : o;
    return Grid{c.w_scale[s], c.w_offset[s]};
  });
  Correlator(k).run();
}

namespace {

// The weight as grad_input reads it: output channels are summed, input channels are columns.
Kernel turned_kernel(const Conv& c, const PhaseTaps& rows, const PhaseTaps& columns) {
  Kernel kernel{c.w, c.O / c.groups * c.w_o, c.w_o, c.w_c, {}, {}};
  for (long tap : rows.tap) kernel.h.push_back(tap * c.w_h);
  for (long tap : columns.tap) kernel.w_.push_back(tap * c.w_w);
  return kernel;
}

// The weight's scales lie on the axis that is summed over (output channels). So its values are
// folded to 16 bits with a unit for each input channel.
void fold_kernel(const Conv& c, Correlation& k, const PhaseTaps& rows, const PhaseTaps& columns) {
  const long length = round_up(k.run(), 4), K = k.num_runs() * length;
  std::vector<float> grids(k.groups * 2 * K);
  for (long g = 0; g < k.groups; ++g)
    for (long h = 0; h < long(rows.tap.size()); ++h)
      for (long w = 0; w < long(columns.tap.size()); ++w)
        for (long o = 0; o < k.channels(); ++o) {
          const long s = c.w_scales == 1 ? 0 : g * k.channels() + o;
          grids[2 * g * K + k.k_of(h, w, o)] = c.w_scale[s];
          grids[(2 * g + 1) * K + k.k_of(h, w, o)] = c.w_offset[s];
        }
  const double se = c.e_scales > 1 ? 1.0 : *c.e_scale;
  const long num_taps = long(k.taps_h.size() * k.taps_w.size());
  k.map_offset = *c.e_offset;
  char* panels = new_array<char>(SECOND, k.groups * k.group_panels() * k.kernel_bytes());
  k.panels = panels;
  k.scale.resize(with_spare(c.C)), k.units.resize(c.C);
  k.constants.resize(num_taps * c.C), k.totals.resize(num_taps * c.C);
  const Kernel kernel = turned_kernel(c, rows, columns);
  for_each_panel(k, [&](long panel, long group, long first, long num) {
    const Codes codes = gather(k, kernel, group, first, num, 0);
    const float* scale = grids.data() + 2 * group * K;
    const Fold fold = find_units(codes, scale, scale + K);
    pack_folded(fold, panels + panel * k.kernel_bytes());
    const long at = group * k.group_columns() + first;
    for (long n = 0; n < num; ++n)
      k.units[at + n] = fold.unit[n], k.scale[at + n] = float(se * fold.unit[n]);
    for (long h = 0; h < long(rows.tap.size()); ++h)
      for (long w = 0; w < long(columns.tap.size()); ++w) {
        int64_t sums[COLUMNS] = {};
        add_folded(fold, k.k_of(h, w, 0), k.channels(), sums);
        for (long n = 0; n < num; ++n)
          k.totals[(h * long(columns.tap.size()) + w) * c.C + at + n] = double(sums[n]);
      }
  });
}

// Inputs whose distance is a multiple of the stride have the same taps: one correlation for each
// phase of the stride.
void multiply_grad_input(const Conv& conv) {
  if (conv.is_depthwise()) return run_depthwise(conv, conv.H, conv.W, depthwise_grad_input);
  const Conv c = with_joined_rows(conv);
  const long out_image = c.H * c.W * c.C;
  std::vector<PhaseTaps> rows, columns;
  bool has_gaps = false;
  for (long p = 0; p < std::min(c.stride_h, c.H); ++p)
    rows.push_back(find_phase(p, c.kh, c.stride_h, c.pad_h, c.dilation_h));
  for (long p = 0; p < std::min(c.stride_w, c.W); ++p)
    columns.push_back(find_phase(p, c.kw, c.stride_w, c.pad_w, c.dilation_w));
  for (const auto* axis : {&rows, &columns})
    for (const PhaseTaps& taps : *axis) has_gaps |= taps.tap.empty();
  const Results out = c.results();
  if (has_gaps)
    parallel_for(c.N, int(c.num_threads), [&](long n) {
      std::memset(out.at(n * out_image), 0, out_image * out.element_bytes());
    });
  for (long ph = 0; ph < long(rows.size()); ++ph)
    for (long pw = 0; pw < long(columns.size()); ++pw) {
      if (rows[ph].tap.empty() || columns[pw].tap.empty()) continue;
      Correlation k{};
      k.map = c.e, k.N = c.N, k.H = c.Ho, k.W = c.Wo, k.C = c.O;
      k.image = c.Ho * c.Wo * c.O, k.row = c.Wo * c.O, k.pixel = c.O;
      k.step_h = k.step_w = 1;
      k.taps_h = rows[ph].offset, k.taps_w = columns[pw].offset;
      k.rows = divide_up(c.H - ph, c.stride_h), k.columns = divide_up(c.W - pw, c.stride_w);
      k.groups = c.groups, k.O = c.C, k.num_threads = c.num_threads;
      set_results(k, out, c.H, c.W, c.out_is_contiguous);
      k.out = out.from(ph * k.out_row + pw * k.out_pixel);
      k.out_row *= c.stride_h, k.out_pixel *= c.stride_w;
      if (c.w_scales == 1 && c.e_scales <= 1) {
        k.how = choose_bytes_or_words(*c.e_half, *c.w_half);
        pack_kernel(k, int(*c.w_half), {*c.e_scale, *c.e_offset},
                    turned_kernel(c, rows[ph], columns[pw]),
                    [&](long) { return Grid{*c.w_scale, *c.w_offset}; });
      } else {
        k.how = folded(*c.e_half), k.shift = int(*c.e_half);
        if (c.e_scales > 1) k.image_scale = c.e_scale, k.image_offset = c.e_offset;
        fold_kernel(c, k, rows[ph], columns[pw]);
      }
      Correlator(k).run();
    }
}

}  // namespace

void conv_grad_input(const Conv& conv) {
  Conv c = conv;
  const long count = c.N * c.H * c.W * c.C;
  Raised(c.e_scale, c.e_offset, c.e_scales).run(c.results(), count, [&](Results out) {
    c.out = out.data, c.out_is_half = out.is_half;
    multiply_grad_input(c);
  });
}

}  // namespace bitcycle

namespace {

int call(void (*function)(const bitcycle::Conv&), const bitcycle::Conv* c) {
  try {
    function(*c);
    return 0;
  } catch (...) {
    return 1;
  }
}

}  // namespace

BITCYCLE_API int bitcycle_conv_output(const bitcycle::Conv* c) {
  return call(bitcycle::conv_output, c);
}
BITCYCLE_API int bitcycle_conv_grad_input(const bitcycle::Conv* c) {
  return call(bitcycle::conv_grad_input, c);
}
BITCYCLE_API int bitcycle_conv_grad_weight(const bitcycle::Conv* c) {
  return call(bitcycle::conv_grad_weight, c);
}
