// Which taps of a kernel lie on the map, and what they add to a result besides products of codes.
#pragma once
#include <algorithm>
#include <vector>

#include "product.h"

namespace bitcycle {

struct Range {
  long first, last;  // [first, last)
  long count() const { return last - first; }
};

// Results i in [0, count) for which i * stride + offset lies in [0, size).
inline Range on_map(long offset, long stride, long size, long count) {
  const long first = offset >= 0 ? 0 : (-offset + stride - 1) / stride;
  const long last = offset >= size ? 0 : (size - 1 - offset) / stride + 1;
  return {std::min(first, count), std::max(std::min(first, count), std::min(last, count))};
}

// One axis of a correlation: result i reads i * step + tap.
struct Axis {
  const std::vector<long>& taps;  // ascending, may be negative
  long step, size;                // size: of the map
  long count;                     // results

  Range taps_of(long i) const {  // that lie on the map
    auto before = [&](long end) {
      return std::lower_bound(taps.begin(), taps.end(), end - i * step) - taps.begin();
    };
    return {before(0), before(size)};
  }
};

// One axis of the taps that reach the inputs phase, phase + stride, ... from the error.
struct PhaseTaps {
  std::vector<long> offset, tap;  // in the error, ascending; in the kernel
};

inline PhaseTaps find_phase(long phase, long size, long stride, long pad, long dilation) {
  PhaseTaps found;
  for (long t = size - 1; t >= 0; --t) {
    const long at = phase + pad - t * dilation;
    if (at % stride) continue;
    found.offset.push_back(at / stride);
    found.tap.push_back(t);
  }
  return found;
}

// Constants of a result, for every channel: the sum over the taps that lie on the map, and a bias.
// There are few sets of such taps and many results.
template <typename T>
class BorderConstants {
 public:
  // of_tap: [tap_h][tap_w][channels]; bias may be null
  BorderConstants(const Axis& h, const Axis& w, const std::vector<T>& of_tap, const float* bias,
                  long channels)
      : rows_(h), columns_(w) {
    values_.resize(with_spare(long(rows_.sets.size() * columns_.sets.size()) * channels));
    T* out = values_.data();
    for (const Range& rows : rows_.sets)
      for (const Range& columns : columns_.sets) {
        if (bias) std::copy_n(bias, channels, out);
        for (long y = rows.first; y < rows.last; ++y)
          for (long x = columns.first; x < columns.last; ++x) {
            const T* add = of_tap.data() + (y * long(w.taps.size()) + x) * channels;
            for (long n = 0; n < channels; ++n) out[n] += add[n];
          }
        out += channels;
      }
    has_border_ = rows_.has_border || columns_.has_border;
    for (long set : rows_.of) at_row_.push_back(set * long(columns_.sets.size()) * channels);
    for (long set : columns_.of) at_column_.push_back(set * channels);
  }

  bool has_border() const { return has_border_; }
  long size() const { return long(values_.size()); }
  const T* values() const { return values_.data(); }
  long at(long i, long j) const {  // where the constants of a result are among the values
    return at_row_[i] + at_column_[j];
  }
  long at_row(long i) const { return at_row_[i]; }
  long at_column(long j) const { return at_column_[j]; }

 private:
  struct Sets {
    explicit Sets(const Axis& axis) : of(axis.count) {
      for (long i = 0; i < axis.count; ++i) {
        const Range set = axis.taps_of(i);
        auto is_same = [&](const Range& s) { return s.first == set.first && s.last == set.last; };
        const auto found = std::find_if(sets.begin(), sets.end(), is_same);
        of[i] = found - sets.begin();
        if (found == sets.end()) sets.push_back(set);
        has_border |= set.count() < long(axis.taps.size());
      }
    }
    std::vector<long> of;
    std::vector<Range> sets;
    bool has_border = false;
  };

  Sets rows_, columns_;
  std::vector<long> at_row_, at_column_;
  std::vector<T> values_;
  bool has_border_;
};

}  // namespace bitcycle
