// Second operands in the layout that tiles read: panels of 16 columns, a few k side by side.
//
//   bytes   [k / 4][16][4]   code - half, signed
//   words   [k / 2][16][2]   the same in 16 bits, or values that were folded to 16 bits
//
// K is filled up to a multiple of four with zeros.
#pragma once
#include <cstdint>

#include "product.h"

namespace bitcycle {

// Codes of up to 16 columns: x[c * column + k * step].
struct Codes {
  const uint8_t* x;
  long column, step;
  long num_columns, K;
};

// sums[c]: of the column's centred codes.
void pack_codes(const Codes& codes, int half, bool is_words, char* out, int64_t* sums);

// The same codes as rows of 16: where they are, or copied (into SMALL), zeros for missing columns.
Codes as_rows_of_16(const Codes& codes);

// Codes as rows of 16; the last columns of a row that has fewer are left as they are.
void copy_as_rows(const Codes& codes, uint8_t* rows);

// Values with a grid for each k, in units of the largest of each column:
//
//   scale[k] * x[k][c] + offset[k]  ~  unit[c] * f[k][c],   |f| <= 32767
//
// `rows` are rows of 16.
struct Fold {
  Codes rows;
  const float *scale, *offset;  // of each k
  float unit[COLUMNS], per_unit[COLUMNS];
};
Fold find_units(const Codes& rows, const float* scale, const float* offset);
void pack_folded(const Fold& fold, char* out);
void add_folded(const Fold& fold, long first_k, long num_k, int64_t* sums);

// sums[c] += sum over k of weight[k] * (scale[k] * x[k][c] + offset[k])
void add_values(const Codes& rows, const float* scale, const float* offset, const double* weight,
                double* sums);

// sums[c] += sum over k of x[k][c], for the 16 columns of rows
void add_codes(const Codes& rows, int64_t* sums);

inline long panel_bytes(long K, bool is_words) {
  return round_up(K, 4) * COLUMNS * (is_words ? 2 : 1);
}

}  // namespace bitcycle
