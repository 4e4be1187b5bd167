// Random shapes through every function of the native library, against plain loops.
//
//   fuzz SEED SECONDS [CASE]     CASE: only that one
//
// Operands and workspaces end exactly where a page without access begins (or start where one ends),
// so that assembly, which sanitizers do not see, cannot read or write beside them either. Scales
// are powers of two and offsets whole, so that results below 2^24 are exact in float32.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "conv.h"
#include "encode.cpp"  // no header: so a changed signature does not compile
#include "formats.h"
#include "gemm.h"
#include "layer.h"
#include "packing.cpp"

extern "C" {
int bitcycle_gemm(const bitcycle::Gemm*);
int bitcycle_gemm_folded(const bitcycle::Gemm*);
int bitcycle_pack(const bitcycle::Gemm*);
int bitcycle_pack_folded(const bitcycle::Gemm*);
int bitcycle_conv_output(const bitcycle::Conv*);
int bitcycle_conv_grad_input(const bitcycle::Conv*);
int bitcycle_conv_grad_weight(const bitcycle::Conv*);
void bitcycle_round_elements(const bitcycle::ElementsCall*);
void bitcycle_round_blocks(const bitcycle::BlocksCall*);
void bitcycle_hadamard(const bitcycle::HadamardCall*);
int bitcycle_forward(const bitcycle::ForwardCall*, const bitcycle::LayerShape*);
int bitcycle_backward(const bitcycle::BackwardCall*, const bitcycle::LayerShape*);
void bitcycle_noise_key(const int32_t*, int32_t*);
const char* bitcycle_tiles(const char*);
void __sanitizer_set_death_callback(void (*)()) __attribute__((weak));

// The thread pool that the library looks for, of threads that the thread sanitizer knows.
__attribute__((visibility("default"))) void GOMP_parallel(void (*body)(void*), void* data,
                                                          unsigned num_threads, unsigned) {
  std::vector<std::thread> others;
  for (unsigned i = 1; i < num_threads; ++i) others.emplace_back(body, data);
  body(data);
  for (std::thread& other : others) other.join();
}
}

namespace {

// ---- memory between two pages without access ---------------------------------------------------

class Guarded {
 public:
  Guarded(size_t bytes, bool at_end, size_t alignment = 1) {
    const size_t page = size_t(sysconf(_SC_PAGESIZE));
    const size_t size = (bytes + alignment - 1) / alignment * alignment;
    inside_ = (size + page - 1) / page * page;
    base_ = static_cast<char*>(
        mmap(nullptr, inside_ + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (base_ == MAP_FAILED || mprotect(base_ + page, inside_, PROT_READ | PROT_WRITE))
      std::abort();
    total_ = inside_ + 2 * page;
    at_ = base_ + page + (at_end ? inside_ - size : 0);
    std::memset(base_ + page, 0xCD, inside_);
  }
  Guarded(const Guarded&) = delete;
  ~Guarded() { munmap(base_, total_); }
  void* at() const { return at_; }

 private:
  char *base_, *at_;
  size_t inside_, total_;
};

struct Random {
  uint64_t state;
  uint64_t next() {
    uint64_t z = (state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  long from(long low, long high) { return low + long(next() % uint64_t(high - low + 1)); }
  bool once_in(long n) { return from(1, n) == 1; }
  template <typename T>
  T of(std::initializer_list<T> values) {
    return values.begin()[from(0, long(values.size()) - 1)];
  }
};

template <typename T>
class Buffer {
 public:
  Buffer(Random& random, size_t n)
      : n_(n), memory_(n * sizeof(T), !random.once_in(4), alignof(T)) {}
  T* data() const { return static_cast<T*>(memory_.at()); }
  T& operator[](size_t i) const { return data()[i]; }
  size_t size() const { return n_; }

 private:
  size_t n_;
  Guarded memory_;
};

// float32 elements, or bfloat16, the upper half of each.
class FloatBuffer {
 public:
  FloatBuffer(Random& random, size_t n, bool is_half)
      : is_half(is_half), n_(n), size_(is_half ? 2 : 4),
        memory_(n * size_, !random.once_in(4), size_) {}
  void* data() const { return memory_.at(); }
  float operator[](size_t i) const {
    uint32_t bits = 0;
    std::memcpy(reinterpret_cast<char*>(&bits) + 4 - size_, at(i), size_);
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
  }
  void set(size_t i, float value) const {  // its upper half, not rounded
    std::memcpy(at(i), reinterpret_cast<const char*>(&value) + 4 - size_, size_);
  }
  void fill(float value) const {
    for (size_t i = 0; i < n_; ++i) set(i, value);
  }
  size_t size() const { return n_; }
  double allowed(double value) const {  // what rounding may change of it
    return is_half ? std::fabs(value) / 256 : 0;
  }
  const bool is_half;

 private:
  char* at(size_t i) const { return static_cast<char*>(memory_.at()) + i * size_; }
  size_t n_, size_;
  Guarded memory_;
};

// ---- a case ------------------------------------------------------------------------------------

char current[1024];

void say(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const size_t used = std::strlen(current);
  std::vsnprintf(current + used, sizeof current - used, format, arguments);
  va_end(arguments);
}

[[noreturn]] void fail(long at, double got, double expected, double bound) {
  std::fprintf(stderr, "%s: element %ld is %.9g, not %.9g within %.3g\n", current, at, got,
               expected, bound);
  std::_Exit(1);
}

// Exact where float32 is; `size` is the sum of all terms' sizes.
void check(long at, double got, double expected, double size, double allowed = 0) {
  const double bound = allowed + (size < (1 << 24) && !allowed ? 0 : 3e-6 * size);
  if (!(std::fabs(got - expected) <= bound)) fail(at, got, expected, bound);
}

// Codes with their grids: value = scale * code + offset.
struct Operand {
  int bits;
  Buffer<uint8_t> codes;
  Buffer<float> scale, offset, half;

  Operand(Random& r, size_t n, size_t scales, bool is_whole = true)
      : bits(int(r.from(2, 8))), codes(r, n), scale(r, scales), offset(r, scales), half(r, 1) {
    const int levels = (1 << bits) - 1;
    const long extreme = r.from(0, 3);
    for (size_t i = 0; i < n; ++i)
      codes[i] = uint8_t(extreme == 1                   ? levels
                         : extreme == 2 && r.once_in(2) ? 0
                                                        : r.from(0, levels));
    for (size_t i = 0; i < scales; ++i) {
      scale[i] = is_whole ? 1.0f : float(r.from(1, 1000)) / 777.0f;
      offset[i] = float(r.from(-8, 8)) * (is_whole ? 1.0f : 0.37f);
    }
    half[0] = float(1 << (bits - 1));
  }
  double value(size_t at, size_t s) const { return double(scale[s]) * codes[at] + offset[s]; }
  // the largest that each part of a value can be, however the sum is taken apart
  double size(size_t s) const { return std::fabs(scale[s]) * (1 << bits) + std::fabs(offset[s]); }
};

std::vector<float> some(Random& r, size_t n) {
  std::vector<float> values(n);
  for (float& v : values) v = float(r.from(-100, 100));
  return values;
}

// On every instruction set of the processor: the same shape, the same codes.
void on_each_instruction_set(const std::function<void()>& run) {
  for (const char* name : {"portable", "avx2", "avx512_vnni"})
    if (bitcycle_tiles(name)) {
      const size_t used = std::strlen(current);
      say(" %s", name);
      run();
      current[used] = 0;
    }
}

// ---- products ----------------------------------------------------------------------------------

struct Strides {
  long outer, inner, row, k, size;
};

Strides some_strides(Random& r, long outer, long inner, long rows, long K) {
  Strides s{};
  switch (r.from(0, 3)) {
    case 0:
      s.k = 1, s.row = K;
      break;
    case 1:
      s.k = 1, s.row = K + r.from(0, 5);
      break;
    case 2:
      s.row = 1, s.k = rows + r.from(0, 5);
      break;
    default:
      s.k = r.from(1, 3), s.row = s.k * K + r.from(0, 3);
  }
  const long matrix = (rows - 1) * s.row + (K - 1) * s.k + 1;
  s.inner = r.once_in(4) ? 0 : matrix;
  s.outer = r.once_in(4) ? 0 : s.inner * inner;
  s.size = (outer - 1) * s.outer + (inner - 1) * s.inner + matrix;
  return s;
}

void fuzz_gemm(Random& r) {
  const bool is_folded = r.once_in(3), is_long = r.once_in(100);
  const long outer = is_folded ? 1 : r.of({1, 1, 1, 2, 3}),
             inner = is_folded ? 1 : r.of({1, 1, 2, 3});
  const long M = is_long ? r.from(1, 3) : r.once_in(10) ? r.from(50, 200) : r.from(1, 20);
  const long N = is_long ? r.from(1, 3) : r.once_in(10) ? r.from(50, 200) : r.from(1, 40);
  const long K = is_long         ? r.from(60000, 140000)
                 : r.once_in(10) ? r.from(200, 1500)
                                 : r.from(1, 70);
  const Strides sa = some_strides(r, outer, inner, M, K), sb = some_strides(r, outer, inner, N, K);
  const long b_scales = is_folded ? K : r.of({1L, N});
  const long a_scales = is_folded ? r.of({1L, 1L, K}) : outer * inner == 1 ? r.of({1L, 1L, M}) : 1;
  const Operand a(r, sa.size, a_scales, !is_folded), b(r, sb.size, b_scales, !is_folded);
  const std::vector<float> bias = some(r, N);
  const long total = outer * inner * M * N;
  const FloatBuffer out(r, total, r.once_in(3));
  const bool has_bias = r.once_in(2),
             is_packed = outer * inner == 1 && a_scales == 1 && r.once_in(3);
  const Buffer<double> packed(r, (N + 15) / 16 * 16 * (3 + (K + 3) / 4));  // as in products.py
  say("gemm%s%s %ldx%ld batches, %ldx%ldx%ld, strides %ld %ld and %ld %ld, %d + %d bits, %ld "
      "scales",
      is_folded ? "_folded" : "", is_packed ? " packed" : "", outer, inner, M, N, K, sa.row, sa.k,
      sb.row, sb.k, a.bits, b.bits, a_scales);
  if (out.is_half) say(" to bfloat16");
  bitcycle::Gemm g{};
  g.a = a.codes.data(), g.b = b.codes.data();
  g.a_scale = a.scale.data(), g.a_offset = a.offset.data(), g.a_half = a.half.data();
  g.b_scale = b.scale.data(), g.b_offset = b.offset.data(), g.b_half = b.half.data();
  g.bias = has_bias ? bias.data() : nullptr;
  g.out = out.data(), g.out_is_half = out.is_half;
  g.packed = is_packed ? packed.data() : nullptr;
  g.num_outer = outer, g.num_inner = inner;
  g.a_outer = sa.outer, g.a_inner = sa.inner, g.b_outer = sb.outer, g.b_inner = sb.inner;
  g.M = M, g.N = N, g.K = K;
  g.a_row = sa.row, g.a_k = sa.k, g.b_row = sb.row, g.b_k = sb.k;
  g.a_scales = a_scales, g.b_scales = b_scales;
  g.num_threads = r.from(1, 3);

  struct Expected {
    double sum, size, allowed;
  };
  std::vector<Expected> expected(total);
  for (long i = 0, at = 0; i < outer * inner; ++i)
    for (long m = 0; m < M; ++m)
      for (long n = 0; n < N; ++n, ++at) {
        const long x = i / inner * sa.outer + i % inner * sa.inner + m * sa.row;
        const long y = i / inner * sb.outer + i % inner * sb.inner + n * sb.row;
        double sum = has_bias ? bias[n] : 0, size = std::fabs(sum);
        double largest = 0, multiplied = 0;  // of what is folded: the largest, and its factors
        for (long k = 0; k < K; ++k) {
          const long t = a_scales == 1 ? 0 : is_folded ? k : m;
          const long s = is_folded ? k : b_scales == 1 ? 0 : n;
          const double u = a.value(x + k * sa.k, t), v = b.value(y + k * sb.k, s);
          sum += u * v, size += a.size(t) * b.size(s);
          largest = std::max(largest, std::fabs(v) * (a_scales == 1 ? 1.0 : a.scale[t]));
          multiplied += a_scales == 1 ? std::fabs(u) : std::fabs(a.codes[x + k * sa.k] - a.half[0]);
        }
        const double fold = largest * multiplied / 65536;
        expected[at] = {sum, size, is_folded ? 1.01 * fold + 1e-6 : 0};
      }
  on_each_instruction_set([&] {
    out.fill(std::numeric_limits<float>::quiet_NaN());
    if (is_packed && (is_folded ? bitcycle_pack_folded(&g) : bitcycle_pack(&g))) fail(-1, 0, 0, 0);
    if (is_folded ? bitcycle_gemm_folded(&g) : bitcycle_gemm(&g)) fail(-1, 0, 0, 0);
    for (long i = 0; i < total; ++i)
      check(i, out[i], expected[i].sum, expected[i].size,
            expected[i].allowed + out.allowed(expected[i].sum));
  });
}

// ---- convolutions ------------------------------------------------------------------------------

// Calls f(a, w, e) with the three elements of each product of a convolution.
template <typename F>
void for_each_product(const bitcycle::Conv& c, const F& f) {
  const long Cg = c.C / c.groups, Og = c.O / c.groups;
  for (long n = 0; n < c.N; ++n)
    for (long i = 0; i < c.Ho; ++i)
      for (long j = 0; j < c.Wo; ++j)
        for (long y = 0; y < c.kh; ++y)
          for (long x = 0; x < c.kw; ++x) {
            const long h = i * c.stride_h + y * c.dilation_h - c.pad_h;
            const long w = j * c.stride_w + x * c.dilation_w - c.pad_w;
            if (h < 0 || h >= c.H || w < 0 || w >= c.W) continue;
            for (long o = 0; o < c.O; ++o)
              for (long k = 0; k < Cg; ++k)
                f(((n * c.H + h) * c.W + w) * c.C + o / Og * Cg + k,
                  o * c.w_o + k * c.w_c + y * c.w_h + x * c.w_w,
                  ((n * c.Ho + i) * c.Wo + j) * c.O + o, o, o / Og * Cg + k);
          }
}

// Where an element of a channels-last map is in a contiguous one.
long in_planes(long i, long channels, long pixels) {
  return (i / channels / pixels * channels + i % channels) * pixels + i / channels % pixels;
}

void fuzz_conv(Random& r) {
  bitcycle::Conv c{};
  c.groups = r.of({1, 1, 2, 3});
  const bool is_depthwise = r.once_in(6);
  if (is_depthwise) c.groups = r.once_in(3) ? r.from(60, 150) : r.from(1, 40);
  const long Cg = is_depthwise ? 1 : r.once_in(8) ? r.from(20, 40) : r.from(1, 18);
  const long Og = is_depthwise ? r.from(1, 2) : r.once_in(8) ? r.from(20, 40) : r.from(1, 18);
  c.N = r.from(1, 3), c.C = c.groups * Cg, c.O = c.groups * Og;
  do {
    c.H = r.from(1, 9), c.W = r.from(1, 12), c.kh = r.from(1, 3), c.kw = r.from(1, 4);
    c.stride_h = r.of({1, 1, 2, 3}), c.stride_w = r.of({1, 1, 2, 3});
    c.dilation_h = r.of({1, 1, 2}), c.dilation_w = r.of({1, 1, 2});
    c.pad_h = r.from(0, 2), c.pad_w = r.from(0, 3);
    c.Ho = c.H + 2 * c.pad_h - c.dilation_h * (c.kh - 1) - 1;
    c.Wo = c.W + 2 * c.pad_w - c.dilation_w * (c.kw - 1) - 1;
  } while (c.Ho < 0 || c.Wo < 0);
  c.Ho = c.Ho / c.stride_h + 1 + r.once_in(10);  // "same" padding may reach one further
  c.Wo = c.Wo / c.stride_w + 1 + r.once_in(10);
  if (r.once_in(2)) {
    c.w_w = 1, c.w_h = c.kw, c.w_c = c.kh * c.kw, c.w_o = Cg * c.kh * c.kw;
  } else {
    c.w_c = 1, c.w_w = Cg, c.w_h = c.kw * Cg, c.w_o = Cg * c.kh * c.kw;
  }
  const long scales = r.of({int64_t(1), c.O}), num_w = c.O * Cg * c.kh * c.kw;
  const long num_a = c.N * c.H * c.W * c.C, num_e = c.N * c.Ho * c.Wo * c.O;
  const long e_scales = r.of({int64_t(1), c.N});
  const Operand a(r, num_a, 1), w(r, num_w, scales), e(r, num_e, e_scales, e_scales == 1);
  const std::vector<float> bias = some(r, c.O);
  const bool has_bias = r.once_in(2);
  c.a = a.codes.data(), c.a_scale = a.scale.data(), c.a_offset = a.offset.data(),
  c.a_half = a.half.data();
  c.w = w.codes.data(), c.w_scale = w.scale.data(), c.w_offset = w.offset.data(),
  c.w_half = w.half.data();
  c.e = e.codes.data(), c.e_scale = e.scale.data(), c.e_offset = e.offset.data(),
  c.e_half = e.half.data();
  c.w_scales = scales, c.num_threads = r.from(1, 3);
  say("conv N%ld %ldx%ldx%ld -> %ldx%ldx%ld, kernel %ldx%ld, stride %ldx%ld, pad %ldx%ld, dilation "
      "%ldx%ld, %ld groups, bits %d %d %d, %ld scales, %ld threads",
      long(c.N), long(c.H), long(c.W), long(c.C), long(c.Ho), long(c.Wo), long(c.O), long(c.kh),
      long(c.kw), long(c.stride_h), long(c.stride_w), long(c.pad_h), long(c.pad_w),
      long(c.dilation_h), long(c.dilation_w), long(c.groups), a.bits, w.bits, e.bits,
      long(c.num_threads));

  std::vector<double> output(num_e), output_size(num_e), grad_input(num_a), errors(num_a);
  std::vector<double> error_sizes(num_a), grad_weight(num_w), grad_weight_size(num_w), largest(c.C);
  if (has_bias)
    for (long i = 0; i < num_e; ++i)
      output[i] = bias[i % c.O], output_size[i] = std::fabs(output[i]);
  for (long o = 0; o < c.O; ++o)
    for (long k = 0; k < Cg; ++k)
      for (long t = 0; t < c.kh * c.kw; ++t) {
        const double v = w.value(o * c.w_o + k * c.w_c + t / c.kw * c.w_h + t % c.kw * c.w_w,
                                 scales == 1 ? 0 : o);
        double& most = largest[o / Og * Cg + k];
        most = std::max(most, std::fabs(v));
      }
  for_each_product(c, [&](long at, long wt, long et, long o, long) {
    const long s = scales == 1 ? 0 : o;
    const long image = e_scales == 1 ? 0 : et / (c.Ho * c.Wo * c.O);
    const double av = a.value(at, 0), wv = w.value(wt, s), ev = e.value(et, image);
    output[et] += av * wv, output_size[et] += a.size(0) * w.size(s);
    grad_input[at] += ev * wv, errors[at] += std::fabs(ev), error_sizes[at] += e.size(image);
    grad_weight[wt] += e.value(et, 0) * av, grad_weight_size[wt] += e.size(0) * a.size(0);
  });
  const bool is_half = r.once_in(3);
  const FloatBuffer out(r, num_e, is_half), to_input(r, num_a, is_half);
  const Buffer<float> to_weight(r, num_w);
  c.out_is_contiguous = r.once_in(2);
  auto at_in = [&](long i, long channels, long pixels) {
    return c.out_is_contiguous ? in_planes(i, channels, pixels) : i;
  };
  if (is_half) say(" to bfloat16");
  if (c.out_is_contiguous) say(" in planes");
  const float nan = std::numeric_limits<float>::quiet_NaN();
  on_each_instruction_set([&] {
    const size_t used = std::strlen(current);
    say(" output");
    out.fill(nan);
    c.out = out.data(), c.out_is_half = is_half, c.bias = has_bias ? bias.data() : nullptr;
    if (bitcycle_conv_output(&c)) fail(-1, 0, 0, 0);
    for (long i = 0; i < num_e; ++i)
      check(i, out[at_in(i, c.O, c.Ho * c.Wo)], output[i], output_size[i], out.allowed(output[i]));
    current[used] = 0, say(" grad_input");
    to_input.fill(nan);
    c.out = to_input.data(), c.bias = nullptr, c.e_scales = e_scales;
    if (bitcycle_conv_grad_input(&c)) fail(-1, 0, 0, 0);
    for (long i = 0; i < num_a; ++i)
      check(i, to_input[at_in(i, c.C, c.H * c.W)], grad_input[i], error_sizes[i] * largest[i % c.C],
            1.01 / 65536 * largest[i % c.C] * errors[i] + 1e-6 + to_input.allowed(grad_input[i]));
    current[used] = 0, say(" grad_weight");
    std::fill_n(to_weight.data(), num_w, nan);
    c.out = to_weight.data(), c.out_is_half = 0, c.e_scales = 1;
    if (bitcycle_conv_grad_weight(&c)) fail(-1, 0, 0, 0);
    for (long i = 0; i < num_w; ++i)
      check(i, to_weight[i], grad_weight[i], grad_weight_size[i], e_scales == 1 ? 0 : 1e-9);
    current[used] = 0;
  });
}

// ---- rounding and packing
// --------------------------------------------------------------------------

void fuzz_encode(Random& r) {
  const long outer = r.of({1L, 1L, r.from(2, 5)}), channels = r.of({1L, 1L, r.from(2, 40)});
  const long inner = r.of({1L, r.from(1, 200), r.from(1, 200), r.from(15000, 40000)});
  const long rows = outer * channels, total = rows * inner > 200000 ? 0 : rows * inner;
  if (!total) return;
  const FloatBuffer x(r, total, r.once_in(3));
  const bool has_nan = r.once_in(20), is_constant = r.once_in(20);
  for (long i = 0; i < total; ++i)
    x.set(i, is_constant ? 1.5f : float(r.from(-100000, 100000)) / 1234.0f);
  if (has_nan) x.set(r.from(0, total - 1), std::numeric_limits<float>::quiet_NaN());
  const auto channel = [&](long i) { return i / inner % channels; };
  const Buffer<float> low(r, channels), high(r, channels), scale(r, channels);
  const Buffer<float> offset(r, channels), half(r, 1), values(r, total), decoded(r, total);
  const Buffer<int32_t> key(r, 2), levels(r, 1);
  const Buffer<uint8_t> codes(r, total);
  const bool is_stochastic = r.once_in(2);
  const long num_threads = r.from(1, 3), rule = r.from(FROM_LOW, POWER);
  const int32_t* noise = is_stochastic ? key.data() : nullptr;
  key[0] = int32_t(r.next()), key[1] = int32_t(r.next());
  levels[0] = (1 << r.from(2, 8)) - 1;
  say("encode %ldx%ldx%ld%s, %d levels, rule %ld%s, %ld threads", outer, channels, inner,
      x.is_half ? " bfloat16" : "", levels[0], rule, is_stochastic ? ", stochastic" : "",
      num_threads);

  RangeCall range{};
  range.x = x.data(), range.outer = outer, range.channels = channels, range.inner = inner;
  range.low = low.data(), range.high = high.data(), range.num_threads = num_threads;
  range.x_is_half = x.is_half;
  bitcycle_range(&range);
  for (long c = 0; c < channels; ++c) {
    float least = std::numeric_limits<float>::infinity(), most = -least;
    bool is_nan = false;
    for (long i = 0; i < total; ++i)
      if (channel(i) == c)
        least = std::min(least, x[i]), most = std::max(most, x[i]), is_nan |= x[i] != x[i];
    if (is_nan ? low[c] == low[c] || high[c] == high[c] : low[c] != least || high[c] != most)
      fail(c, low[c], least, 0);
  }
  if (has_nan) return;  // has no code

  QuantizeCall call{};
  call.x = x.data(), call.outer = outer, call.channels = channels, call.inner = inner;
  call.low = low.data(), call.high = high.data(), call.levels = levels.data();
  call.rule = rule, call.key = noise, call.num_threads = num_threads;
  call.finds_range = r.once_in(2), call.x_is_half = x.is_half;
  call.scale = scale.data(), call.offset = offset.data(), call.half = half.data();
  call.form = CODES, call.out = codes.data();
  bitcycle_quantize(&call);
  if (half[0] != float(levels[0] + 1) / 2) fail(0, half[0], (levels[0] + 1) / 2, 0);
  DecodeCall decode{};
  decode.codes = codes.data(), decode.out = decoded.data();
  decode.outer = outer, decode.channels = channels, decode.inner = inner;
  decode.scale = scale.data(), decode.offset = offset.data();
  decode.num_threads = num_threads;
  bitcycle_decode(&decode);
  call.form = VALUES, call.out = values.data();
  bitcycle_quantize(&call);
  int exponent;
  for (long i = 0; i < total; ++i) {
    const double step = scale[channel(i)];
    if (codes[i] > levels[0]) fail(i, codes[i], levels[0], 0);
    check(i, decoded[i], values[i], 0, 1e-3 * step + 1e-5);
    // half a step by rounding, half by noise, half where zero has moved the ends of the grid
    check(i, values[i], x[i], 0,
          (0.5 + 0.5 * is_stochastic + 0.5 * (rule == WITH_ZERO)) * step * 1.001 + 1e-4);
    if (rule == POWER && std::frexp(step, &exponent) != 0.5) fail(i, step, 0.5, 0);
  }
}

uint16_t upper_half(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return uint16_t(bits >> 16);
}

float as_float(float x) { return x; }
float as_float(uint16_t x) {
  const uint32_t bits = uint32_t(x) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

void from_float(float x, float& out) { out = x; }
void from_float(float x, uint16_t& out) { out = upper_half(x); }

// T: float, or uint16_t with the bits of a bfloat16. The numbers are whole and exact in both.
template <typename T>
void fuzz_masks(Random& r, long count, long num_threads) {
  const Buffer<T> x(r, count), g(r, count), relu(r, count), kept(r, count), dropped(r, count);
  const Buffer<uint32_t> words(r, (count + 31) / 32), drawn_words(r, (count + 31) / 32);
  const Buffer<uint8_t> drawn(r, count);
  for (long i = 0; i < count; ++i) {
    from_float(float(r.from(-2, 2)), x[i]);
    from_float(float(r.from(1, 9)), g[i]);
    drawn[i] = uint8_t(r.from(0, 1));
  }
  const std::vector<T> before(x.data(), x.data() + count);
  MaskCall call{};
  call.is_bfloat16 = sizeof(T) == 2, call.count = count, call.num_threads = num_threads;
  call.words = words.data();
  const bool is_inplace = r.once_in(2), has_output = !r.once_in(4);
  call.x = x.data(), call.out = is_inplace ? x.data() : relu.data();
  if (!has_output) call.out = nullptr;
  bitcycle_pack_positive(&call);
  for (long i = 0; i < count && has_output; ++i)
    check(i, as_float(static_cast<T*>(call.out)[i]), std::max(as_float(before[i]), 0.0f), 0);
  call.x = g.data(), call.out = kept.data();
  bitcycle_keep_positive(&call);
  for (long i = 0; i < count; ++i)
    check(i, as_float(kept[i]), as_float(before[i]) > 0 ? as_float(g[i]) : 0.0, 0);
  call.words = drawn_words.data(), call.drawn = drawn.data(), call.factor = 2;
  call.out = dropped.data();
  bitcycle_dropout(&call);
  call.drawn = nullptr;
  if (is_inplace) call.out = g.data();
  bitcycle_dropout(&call);  // the same again, from the words
  for (long i = 0; i < count; ++i) {
    const float value = as_float(dropped[i]);
    if (value != as_float(static_cast<T*>(call.out)[i])) fail(i, value, 0, 0);
    if (!is_inplace) check(i, value, drawn[i] ? 2 * as_float(g[i]) : 0.0, 0);
    if ((value != 0) != drawn[i]) fail(i, value, drawn[i], 0);
  }
}

void fuzz_packing(Random& r) {
  const long count = r.once_in(10) ? r.from(10000, 300000) : r.from(1, 300);
  const long num_threads = r.from(1, 3);
  const bool is_bfloat16 = r.once_in(2);
  say("packing %ld%s, %ld threads", count, is_bfloat16 ? " bfloat16" : "", num_threads);
  on_each_instruction_set([&] {
    is_bfloat16 ? fuzz_masks<uint16_t>(r, count, num_threads)
                : fuzz_masks<float>(r, count, num_threads);
  });

  const Buffer<uint8_t> codes(r, count), packed(r, (count + 1) / 2), unpacked(r, count);
  for (long i = 0; i < count; ++i) codes[i] = uint8_t(r.from(0, 15));
  bitcycle_pack_nibbles(codes.data(), count, packed.data(), num_threads);
  bitcycle_unpack_nibbles(packed.data(), count, unpacked.data(), num_threads);
  for (long i = 0; i < count; ++i) check(i, unpacked[i], codes[i], 0);
}

// ---- formats -----------------------------------------------------------------------------------

struct Limits {
  int mantissa, min_exponent;
  float max;
};

double step_of(double y, const Limits& e) {
  const int exponent = y == 0 ? e.min_exponent : std::max(std::ilogb(y), e.min_exponent);
  return std::ldexp(1.0, exponent - e.mantissa);
}

// Fails unless `value` is the element nearest to y, or with noise one of the two around it.
void check_element(long at, double value, double y, const Limits& e, bool is_stochastic) {
  const double size = std::min<double>(std::fabs(y), e.max), step = step_of(size, e);
  const double nearest = std::copysign(std::nearbyint(size / step) * step, y);
  if (is_stochastic ? std::fabs(value - std::copysign(size, y)) >= step : value != nearest)
    fail(at, value, nearest, 0);
}

void fuzz_formats(Random& r) {
  const auto kind = bitcycle::Kind(r.from(0, 2));
  const Limits e = r.of<Limits>({{1, 0, 6.0f}, {3, -6, 448.0f}, {2, -14, 57344.0f}, {3, 0, 7.5f}});
  const bool is_one_block = r.once_in(6), is_flat = r.once_in(2), is_stochastic = r.once_in(2);
  const bool is_transformed = r.once_in(3), has_tensor_scale = r.once_in(2);
  const bool rounds_up = kind == bitcycle::MX && r.once_in(2);
  const auto size = [&](long small, long large) { return r.from(1, r.once_in(8) ? large : small); };
  long outer = size(3, 9), n0 = size(20, 70), mid = size(2, 4), n1 = size(40, 400);
  const long inner = r.once_in(2) ? 1 : size(10, 600);
  if (is_flat || is_one_block) n0 = mid = 1;
  const long given = n1;
  if (is_transformed) n1 = (n1 + 15) / 16 * 16;
  const long b0 = std::min<long>(n0, r.of({1L, 2L, 16L, 128L}));
  const long b1 = is_one_block ? 0 : std::min<long>(n1, r.of({1L, 5L, 16L, 32L, 128L, 4000L}));
  const long before = outer * n0 * mid, total = before * n1 * inner, num_threads = r.from(1, 3);
  say("formats kind %d %ldx%ldx%ldx%ld(%ld)x%ld, blocks %ldx%ld%s%s, %ld threads", int(kind), outer,
      n0, mid, n1, given, inner, b0, b1, is_stochastic ? ", stochastic" : "",
      is_transformed ? ", transformed" : "", num_threads);

  const Buffer<float> x(r, before * given * inner), moved(r, total), out(r, total), signs(r, 16);
  const Buffer<int32_t> numbers(r, 3), key(r, 2);
  const float unit = std::ldexp(1.0f, int(r.from(-20, 20)));
  for (size_t i = 0; i < x.size(); ++i) x[i] = float(r.from(-999, 999)) * unit;
  for (long i = 0; i < 16; ++i) signs[i] = r.once_in(2) ? 1.0f : -1.0f;
  numbers[0] = e.mantissa, numbers[1] = e.min_exponent;
  std::memcpy(numbers.data() + 2, &e.max, sizeof e.max);
  key[0] = int32_t(r.next()), key[1] = int32_t(r.next());

  bitcycle::ElementsCall elements{};
  elements.x = x.data(), elements.count = long(x.size()), elements.numbers = numbers.data();
  elements.key = is_stochastic ? key.data() : nullptr;
  elements.num_threads = num_threads;
  const Buffer<float> rounded(r, x.size());
  elements.out = rounded.data();
  bitcycle_round_elements(&elements);
  for (size_t i = 0; i < x.size(); ++i) check_element(long(i), rounded[i], x[i], e, is_stochastic);

  bitcycle::HadamardCall hadamard{};
  hadamard.x = x.data(), hadamard.outer = before, hadamard.n = given, hadamard.inner = inner;
  hadamard.signs = signs.data(), hadamard.out = moved.data(), hadamard.num_threads = num_threads;
  if (is_transformed) bitcycle_hadamard(&hadamard);
  for (long o = 0; o < before; ++o)
    for (long k = 0; k < n1; ++k)
      for (long j = 0; j < inner; ++j) {
        const long at = (o * n1 + k) * inner + j, from = o * given * inner + j;
        if (!is_transformed) {
          moved[at] = x[from + k * inner];
          continue;
        }
        double sum = 0;  // exact: whole numbers
        for (long i = 0; i < 16 && k / 16 * 16 + i < given; ++i)
          sum += (__builtin_popcountl(i & (k % 16)) % 2 ? -1 : 1) * double(signs[i]) *
                 x[from + (k / 16 * 16 + i) * inner];
        check(at, moved[at], sum / 4, 0);
      }

  bitcycle::BlocksCall call{};
  call.x = x.data(), call.outer = outer, call.n0 = n0, call.mid = mid, call.n1 = n1;
  call.inner = inner, call.b0 = b0, call.b1 = b1, call.kind = kind, call.rounds_up = rounds_up;
  call.has_tensor_scale = has_tensor_scale, call.numbers = numbers.data();
  call.key = elements.key, call.signs = is_transformed ? signs.data() : nullptr;
  call.transform_outer = before, call.transform_n = given, call.transform_inner = inner;
  call.out = out.data(), call.num_threads = num_threads;
  bitcycle_round_blocks(&call);

  const auto block_of = [&](long i) {  // the number of its first element
    if (is_one_block) return 0L;
    const long j = i % inner, k = i / inner % n1, m = i / inner / n1 % mid;
    const long row = i / inner / n1 / mid % n0, o = i / inner / n1 / mid / n0;
    return (((o * n0 + row / b0 * b0) * mid + m) * n1 + k / b1 * b1) * inner + j;
  };
  std::vector<float> amax(total);
  float most = 0;
  for (long i = 0; i < total; ++i) {
    amax[block_of(i)] = std::max(amax[block_of(i)], std::fabs(moved[i]));
    most = std::max(most, std::fabs(moved[i]));
  }
  const Limits e4m3{3, -6, 448.0f};
  for (long i = 0; i < total; ++i) {
    const float a = amax[block_of(i)];
    if (a == 0) {
      check(i, out[i], 0, 0);
      continue;
    }
    float factor, scale;
    if (kind == bitcycle::FP8) {
      factor = e.max / a, scale = 1.0f / factor;
    } else if (kind == bitcycle::MX) {
      int exponent = std::ilogb(a) - std::ilogb(e.max);
      if (rounds_up && a > std::ldexp(e.max, exponent)) ++exponent;
      factor = std::ldexp(1.0f, -exponent), scale = 1.0f / factor;
    } else {
      const float g = has_tensor_scale ? most / 2688.0f : 1.0f;
      const float b = std::min(std::max(a / 6.0f / g, 0x1p-6f), 448.0f);
      const float s = float(std::nearbyint(b / step_of(b, e4m3)) * step_of(b, e4m3));
      factor = (1.0f / g) / s, scale = s * g;
    }
    const float y = moved[i] * factor;
    // the element, free of the rounding of the scale: elements have few bits
    const double value = double(out[i]) / scale, step = step_of(value * (1 + 1e-6), e);
    check(i, value, std::nearbyint(value / step) * step, 0, 1e-5 * std::fabs(value));
    check_element(i, std::nearbyint(value / step) * step, y, e, is_stochastic);
  }
}

// ---- a layer's product in one call ---------------------------------------------------------------

// Codes of a saved operand, and its grid behind them.
struct SavedCodes {
  Buffer<uint8_t> bytes;
  long size, channels;
  bool is_packed;
  std::vector<float> grid;

  SavedCodes(Random& r, long size, long channels, bool is_packed, bool has_range)
      : bytes(r, start(size, is_packed) + 4 * ((has_range ? 4 : 2) * channels + 1)),
        size(size), channels(channels), is_packed(is_packed) {}
  static long start(long size, bool is_packed) {
    return ((is_packed ? (size + 1) / 2 : size) + 3) / 4 * 4;
  }
  void read() {
    grid.resize(2 * channels + 1);
    std::memcpy(grid.data(), bytes.data() + start(size, is_packed), 4 * grid.size());
  }
  int code(long i) const {
    return is_packed ? bytes[i / 2] >> (i % 2 * 4) & 15 : bytes[i];
  }
  double value(long i, long c) const { return double(grid[c]) * code(i) + grid[channels + c]; }
  double size_of(long c) const { return 256 * std::fabs(grid[c]) + std::fabs(grid[channels + c]); }
};

// Calls f(a, w, e, channel of w) with the elements of each product, as codes are kept.
template <typename F>
void for_each_term(const bitcycle::LayerShape& s, const bitcycle::Conv& c, const F& f) {
  if (s.is_convolution)
    return for_each_product(c, [&](long a, long w, long e, long o, long) { f(a, w, e, o); });
  for (long b = 0; b < s.num_outer * s.num_inner; ++b)
    for (long m = 0; m < s.M; ++m)
      for (long n = 0; n < s.N; ++n)
        for (long k = 0; k < s.K; ++k) {
          const long outer = b / s.num_inner, inner = b % s.num_inner;
          f(outer * s.a_outer + inner * s.a_inner + m * s.a_row + k * s.a_k,
            outer * s.w_outer_step + inner * s.w_inner_step + n * s.w_row + k * s.w_k,
            (b * s.M + m) * s.N + n, n);
        }
}

void fuzz_layer(Random& r) {
  bitcycle::LayerShape s{};
  bitcycle::Conv c{};
  const long kind = r.from(0, 2);  // linear, matmul, convolution
  const bool has_channels = kind != 1 && r.once_in(2), a_is_last = r.once_in(2);
  s.second = kind == 1, s.rule = r.from(FROM_LOW, POWER), s.is_stochastic = r.once_in(2);
  s.a_is_packed = r.once_in(3), s.w_is_packed = r.once_in(3);
  s.num_outer = s.num_inner = 1;
  long outputs = 1;
  if (kind == 2) {
    s.is_convolution = 1;
    c.groups = r.of({1, 1, 2}), c.C = c.groups * r.from(1, 20), c.O = c.groups * r.from(1, 20);
    c.N = r.from(1, 3), c.H = r.from(3, 9), c.W = r.from(3, 9), c.kh = c.kw = r.of({1, 3});
    c.stride_h = c.stride_w = r.of({1, 1, 2}), c.pad_h = c.pad_w = r.from(0, 1);
    c.dilation_h = c.dilation_w = 1;
    c.Ho = (c.H + 2 * c.pad_h - c.kh) / c.stride_h + 1;
    c.Wo = (c.W + 2 * c.pad_w - c.kw) / c.stride_w + 1;
    const long Cg = c.C / c.groups;
    c.w_w = 1, c.w_h = c.kw, c.w_c = c.kh * c.kw, c.w_o = Cg * c.kh * c.kw;
    s.images = c.N, s.H = c.H, s.W = c.W, s.C = c.C, s.Ho = c.Ho, s.Wo = c.Wo, s.O = c.O;
    s.kh = c.kh, s.kw = c.kw, s.stride_h = c.stride_h, s.stride_w = c.stride_w;
    s.pad_h = c.pad_h, s.pad_w = c.pad_w, s.dilation_h = s.dilation_w = 1, s.groups = c.groups;
    s.w_o = s.grad_o = c.w_o, s.w_c = s.grad_c = c.w_c, s.w_h = s.grad_h = c.w_h;
    s.w_w = s.grad_w = c.w_w;
    s.a_size = c.N * c.H * c.W * c.C, s.w_size = c.O * c.w_o, s.e_size = c.N * c.Ho * c.Wo * c.O;
    if (!a_is_last) {
      s.a_images = s.e_images = c.N, s.a_channels = c.C, s.a_pixels = c.H * c.W;
      s.e_channels = c.O, s.e_pixels = c.Ho * c.Wo, s.out_is_contiguous = 1;
    }
    outputs = c.O;
  } else {
    if (kind == 1) s.num_outer = r.from(1, 2), s.num_inner = r.from(1, 3);
    s.M = r.from(1, 30), s.N = r.from(1, 40), s.K = r.from(1, 60), outputs = s.N;
    const long batches = s.num_outer * s.num_inner;
    s.a_row = s.K, s.a_k = 1, s.a_inner = s.M * s.K, s.a_outer = s.num_inner * s.a_inner;
    const bool is_turned = kind == 1 || (!has_channels && r.once_in(2));
    s.w_row = is_turned ? 1 : s.K, s.w_k = is_turned ? s.N : 1;
    s.w_inner_step = s.N * s.K, s.w_outer_step = s.num_inner * s.w_inner_step;
    s.a_size = batches * s.M * s.K, s.w_size = batches * s.N * s.K;
    s.e_size = batches * s.M * s.N;
  }
  s.a_rows = kind == 0 && r.once_in(2) ? s.M : 1;
  s.w_channels = has_channels ? outputs : 1, s.w_outer = 1, s.w_inner = s.w_size / s.w_channels;
  s.a_is_half = r.once_in(2), s.w_is_half = r.once_in(2), s.out_is_half = r.once_in(2);
  const FloatBuffer a(r, s.a_size, s.a_is_half), w(r, s.w_size, s.w_is_half);
  const FloatBuffer e(r, s.e_size, s.out_is_half), out(r, s.e_size, s.out_is_half);
  const FloatBuffer grad_a(r, s.a_size, s.a_is_half);
  const FloatBuffer grad_w(r, s.w_size, kind == 1 && s.w_is_half);
  const Buffer<float> health(r, 4), ranges(r, 6);
  for (const auto* x : {&a, &w, &e})
    for (size_t i = 0; i < x->size(); ++i) x->set(i, float(r.from(-1000, 1000)) / 333.0f);
  std::fill_n(health.data(), 4, 0.0f), std::fill_n(ranges.data(), 6, 0.0f);
  const std::vector<float> bias = some(r, outputs);
  SavedCodes a_saved(r, s.a_size, s.a_rows, s.a_is_packed, true);
  SavedCodes w_saved(r, s.w_size, s.w_channels, s.w_is_packed, kind == 1);
  const Buffer<int32_t> control(r, 19), copy(r, 19);
  for (int i = 0; i < 19; ++i) control[i] = int32_t(r.next());
  for (int role = 0; role < 3; ++role) control[role] = (1 << r.from(2, 8)) - 1;
  if (s.w_is_packed) control[s.second] = 15;
  if (s.a_is_packed) control[1] = 15;
  const int32_t calls = control[18];
  bitcycle::ForwardCall call{};
  call.a = a.data(), call.w = w.data(), call.out = out.data(), call.control = control.data();
  call.copy = copy.data(), call.counts_call = 1, call.health = health.data();
  call.bias = kind == 1 ? nullptr : bias.data();
  call.a_saved = a_saved.bytes.data(), call.w_saved = w_saved.bytes.data();
  call.a_range = s.a_rows == 1 ? ranges.data() : nullptr;
  call.w_range = kind == 1 ? ranges.data() + 3 : nullptr;
  call.num_threads = r.from(1, 3);
  bitcycle::BackwardCall back{};
  back.e = e.data(), back.a_saved = call.a_saved, back.w_saved = call.w_saved;
  back.control = copy.data(), back.health = health.data(), back.num_threads = call.num_threads;
  back.grad_a = grad_a.data(), back.grad_w = grad_w.data();
  say("layer kind %ld, %ld x %ld -> %ld elements, %ld channels, rule %ld, packed %ld %ld, half %ld "
      "%ld %ld, %ld rows%s",
      kind, long(s.a_size), long(s.w_size), long(s.e_size), long(s.w_channels), long(s.rule),
      long(s.a_is_packed), long(s.w_is_packed), long(s.a_is_half), long(s.w_is_half),
      long(s.out_is_half), long(s.a_rows), a_is_last ? ", channels last" : "");
  on_each_instruction_set([&] {
    control[18] = calls;
    for (const auto* x : {&out, &grad_a, &grad_w})
      x->fill(std::numeric_limits<float>::quiet_NaN());
    if (bitcycle_forward(&call, &s) || bitcycle_backward(&back, &s)) fail(-1, 0, 0, 0);
    if (copy[18] != int32_t(uint32_t(calls) + 1) || health[0] || health[1] || health[2])
      fail(-1, copy[18], calls, 0);
    a_saved.read(), w_saved.read();
    // the error's codes, as the call made them
    const Buffer<float> grid(r, 5);
    const Buffer<uint8_t> codes(r, s.e_size);
    int32_t key[2];
    bitcycle_noise_key(copy.data() + 16, key);
    QuantizeCall quantize{};
    quantize.x = e.data(), quantize.outer = quantize.channels = 1, quantize.inner = s.e_size;
    quantize.finds_range = 1, quantize.low = grid.data(), quantize.high = grid.data() + 1;
    quantize.levels = copy.data() + 2, quantize.rule = s.rule, quantize.form = CODES;
    quantize.key = s.is_stochastic ? key : nullptr, quantize.out = codes.data();
    quantize.scale = grid.data() + 2, quantize.offset = grid.data() + 3;
    quantize.half = grid.data() + 4, quantize.num_threads = 1;
    quantize.x_is_half = e.is_half;
    bitcycle_quantize(&quantize);
    std::vector<double> sums[3], sizes[3];
    const long lengths[] = {s.e_size, s.a_size, s.w_size};
    for (int i = 0; i < 3; ++i) sums[i].resize(lengths[i]), sizes[i].resize(lengths[i]);
    const double e_size = 256 * std::fabs(grid[2]) + std::fabs(grid[3]);
    for_each_term(s, c, [&](long i, long j, long k, long o) {
      long at = k;
      if (s.e_images) at = in_planes(k, c.O, c.Ho * c.Wo);  // codes are numbered as the error lies
      const long channel = s.w_channels == 1 ? 0 : o;
      const long row = s.a_rows == 1 ? 0 : i / s.K;
      const double x = a_saved.value(i, row), y = w_saved.value(j, channel);
      const double z = double(grid[2]) * codes[at] + grid[3];
      const double x_size = a_saved.size_of(row), y_size = w_saved.size_of(channel);
      sums[0][k] += x * y, sums[1][i] += z * y, sums[2][j] += z * x;
      sizes[0][k] += x_size * y_size, sizes[1][i] += e_size * y_size;
      sizes[2][j] += e_size * x_size;
    });
    for (long i = 0; i < s.e_size; ++i) {
      const double b = call.bias ? bias[i % outputs] : 0.0;
      const long at = s.out_is_contiguous ? in_planes(i, c.O, c.Ho * c.Wo) : i;
      check(i, out[at], sums[0][i] + b, sizes[0][i],
            1e-5 * (sizes[0][i] + std::fabs(b)) + out.allowed(sums[0][i] + b));
    }
    for (long i = 0; i < s.a_size; ++i) {  // a fold to 16 bits
      const long at = s.out_is_contiguous ? in_planes(i, c.C, c.H * c.W) : i;
      check(i, grad_a[at], sums[1][i], sizes[1][i],
            sizes[1][i] / 8192 + grad_a.allowed(sums[1][i]));
    }
    for (long i = 0; i < s.w_size; ++i) {
      long at = i;  // the gradient of a second activation is contiguous (K, N), as that is
      if (kind == 0 && s.w_row == 1) at = i % s.N * s.K + i / s.N;
      check(i, grad_w[at], sums[2][i], sizes[2][i],
            sizes[2][i] * (s.a_rows > 1 ? 1.0 / 8192 : 1e-5) + grad_w.allowed(sums[2][i]));
    }
  });
}

const std::pair<const char*, void (*)(Random&)> KINDS[] = {{"gemm", fuzz_gemm},
                                                           {"conv", fuzz_conv},
                                                           {"encode", fuzz_encode},
                                                           {"packing", fuzz_packing},
                                                           {"formats", fuzz_formats},
                                                           {"layer", fuzz_layer}};

}  // namespace

namespace bitcycle {

template <typename Slot>
Slot slot_of(void* (*)(Slot, size_t));
using SlotOfWorkspace = decltype(slot_of(workspace));

// The compiler is told to call `workspace` by another name in all files but parallel.cpp: this one.
// It is exactly as large as they ask for, with the 64 bytes to spare, and has nothing in it that an
// earlier call has left.
void* workspace(SlotOfWorkspace slot, size_t bytes) {
  thread_local std::map<int, std::unique_ptr<Guarded>> memory;
  memory[slot].reset();
  memory[slot] = std::make_unique<Guarded>(bytes + 64, true, 64);
  return memory[slot]->at();
}

}  // namespace bitcycle

int main(int count, char** arguments) {
  if (count < 3) return std::fprintf(stderr, "fuzz SEED SECONDS [CASE]\n"), 2;
  const uint64_t seed = std::strtoull(arguments[1], nullptr, 10);
  const double seconds = std::atof(arguments[2]);
  const long only = count > 3 ? std::atol(arguments[3]) : -1;
  if (__sanitizer_set_death_callback)
    __sanitizer_set_death_callback([] { std::fprintf(stderr, "in %s\n", current); });
  const auto start = std::chrono::steady_clock::now();
  const auto elapsed = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  std::map<std::string, long> cases;
  for (long i = only >= 0 ? only : 0; only >= 0 ? i == only : elapsed() < seconds; ++i) {
    Random random{seed * 0x9E3779B97F4A7C15u + uint64_t(i) * 0xD1B54A32D192ED03u};
    std::snprintf(current, sizeof current, "case %ld: ", i);
    const auto [kind, run] = KINDS[random.from(0, 5)];
    run(random);
    ++cases[kind];
  }
  for (const auto& [kind, number] : cases) std::printf("%s %ld\n", kind.c_str(), number);
  return 0;
}
