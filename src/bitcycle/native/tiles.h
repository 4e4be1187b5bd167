// Register tiles: the innermost loop of every product of codes.
//
// A tile multiplies ROWS rows of the first operand with one or two panels of COLUMNS columns of the
// second one, and writes the whole-number result to `sums` (ROWS x panels * COLUMNS, row-major).
//
//   first    a row is a pointer; its four (or two) next codes lie `row_step` bytes further on. The
//            taps of a convolution are byte offsets that all rows share.
//   second   packed: [tap][step][COLUMNS][4] signed bytes, or [tap][step][COLUMNS][2] int16, with
//            `panel_gap` bytes behind each tap.
#pragma once
#include <cstdint>

#include "isa.h"

namespace bitcycle {

constexpr int ROWS = 6, COLUMNS = 16;
constexpr int PANEL_BYTES = 64;  // of one step: 16 columns of 4 bytes, or of 2 int16

struct Tile {
  const void* rows[ROWS];
  const long* taps;    // byte offsets
  long num_taps;
  long num_steps;      // of each tap
  long row_step;       // bytes from one step to the next in a row
  const void* panels[2];
  long panel_gap;
  int32_t* sums;
};

// The functions of one instruction set. `bytes`: uint8 x int8, sums in 16 bits where that is the
// fast way, widened after `widen` steps. `words`: int16 x int16 with 32-bit sums.
struct Tiles {
  const char* name;
  Isa isa;  // for the loops around the tiles
  int max_panels;
  bool has_narrow_sums;  // whether `bytes` is exact only for `widen` > 0
  void (*bytes)(const Tile&, int num_panels, long widen);
  void (*words)(const Tile&, int num_panels);
};

const Tiles& tiles();                 // the best of this processor
bool choose_tiles(const char* name);  // another set that this processor has

}  // namespace bitcycle
