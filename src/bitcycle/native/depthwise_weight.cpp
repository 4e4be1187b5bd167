// The gradient for the weight of a depthwise convolution: a sum over pixels for every channel.
//
//   out[c][tap] = sum over pixels p of e[p][c] * a[p * stride + tap][c]
//
// Codes are multiplied as whole numbers, BLOCK channels at once. A row of the input is copied with
// its borders, whose code 0 adds nothing, and meets a row of the error for each row of the kernel.
#include <algorithm>
#include <cstring>
#include <vector>

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define AVX2_CODE __attribute__((target("avx2")))
#define AVX512_CODE __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni")))
#endif

#include "border.h"
#include "conv.h"
#include "isa.h"
#include "parallel.h"

namespace bitcycle {
namespace {

constexpr int BLOCK = 64;           // channels that are summed at once
constexpr int MAX_TAPS = 3;         // of a row of the kernel, at once
constexpr long MAX_PIXELS = 32768;  // products of codes that 32-bit sums hold
constexpr long SEGMENT = 256;       // pixels of a row at once; sums of their codes have 16 bits

// A row of errors and a row of inputs that its taps meet, BLOCK channels each.
struct RowPair {
  const uint8_t *e, *a;
  long e_pixel, a_pixel, tap;  // bytes from one pixel, and from one tap to the next
  long num_pixels;             // a multiple of four: errors beyond the row are codes `zero`
  int num_taps;
  int32_t* sums;               // [tap][BLOCK], in the order of `Products::place`
};

// The loops of one instruction set.
struct Products {
  uint8_t zero;  // subtracted from the codes of errors
  int (*place)(int channel);
  void (*add)(const RowPair& rows);
  void (*sum)(const uint8_t* x, long pixel, long num_pixels, int32_t* sums);  // added to
};

const Products PORTABLE_PRODUCTS{
    0, [](int channel) { return channel; },
    [](const RowPair& r) {
      for (int t = 0; t < r.num_taps; ++t)
        for (long p = 0; p < r.num_pixels; ++p) {
          const uint8_t *e = r.e + p * r.e_pixel, *a = r.a + p * r.a_pixel + t * r.tap;
          int32_t* sums = r.sums + t * BLOCK;
          for (int c = 0; c < BLOCK; ++c) sums[c] += int32_t(e[c]) * a[c];
        }
    },
    [](const uint8_t* x, long pixel, long num_pixels, int32_t* sums) {
      for (long p = 0; p < num_pixels; ++p)
        for (int c = 0; c < BLOCK; ++c) sums[c] += x[p * pixel + c];
    }};

#if defined(__x86_64__) && defined(__GNUC__)

// Pixels are interleaved, two or four of each channel, by unpacking bytes. That leaves groups of
// four channels in another order: the same for errors and inputs, so it only concerns the sums.

// Two pixels of 32 channels as pairs of int16.
AVX2_CODE inline void load_pairs_avx2(const uint8_t* x, long pixel, __m256i* pairs) {
  const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
  const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + pixel));
  const __m256i low = _mm256_unpacklo_epi8(a, b), high = _mm256_unpackhi_epi8(a, b);
  const __m256i zero = _mm256_setzero_si256();
  pairs[0] = _mm256_unpacklo_epi8(low, zero), pairs[1] = _mm256_unpackhi_epi8(low, zero);
  pairs[2] = _mm256_unpacklo_epi8(high, zero), pairs[3] = _mm256_unpackhi_epi8(high, zero);
}

AVX2_CODE void add_avx2(const RowPair& r) {
  for (int t = 0; t < r.num_taps; ++t)
    for (int c = 0; c < BLOCK; c += 32) {
      auto* to = reinterpret_cast<__m256i*>(r.sums + t * BLOCK + c);
      __m256i sums[4];
      for (int k = 0; k < 4; ++k) sums[k] = _mm256_loadu_si256(to + k);
      for (long p = 0; p < r.num_pixels; p += 2) {
        __m256i e[4], a[4];
        load_pairs_avx2(r.e + p * r.e_pixel + c, r.e_pixel, e);
        load_pairs_avx2(r.a + p * r.a_pixel + t * r.tap + c, r.a_pixel, a);
        for (int k = 0; k < 4; ++k)
          sums[k] = _mm256_add_epi32(sums[k], _mm256_madd_epi16(e[k], a[k]));
      }
      for (int k = 0; k < 4; ++k) _mm256_storeu_si256(to + k, sums[k]);
    }
}

AVX2_CODE void sum_avx2(const uint8_t* x, long pixel, long num_pixels, int32_t* sums) {
  for (int c = 0; c < BLOCK; c += 32) {
    __m256i low = _mm256_setzero_si256(), high = low;
    for (long p = 0; p < num_pixels; ++p) {
      const auto* codes = reinterpret_cast<const __m128i*>(x + p * pixel + c);
      low = _mm256_add_epi16(low, _mm256_cvtepu8_epi16(_mm_loadu_si128(codes)));
      high = _mm256_add_epi16(high, _mm256_cvtepu8_epi16(_mm_loadu_si128(codes + 1)));
    }
    alignas(32) uint16_t part[32];
    _mm256_store_si256(reinterpret_cast<__m256i*>(part), low);
    _mm256_store_si256(reinterpret_cast<__m256i*>(part + 16), high);
    for (int i = 0; i < 32; ++i) sums[c + i] += part[i];
  }
}

const Products AVX2_PRODUCTS{
    0, [](int c) { return c / 32 * 32 + c / 4 % 4 * 8 + c / 16 % 2 * 4 + c % 4; }, add_avx2,
    sum_avx2};

// Four pixels of 64 channels as groups of four bytes, some of whose bits are flipped.
AVX512_CODE inline void load_groups_avx512(const uint8_t* x, long pixel, __m512i flip,
                                           __m512i* groups) {
  const __m512i a = _mm512_loadu_si512(x), b = _mm512_loadu_si512(x + pixel);
  const __m512i c = _mm512_loadu_si512(x + 2 * pixel), d = _mm512_loadu_si512(x + 3 * pixel);
  const __m512i ab = _mm512_xor_si512(_mm512_unpacklo_epi8(a, b), flip);
  const __m512i cd = _mm512_xor_si512(_mm512_unpacklo_epi8(c, d), flip);
  const __m512i AB = _mm512_xor_si512(_mm512_unpackhi_epi8(a, b), flip);
  const __m512i CD = _mm512_xor_si512(_mm512_unpackhi_epi8(c, d), flip);
  groups[0] = _mm512_unpacklo_epi16(ab, cd), groups[1] = _mm512_unpackhi_epi16(ab, cd);
  groups[2] = _mm512_unpacklo_epi16(AB, CD), groups[3] = _mm512_unpackhi_epi16(AB, CD);
}

template <int TAPS>
AVX512_CODE inline void add_taps_avx512(const RowPair& r) {
  __m512i sums[TAPS][4];
  for (int t = 0; t < TAPS; ++t)
    for (int k = 0; k < 4; ++k) sums[t][k] = _mm512_loadu_si512(r.sums + t * BLOCK + k * 16);
  for (long p = 0; p < r.num_pixels; p += 4) {
    __m512i e[4], a[4];
    load_groups_avx512(r.e + p * r.e_pixel, r.e_pixel, _mm512_set1_epi8(char(0x80)), e);
    for (int t = 0; t < TAPS; ++t) {
      load_groups_avx512(r.a + p * r.a_pixel + t * r.tap, r.a_pixel, _mm512_setzero_si512(), a);
      for (int k = 0; k < 4; ++k) sums[t][k] = _mm512_dpbusd_epi32(sums[t][k], a[k], e[k]);
    }
  }
  for (int t = 0; t < TAPS; ++t)
    for (int k = 0; k < 4; ++k) _mm512_storeu_si512(r.sums + t * BLOCK + k * 16, sums[t][k]);
}

AVX512_CODE void add_avx512(const RowPair& r) {
  r.num_taps == 3 ? add_taps_avx512<3>(r)
                  : r.num_taps == 2 ? add_taps_avx512<2>(r) : add_taps_avx512<1>(r);
}

AVX512_CODE void sum_avx512(const uint8_t* x, long pixel, long num_pixels, int32_t* sums) {
  __m512i part[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
  for (long p = 0; p < num_pixels; ++p)
    for (int i = 0; i < 2; ++i) {
      const auto* codes = reinterpret_cast<const __m256i*>(x + p * pixel + 32 * i);
      part[i] = _mm512_add_epi16(part[i], _mm512_cvtepu8_epi16(_mm256_loadu_si256(codes)));
    }
  for (int i = 0; i < 2; ++i) {
    const __m512i low = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(part[i]));
    const __m512i high = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(part[i], 1));
    int32_t* to = sums + 32 * i;
    _mm512_storeu_si512(to, _mm512_add_epi32(_mm512_loadu_si512(to), low));
    _mm512_storeu_si512(to + 16, _mm512_add_epi32(_mm512_loadu_si512(to + 16), high));
  }
}

const Products AVX512_PRODUCTS{
    128, [](int c) { return c / 4 % 4 * 16 + c / 16 * 4 + c % 4; }, add_avx512, sum_avx512};

const Products& products() {
  const Isa set = isa();
  return set == Isa::AVX512 ? AVX512_PRODUCTS : set == Isa::AVX2 ? AVX2_PRODUCTS
                                                                 : PORTABLE_PRODUCTS;
}

#else

const Products& products() { return PORTABLE_PRODUCTS; }

#endif

BITCYCLE_INLINE void add_all_body(const int32_t* x, long n, int32_t* __restrict sums) {
  for (long i = 0; i < n; ++i) sums[i] += x[i];
}
BITCYCLE_FOR_EACH_ISA(add_all, (const int32_t* x, long n, int32_t* sums), (x, n, sums))

// Sums over pixels for every tap and channel: of e * a, of e, and of a.
struct TapSums {
  int64_t *products, *errors, *inputs;  // [tap][C]
};

// The sums of BLOCK channels, from `first` on. Where that would be too many, they begin with
// `num_known` that another block has. Of fewer channels, codes of the next pixels are read as well,
// and their sums left out.
class BlockSums {
 public:
  BlockSums(const Conv& c, long at)
      : c_(c), how_(products()), first_(std::max(0L, std::min<long>(at, c.C - BLOCK))),
        num_known_(at - first_), channels_(std::min<long>(BLOCK, c.C)),
        size_(c.kh * c.kw * BLOCK), row_(c.kw * BLOCK), a_end_(c.a + c.N * c.H * c.W * c.C),
        e_end_(c.e + c.N * c.Ho * c.Wo * c.C) {
    products_ = new_array<int32_t>(SUMS, 3 * size_ + row_);
    errors_ = products_ + size_, inputs_ = errors_ + size_, of_row_ = inputs_ + size_;
    std::memset(products_, 0, 3 * size_ * sizeof(int32_t));
  }

  // Rows of the input, and rows of the error, of all images.
  void run(const Range& inputs, const Range& errors, const TapSums& out) {
    for (long r = inputs.first; r < inputs.last; ++r)
      for (long j = 0; j < c_.Wo; j += SEGMENT) add_products(r, segment(j), out);
    for (long r = errors.first; r < errors.last; ++r)
      for (long j = 0; j < c_.Wo; j += SEGMENT) add_errors(r, segment(j), out);
    flush(out);
  }

 private:
  Range segment(long j) const { return {j, std::min<long>(c_.Wo, j + SEGMENT)}; }

  // Those of a segment whose tap lies on the map.
  Range on_tap(long w, const Range& j) const {
    const Range on = on_map(w * c_.dilation_w - c_.pad_w, c_.stride_w, c_.W, c_.Wo);
    const long first = std::min(std::max(on.first, j.first), j.last);
    return {first, std::max(first, std::min(on.last, j.last))};
  }

  void add_products(long r, const Range& j, const TapSums& out) {
    const long image = r / c_.H, y = r % c_.H, num = (j.count() + 3) / 4 * 4;
    const uint8_t* a = nullptr;
    for (long h = 0; h < c_.kh; ++h) {
      const long at = y + c_.pad_h - h * c_.dilation_h, i = at / c_.stride_h;
      if (at < 0 || at % c_.stride_h || i >= c_.Ho) continue;
      if (!a) a = load_inputs(c_.a + r * c_.W * c_.C + first_, j, num);
      count(num, out);
      RowPair pair = load_errors(image * c_.Ho + i, j, num);
      for (long w = 0; w < c_.kw; w += MAX_TAPS) {
        pair.a = a + w * c_.dilation_w * BLOCK;
        pair.num_taps = int(std::min<long>(MAX_TAPS, c_.kw - w));
        pair.sums = products_ + (h * c_.kw + w) * BLOCK;
        how_.add(pair);
      }
      add_all(of_row_, row_, inputs_ + h * row_);
    }
  }

  // The inputs that the taps of a segment meet, between borders, and their sums.
  const uint8_t* load_inputs(const uint8_t* row, const Range& j, long num) {
    const long x0 = j.first * c_.stride_w - c_.pad_w;
    const long width = (num - 1) * c_.stride_w + (c_.kw - 1) * c_.dilation_w + 1;
    const long first = std::min(width, std::max(0L, -x0));
    const long last = std::max(first, std::min(width, c_.W - x0));
    uint8_t* copy = new_array<uint8_t>(SECOND, width * BLOCK);
    std::memset(copy, 0, first * BLOCK);
    copy_pixels(row + (x0 + first) * c_.C, last - first, a_end_, copy + first * BLOCK);
    std::memset(copy + last * BLOCK, 0, (width - last) * BLOCK);
    std::memset(of_row_, 0, row_ * sizeof(int32_t));
    if (c_.stride_w == 1)
      sum_shared(copy, BLOCK, j.first, j, c_.dilation_w);
    else
      for (long w = 0; w < c_.kw; ++w)
        how_.sum(copy + w * c_.dilation_w * BLOCK, c_.stride_w * BLOCK, j.count(),
                 of_row_ + w * BLOCK);
    return copy;
  }

  // `num` pixels, which may be more than the segment has.
  RowPair load_errors(long r, const Range& j, long num) {
    const uint8_t* e = c_.e + (r * c_.Wo + j.first) * c_.C + first_;
    long pixel = c_.C;
    if (num > j.count() || count_whole(e, num, e_end_) < num) {
      uint8_t* copy = new_array<uint8_t>(FIRST, num * BLOCK);
      copy_pixels(e, j.count(), e_end_, copy);
      std::memset(copy + j.count() * BLOCK, how_.zero, (num - j.count()) * BLOCK);
      e = copy, pixel = BLOCK;
    }
    return {e, nullptr, pixel, c_.stride_w * BLOCK, c_.dilation_w * BLOCK, num, 0, nullptr};
  }

  void add_errors(long r, const Range& j, const TapSums& out) {
    count(j.count(), out);
    const RowPair row = load_errors(r, j, j.count());
    std::memset(of_row_, 0, row_ * sizeof(int32_t));
    sum_shared(row.e, row.e_pixel, j.first, j, 0);
    for (long h = 0; h < c_.kh; ++h) {
      const long y = r % c_.Ho * c_.stride_h + h * c_.dilation_h - c_.pad_h;
      if (y >= 0 && y < c_.H) add_all(of_row_, row_, errors_ + h * row_);
    }
  }

  // of_row[w] += the sum of the pixels j + w * shift whose tap w lies on the map; x: pixel
  // `start`. What all taps have in common is summed once.
  void sum_shared(const uint8_t* x, long pixel, long start, const Range& j, long shift) {
    auto of_tap = [&](long w) {
      const Range on = on_tap(w, j);
      return Range{on.first + w * shift - start, on.last + w * shift - start};
    };
    auto add = [&](long first, long last, int32_t* sums) {
      if (last > first) how_.sum(x + first * pixel, pixel, last - first, sums);
    };
    Range common = of_tap(0);
    for (long w = 1; w < c_.kw; ++w) {
      const Range on = of_tap(w);
      common = {std::max(common.first, on.first), std::min(common.last, on.last)};
    }
    if (common.count() <= 0) common.last = common.first;
    alignas(64) int32_t sums[BLOCK] = {};
    add(common.first, common.last, sums);
    for (long w = 0; w < c_.kw; ++w) {
      const Range on = of_tap(w);
      int32_t* to = of_row_ + w * BLOCK;
      if (common.count() <= 0) {
        add(on.first, on.last, to);
        continue;
      }
      add_all(sums, BLOCK, to);
      add(on.first, common.first, to);
      add(common.last, on.last, to);
    }
  }

  // Of the pixels from x on, those with BLOCK codes before the end.
  long count_whole(const uint8_t* x, long num, const uint8_t* end) const {
    const long spare = end - x - BLOCK;
    return spare < 0 ? 0 : std::min(num, spare / c_.C + 1);
  }

  void copy_pixels(const uint8_t* x, long num, const uint8_t* end, uint8_t* out) const {
    const long whole = count_whole(x, num, end);
    for (long p = 0; p < whole; ++p)  // of a known size: no call
      std::memcpy(out + p * BLOCK, x + p * c_.C, BLOCK);
    for (long p = whole; p < num; ++p) {
      std::memcpy(out + p * BLOCK, x + p * c_.C, channels_);
      std::memset(out + p * BLOCK + channels_, 0, BLOCK - channels_);
    }
  }

  void count(long num_pixels, const TapSums& out) {
    if (num_pixels_ + num_pixels > MAX_PIXELS) flush(out);
    num_pixels_ += num_pixels;
  }

  void flush(const TapSums& out) {
    for (long t = 0; t < c_.kh * c_.kw; ++t)
      for (int c = int(num_known_); c < channels_; ++c) {
        const long to = t * c_.C + first_ + c;
        out.products[to] += products_[t * BLOCK + how_.place(c)];
        out.errors[to] += errors_[t * BLOCK + c];
        out.inputs[to] += inputs_[t * BLOCK + c];
      }
    std::memset(products_, 0, 3 * size_ * sizeof(int32_t));
    num_pixels_ = 0;
  }

  const Conv& c_;
  const Products& how_;
  const long first_, num_known_, channels_;
  const long size_, row_;  // of all taps, and of those of a row of the kernel
  const uint8_t *a_end_, *e_end_;
  int32_t *products_, *errors_, *inputs_, *of_row_;
  long num_pixels_ = 0;  // that these have, at most
};

}  // namespace

void depthwise_grad_weight(const Conv& c) {
  const long num_taps = c.kh * c.kw, size = num_taps * c.C;
  const long num_chunks = std::min(c.N * std::min(c.H, c.Ho), c.num_threads);
  std::vector<int64_t> memory(num_chunks * 3 * size);
  parallel_for(num_chunks, int(c.num_threads), [&](long chunk) {
    auto part = [&](long n) { return Range{n * chunk / num_chunks, n * (chunk + 1) / num_chunks}; };
    int64_t* sums = memory.data() + chunk * 3 * size;
    for (long at = 0; at < c.C; at += BLOCK)
      BlockSums(c, at).run(part(c.N * c.H), part(c.N * c.Ho), {sums, sums + size, sums + 2 * size});
  });
  for (long k = 1; k < num_chunks; ++k)
    for (long i = 0; i < 3 * size; ++i) memory[i] += memory[k * 3 * size + i];
  for (long i = 0; i < size; ++i) memory[i] += products().zero * memory[2 * size + i];
  const double se = *c.e_scale, oe = *c.e_offset, sa = *c.a_scale, oa = *c.a_offset;
  for (long t = 0; t < num_taps; ++t) {
    const long h = t / c.kw, w = t % c.kw;
    const Range on_h = on_map(h * c.dilation_h - c.pad_h, c.stride_h, c.H, c.Ho);
    const Range on_w = on_map(w * c.dilation_w - c.pad_w, c.stride_w, c.W, c.Wo);
    const double pixels = double(c.N) * double(on_h.count() * on_w.count());
    const int64_t* sums = memory.data() + t * c.C;
    for (long n = 0; n < c.C; ++n)
      static_cast<float*>(c.out)[n * c.w_o + h * c.w_h + w * c.w_w] =
          float(se * sa * double(sums[n]) + se * oa * double(sums[size + n]) +
                oe * sa * double(sums[2 * size + n]) + oe * oa * pixels);
  }
}

}  // namespace bitcycle
