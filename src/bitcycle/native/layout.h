// Maps from channels-last to contiguous and back: (pixels, channels) <-> (channels, pixels).
#pragma once
#include <cstdint>

#include "floats.h"

namespace bitcycle {

struct Maps {
  int64_t images, channels, pixels;
};

// Codes of contiguous maps, to channels-last.
void turn_codes(const uint8_t* x, const Maps& maps, uint8_t* out, long num_threads);

// Pixels of one channels-last map, `out.step` elements apart, to planes of a channel each.
struct Planes {
  Results first;  // of the first channel and pixel
  long plane, step;
};
void turn_pixels(const void* x, long num_pixels, long channels, const Planes& out);

// Channels-last maps as a whole.
void turn_results(Results x, const Maps& maps, Results out, long num_threads);

}  // namespace bitcycle
