// One body, compiled for several instruction sets and chosen at run time.
#pragma once

// What Python calls.
#define BITCYCLE_API extern "C" __attribute__((visibility("default")))

namespace bitcycle {

enum class Isa { PORTABLE, AVX2, AVX512 };
Isa isa();  // of the tiles in use

#if defined(__x86_64__) && defined(__GNUC__)
#if defined(__clang__)  // which ignores the whole attribute if it does not know a word
#define BITCYCLE_AVX512 "avx512f,avx512bw,avx512dq,avx512vl"
#else
#define BITCYCLE_AVX512 "avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512"
#endif
#define BITCYCLE_INLINE static inline __attribute__((always_inline))
#define BITCYCLE_FOR_EACH_ISA(name, params, args)                                        \
  __attribute__((target(BITCYCLE_AVX512)))                                               \
  static void name##_avx512 params { name##_body args; }                                 \
  __attribute__((target("avx2"))) static void name##_avx2 params { name##_body args; }   \
  static void name##_portable params { name##_body args; }                               \
  static void name params {                                                              \
    switch (isa()) {                                                                     \
      case Isa::AVX512: return name##_avx512 args;                                       \
      case Isa::AVX2: return name##_avx2 args;                                           \
      default: return name##_portable args;                                              \
    }                                                                                    \
  }
#else
#define BITCYCLE_INLINE static inline
#define BITCYCLE_FOR_EACH_ISA(name, params, args) \
  static void name params { name##_body args; }
#endif

}  // namespace bitcycle
