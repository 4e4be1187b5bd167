#include "layout.h"

#include <algorithm>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "parallel.h"

namespace bitcycle {
namespace {

constexpr long TASK_ELEMENTS = 16384;

void turn_map(const uint8_t* x, long channels, long pixels, uint8_t* out) {
  long p = 0;
#if defined(__SSE2__)
  for (; p + 16 <= pixels; p += 16) {
    long c = 0;
    for (; c + 8 <= channels; c += 8) {
      __m128i r[8], s[8];
      for (int i = 0; i < 8; ++i)
        r[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x + (c + i) * pixels + p));
      for (int i = 0; i < 4; ++i) {
        s[2 * i] = _mm_unpacklo_epi8(r[2 * i], r[2 * i + 1]);
        s[2 * i + 1] = _mm_unpackhi_epi8(r[2 * i], r[2 * i + 1]);
      }
      for (int i = 0; i < 2; ++i)
        for (int half = 0; half < 2; ++half) {
          r[4 * i + 2 * half] = _mm_unpacklo_epi16(s[4 * i + half], s[4 * i + 2 + half]);
          r[4 * i + 2 * half + 1] = _mm_unpackhi_epi16(s[4 * i + half], s[4 * i + 2 + half]);
        }
      for (int i = 0; i < 4; ++i) {  // r[i]: four pixels of the first four channels
        const __m128i low = _mm_unpacklo_epi32(r[i], r[4 + i]);
        const __m128i high = _mm_unpackhi_epi32(r[i], r[4 + i]);
        uint8_t* to = out + (p + 4 * i) * channels + c;
        _mm_storel_epi64(reinterpret_cast<__m128i*>(to), low);
        _mm_storel_epi64(reinterpret_cast<__m128i*>(to + channels), _mm_unpackhi_epi64(low, low));
        _mm_storel_epi64(reinterpret_cast<__m128i*>(to + 2 * channels), high);
        _mm_storel_epi64(reinterpret_cast<__m128i*>(to + 3 * channels),
                         _mm_unpackhi_epi64(high, high));
      }
    }
    for (; c < channels; ++c)
      for (long i = p; i < p + 16; ++i) out[i * channels + c] = x[c * pixels + i];
  }
#endif
  for (; p < pixels; ++p)
    for (long c = 0; c < channels; ++c) out[p * channels + c] = x[c * pixels + p];
}


#if defined(__SSE2__)
// Four pixels of four channels.
void turn_block(const float* x, long channels, float* out, long plane) {
  __m128 r[4];
  for (int i = 0; i < 4; ++i) r[i] = _mm_loadu_ps(x + i * channels);
  _MM_TRANSPOSE4_PS(r[0], r[1], r[2], r[3]);
  for (int i = 0; i < 4; ++i) _mm_storeu_ps(out + i * plane, r[i]);
}

// Eight pixels of eight channels.
void turn_block(const BFloat16* x, long channels, BFloat16* out, long plane) {
  __m128i r[8], s[8];
  for (int i = 0; i < 8; ++i)
    r[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x + i * channels));
  for (int i = 0; i < 4; ++i) {
    s[2 * i] = _mm_unpacklo_epi16(r[2 * i], r[2 * i + 1]);
    s[2 * i + 1] = _mm_unpackhi_epi16(r[2 * i], r[2 * i + 1]);
  }
  for (int i = 0; i < 2; ++i)  // r[4 * i + j]: four pixels of the channels 2 * j and 2 * j + 1
    for (int half = 0; half < 2; ++half) {
      r[4 * i + 2 * half] = _mm_unpacklo_epi32(s[4 * i + half], s[4 * i + 2 + half]);
      r[4 * i + 2 * half + 1] = _mm_unpackhi_epi32(s[4 * i + half], s[4 * i + 2 + half]);
    }
  for (int j = 0; j < 4; ++j) {
    __m128i* to = reinterpret_cast<__m128i*>(out + 2 * j * plane);
    _mm_storeu_si128(to, _mm_unpacklo_epi64(r[j], r[4 + j]));
    to = reinterpret_cast<__m128i*>(out + (2 * j + 1) * plane);
    _mm_storeu_si128(to, _mm_unpackhi_epi64(r[j], r[4 + j]));
  }
}
#endif

template <typename T>
void turn_elements(const T* x, long num_pixels, long channels, T* out, long plane, long step) {
  constexpr long LINE = 64 / sizeof(T);  // channels that share a line of the cache
  for (long first = 0; first < channels; first += LINE) {
    const long last = std::min(channels, first + LINE);
    long p = 0;
#if defined(__SSE2__)
    constexpr long BLOCK = 16 / sizeof(T);
    if (step == 1)
      for (; p + BLOCK <= num_pixels; p += BLOCK) {
        long c = first;
        for (; c + BLOCK <= last; c += BLOCK)
          turn_block(x + p * channels + c, channels, out + c * plane + p, plane);
        for (; c < last; ++c)
          for (long i = p; i < p + BLOCK; ++i) out[c * plane + i] = x[i * channels + c];
      }
#endif
    for (; p < num_pixels; ++p)
      for (long c = first; c < last; ++c) out[c * plane + p * step] = x[p * channels + c];
  }
}

}  // namespace

void turn_codes(const uint8_t* x, const Maps& maps, uint8_t* out, long num_threads) {
  const auto [images, channels, pixels] = maps;
  const long each = std::max<long>(1, TASK_ELEMENTS / (channels * pixels));
  const long num_tasks = (images + each - 1) / each;
  parallel_for(num_tasks, int(num_threads), [&, num = images, c = channels, p = pixels](long task) {
    for (long n = task * each; n < std::min<long>(num, (task + 1) * each); ++n)
      turn_map(x + n * c * p, c, p, out + n * c * p);
  });
}

void turn_pixels(const void* x, long num_pixels, long channels, const Planes& out) {
  if (out.first.is_half)
    turn_elements(static_cast<const BFloat16*>(x), num_pixels, channels,
                  static_cast<BFloat16*>(out.first.data), out.plane, out.step);
  else
    turn_elements(static_cast<const float*>(x), num_pixels, channels,
                  static_cast<float*>(out.first.data), out.plane, out.step);
}

void turn_results(Results x, const Maps& maps, Results out, long num_threads) {
  parallel_for(maps.images, int(num_threads), [&](long n) {
    const long at = n * maps.channels * maps.pixels;
    turn_pixels(x.at(at), maps.pixels, maps.channels, {out.from(at), maps.pixels, 1});
  });
}

}  // namespace bitcycle
