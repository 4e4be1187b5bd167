#include "tiles.h"

#include <algorithm>
#include <cstring>

namespace bitcycle {
namespace {

// ---- portable -------------------------------------------------------------------------------

template <typename A, typename B, int GROUP>
void multiply_portable(const Tile& t, int num_panels) {
  for (int p = 0; p < num_panels; ++p) {
    for (int r = 0; r < ROWS; ++r) {
      const char* panel = static_cast<const char*>(t.panels[p]);
      int32_t sums[COLUMNS] = {};
      for (long tap = 0; tap < t.num_taps; ++tap, panel += t.panel_gap) {
        const char* row = static_cast<const char*>(t.rows[r]) + t.taps[tap];
        for (long step = 0; step < t.num_steps; ++step, panel += PANEL_BYTES, row += t.row_step) {
          A a[GROUP];
          B b[COLUMNS * GROUP];
          std::memcpy(a, row, sizeof a);
          std::memcpy(b, panel, sizeof b);
          for (int c = 0; c < COLUMNS; ++c)
            for (int g = 0; g < GROUP; ++g) sums[c] += int32_t(a[g]) * b[c * GROUP + g];
        }
      }
      std::memcpy(t.sums + (r * num_panels + p) * COLUMNS, sums, sizeof sums);
    }
  }
}

void bytes_portable(const Tile& t, int num_panels, long) {
  multiply_portable<uint8_t, int8_t, 4>(t, num_panels);
}

void words_portable(const Tile& t, int num_panels) {
  multiply_portable<int16_t, int16_t, 2>(t, num_panels);
}

const Tiles PORTABLE{"portable", Isa::PORTABLE, 1, false, bytes_portable, words_portable};

#if defined(__x86_64__) && defined(__GNUC__)

// The loops are written in assembly because compilers spill the accumulators: 12 of the 16
// registers hold sums, two the panel, one the row's codes and one their products.

#define ACCUMULATORS(X) \
  X(0, 0) X(1, 32) X(2, 64) X(3, 96) X(4, 128) X(5, 160) \
  X(6, 192) X(7, 224) X(8, 256) X(9, 288) X(10, 320) X(11, 352)

#define TAPS_BEGIN                  \
  "2:\n\t"                          \
  "mov (%[taps]), %[k]\n\t"         \
  "add $8, %[taps]\n\t"             \
  "mov %[steps], %[n]\n\t"          \
  "1:\n\t"

#define TAPS_END                    \
  "add %[row_step], %[k]\n\t"       \
  "decq %[n]\n\t"                    \
  "jnz 1b\n\t"                      \
  "add %[gap], %[b]\n\t"            \
  "decq %[num_taps]\n\t"             \
  "jnz 2b\n\t"

#define INPUTS                                                                          \
  [a0] "r"(t.rows[0]), [a1] "r"(t.rows[1]), [a2] "r"(t.rows[2]), [a3] "r"(t.rows[3]),   \
      [a4] "r"(t.rows[4]), [a5] "r"(t.rows[5]), [row_step] "rm"(t.row_step),            \
      [steps] "rm"(steps), [gap] "rm"(gap), [sums] "r"(t.sums)

#define CLOBBERS                                                                             \
  "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",   \
      "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "cc", "memory"

// ---- AVX2 -----------------------------------------------------------------------------------

#define Y_ZERO(i, at) "vpxor %%ymm" #i ", %%ymm" #i ", %%ymm" #i "\n\t"

#define Y_ROW(multiply, add, row, low, high)      \
  "vpbroadcastd (%[" #row "],%[k]), %%ymm14\n\t"  \
  multiply " %%ymm12, %%ymm14, %%ymm15\n\t"       \
  multiply " %%ymm13, %%ymm14, %%ymm14\n\t"       \
  add " %%ymm15, %%ymm" #low ", %%ymm" #low "\n\t"  \
  add " %%ymm14, %%ymm" #high ", %%ymm" #high "\n\t"

#define Y_PANEL                  \
  "vmovdqu (%[b]), %%ymm12\n\t"   \
  "vmovdqu 32(%[b]), %%ymm13\n\t" \
  "add $64, %[b]\n\t"

#define Y_LOOP(multiply, add)                                                            \
  ACCUMULATORS(Y_ZERO) TAPS_BEGIN Y_PANEL                                                \
  Y_ROW(multiply, add, a0, 0, 1) Y_ROW(multiply, add, a1, 2, 3)                          \
  Y_ROW(multiply, add, a2, 4, 5) Y_ROW(multiply, add, a3, 6, 7)                          \
  Y_ROW(multiply, add, a4, 8, 9) Y_ROW(multiply, add, a5, 10, 11) TAPS_END

#define Y_STORE(i, at) "vmovdqu %%ymm" #i ", " #at "(%[sums])\n\t"

#define Y_WIDEN_AND_ADD(i, at)                            \
  "vpmaddwd %%ymm12, %%ymm" #i ", %%ymm" #i "\n\t"        \
  "vpaddd " #at "(%[sums]), %%ymm" #i ", %%ymm" #i "\n\t" \
  Y_STORE(i, at)

alignas(32) const int16_t ONES[16] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};

// Several taps that 16-bit sums hold together, added to the sums in 32 bits.
__attribute__((target("avx2"))) const int8_t* add_taps(const Tile& t, const long* taps,
                                                       long num_taps, const int8_t* b) {
  long steps = t.num_steps, gap = t.panel_gap, k, n;
  asm volatile(Y_LOOP("vpmaddubsw", "vpaddw") "vmovdqa %[ones], %%ymm12\n\t"
               ACCUMULATORS(Y_WIDEN_AND_ADD)
               : [b] "+&r"(b), [n] "=&r"(n), [k] "=&r"(k), [taps] "+&r"(taps),
                 [num_taps] "+&rm"(num_taps)
               : INPUTS, [ones] "m"(ONES)
               : CLOBBERS);
  return b;
}

#define Y_FIRST(row, low, high)                        \
  "vpbroadcastd (%[" #row "],%[k]), %%ymm14\n\t"       \
  "vpmaddubsw %%ymm12, %%ymm14, %%ymm" #low "\n\t"     \
  "vpmaddubsw %%ymm13, %%ymm14, %%ymm" #high "\n\t"

// One tap, in chunks of `widen` steps, each added to the sums in 32 bits.
__attribute__((target("avx2"))) const int8_t* add_chunks(const Tile& t, long k, long widen,
                                                         const int8_t* b) {
  long steps = t.num_steps, n;
  asm volatile(
      "2:\n\t"
      "mov %[steps], %[n]\n\t"
      "cmp %[widen], %[n]\n\t"
      "cmovg %[widen], %[n]\n\t"
      "sub %[n], %[steps]\n\t"
      Y_PANEL Y_FIRST(a0, 0, 1) Y_FIRST(a1, 2, 3) Y_FIRST(a2, 4, 5) Y_FIRST(a3, 6, 7)
      Y_FIRST(a4, 8, 9) Y_FIRST(a5, 10, 11)
      "jmp 3f\n\t"
      "1:\n\t"
      Y_PANEL
      Y_ROW("vpmaddubsw", "vpaddw", a0, 0, 1) Y_ROW("vpmaddubsw", "vpaddw", a1, 2, 3)
      Y_ROW("vpmaddubsw", "vpaddw", a2, 4, 5) Y_ROW("vpmaddubsw", "vpaddw", a3, 6, 7)
      Y_ROW("vpmaddubsw", "vpaddw", a4, 8, 9) Y_ROW("vpmaddubsw", "vpaddw", a5, 10, 11)
      "3:\n\t"
      "add %[row_step], %[k]\n\t"
      "dec %[n]\n\t"
      "jnz 1b\n\t"
      "vmovdqa %[ones], %%ymm12\n\t"
      ACCUMULATORS(Y_WIDEN_AND_ADD)
      "cmpq $0, %[steps]\n\t"
      "jg 2b\n\t"
      : [b] "+&r"(b), [n] "=&r"(n), [k] "+r"(k), [steps] "+r"(steps)
      : [a0] "r"(t.rows[0]), [a1] "r"(t.rows[1]), [a2] "r"(t.rows[2]), [a3] "r"(t.rows[3]),
        [a4] "r"(t.rows[4]), [a5] "r"(t.rows[5]), [row_step] "rm"(t.row_step),
        [widen] "rm"(widen), [sums] "r"(t.sums), [ones] "m"(ONES)
      : CLOBBERS);
  return b;
}

// Sums of pairs stay in 16 bits for `widen` steps, over several taps where these are short.
void bytes_avx2(const Tile& t, int, long widen) {
  const int8_t* b = static_cast<const int8_t*>(t.panels[0]);
  std::memset(t.sums, 0, ROWS * COLUMNS * sizeof(int32_t));
  const long group = widen / t.num_steps;
  if (group == 0)
    for (long tap = 0; tap < t.num_taps; ++tap)
      b = add_chunks(t, t.taps[tap], widen, b) + t.panel_gap;
  else
    for (long tap = 0; tap < t.num_taps; tap += group)
      b = add_taps(t, t.taps + tap, std::min(group, t.num_taps - tap), b);
}

__attribute__((target("avx2"))) void words_avx2(const Tile& t, int) {
  const void* b = t.panels[0];
  const long* taps = t.taps;
  long num_taps = t.num_taps, steps = t.num_steps, gap = t.panel_gap, k, n;
  asm volatile(Y_LOOP("vpmaddwd", "vpaddd") ACCUMULATORS(Y_STORE)
               : [b] "+&r"(b), [n] "=&r"(n), [k] "=&r"(k), [taps] "+&r"(taps),
                 [num_taps] "+&rm"(num_taps)
               : INPUTS
               : CLOBBERS);
}

const Tiles AVX2{"avx2", Isa::AVX2, 1, true, bytes_avx2, words_avx2};

// ---- AVX-512 with VNNI ----------------------------------------------------------------------

#define Z_ZERO(i, at) "vpxord %%zmm" #i ", %%zmm" #i ", %%zmm" #i "\n\t"

#define Z_ROW(dot, row, low, high)                \
  "vpbroadcastd (%[" #row "],%[k]), %%zmm14\n\t"  \
  dot " %%zmm12, %%zmm14, %%zmm" #low "\n\t"      \
  dot " %%zmm13, %%zmm14, %%zmm" #high "\n\t"

#define Z_LOOP2(dot)                                                                    \
  ACCUMULATORS(Z_ZERO) TAPS_BEGIN                                                       \
  "vmovdqu32 (%[b]), %%zmm12\n\t"                                                       \
  "vmovdqu32 (%[b],%[between]), %%zmm13\n\t"                                            \
  "add $64, %[b]\n\t"                                                                   \
  Z_ROW(dot, a0, 0, 1) Z_ROW(dot, a1, 2, 3) Z_ROW(dot, a2, 4, 5)                        \
  Z_ROW(dot, a3, 6, 7) Z_ROW(dot, a4, 8, 9) Z_ROW(dot, a5, 10, 11) TAPS_END

#define Z_STORE2(i, at) "vmovdqu32 %%zmm" #i ", 2*" #at "(%[sums])\n\t"

// One panel: two steps at a time, each with sums of its own, because a sum can only be added to
// again after five cycles.
#define Z_ONE(dot, row, sum) \
  "vpbroadcastd (%[" #row "],%[k]), %%zmm14\n\t" dot " %%zmm12, %%zmm14, %%zmm" #sum "\n\t"
#define Z_EVEN(dot)                                                                     \
  "vmovdqu32 (%[b]), %%zmm12\n\t" "add $64, %[b]\n\t"                                   \
  Z_ONE(dot, a0, 0) Z_ONE(dot, a1, 1) Z_ONE(dot, a2, 2)                                 \
  Z_ONE(dot, a3, 3) Z_ONE(dot, a4, 4) Z_ONE(dot, a5, 5)
#define Z_ODD(dot)                                                                      \
  "vmovdqu32 (%[b]), %%zmm12\n\t" "add $64, %[b]\n\t"                                   \
  Z_ONE(dot, a0, 6) Z_ONE(dot, a1, 7) Z_ONE(dot, a2, 8)                                 \
  Z_ONE(dot, a3, 9) Z_ONE(dot, a4, 10) Z_ONE(dot, a5, 11)
#define Z_LOOP1(dot)                                                                    \
  ACCUMULATORS(Z_ZERO) TAPS_BEGIN Z_EVEN(dot)                                           \
  "decq %[n]\n\t"                                                                        \
  "jz 3f\n\t"                                                                           \
  "add %[row_step], %[k]\n\t" Z_ODD(dot)                                                \
  "add %[row_step], %[k]\n\t"                                                           \
  "decq %[n]\n\t"                                                                        \
  "jnz 1b\n\t"                                                                          \
  "3:\n\t"                                                                              \
  "add %[gap], %[b]\n\t"                                                                \
  "decq %[num_taps]\n\t"                                                                 \
  "jnz 2b\n\t"
#define Z_STORE1(i, j, at)                           \
  "vpaddd %%zmm" #j ", %%zmm" #i ", %%zmm" #i "\n\t" \
  "vmovdqu32 %%zmm" #i ", " #at "(%[sums])\n\t"
#define Z_STORE1_ALL                                                                       \
  Z_STORE1(0, 6, 0) Z_STORE1(1, 7, 64) Z_STORE1(2, 8, 128) Z_STORE1(3, 9, 192)             \
  Z_STORE1(4, 10, 256) Z_STORE1(5, 11, 320)

#define VNNI_TILE(name, dot)                                                                  \
  __attribute__((target("avx512f,avx512bw,avx512vnni"))) void name(const Tile& t, int panels) { \
    const char* b = static_cast<const char*>(t.panels[0]);                                    \
    const long* taps = t.taps;                                                                \
    long num_taps = t.num_taps, steps = t.num_steps, gap = t.panel_gap, k, n;                 \
    if (panels == 2) {                                                                        \
      const long between = static_cast<const char*>(t.panels[1]) - b;                         \
      asm volatile(Z_LOOP2(dot) ACCUMULATORS(Z_STORE2)                                        \
                   : [b] "+&r"(b), [n] "=&r"(n), [k] "=&r"(k), [taps] "+&r"(taps),              \
                     [num_taps] "+&rm"(num_taps)                                               \
                   : INPUTS, [between] "r"(between)                                           \
                   : CLOBBERS);                                                               \
    } else {                                                                                  \
      asm volatile(Z_LOOP1(dot) Z_STORE1_ALL                                                  \
                   : [b] "+&r"(b), [n] "=&r"(n), [k] "=&r"(k), [taps] "+&r"(taps),              \
                     [num_taps] "+&rm"(num_taps)                                               \
                   : INPUTS                                                                   \
                   : CLOBBERS);                                                               \
    }                                                                                         \
  }

VNNI_TILE(dot_bytes, "vpdpbusd")
VNNI_TILE(words_vnni, "vpdpwssd")

void bytes_vnni(const Tile& t, int num_panels, long) { dot_bytes(t, num_panels); }

const Tiles VNNI{"avx512_vnni", Isa::AVX512, 2, false, bytes_vnni, words_vnni};

bool has_avx2() { return __builtin_cpu_supports("avx2"); }
bool has_vnni() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vnni");
}

const Tiles* find_tiles() {
  __builtin_cpu_init();
  return has_vnni() ? &VNNI : has_avx2() ? &AVX2 : &PORTABLE;
}

const Tiles* find_tiles(const char* name) {
  if (!std::strcmp(name, "avx512_vnni") && has_vnni()) return &VNNI;
  if (!std::strcmp(name, "avx2") && has_avx2()) return &AVX2;
  return std::strcmp(name, "portable") ? nullptr : &PORTABLE;
}

#else

const Tiles* find_tiles() { return &PORTABLE; }
const Tiles* find_tiles(const char* name) {
  return std::strcmp(name, "portable") ? nullptr : &PORTABLE;
}

#endif

const Tiles* chosen = find_tiles();

}  // namespace

const Tiles& tiles() { return *chosen; }

Isa isa() { return chosen->isa; }

bool choose_tiles(const char* name) {
  const Tiles* found = find_tiles(name);
  if (found) chosen = found;
  return found != nullptr;
}

}  // namespace bitcycle

// The instruction set in use, after a change to `name` unless that is null; null if this processor
// has no such set.
BITCYCLE_API const char* bitcycle_tiles(const char* name) {
  if (name && !bitcycle::choose_tiles(name)) return nullptr;
  return bitcycle::tiles().name;
}
