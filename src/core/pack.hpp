// A block of weight rows, transposed, so that a matrix product can read the same input of all its neurons at once.
#pragma once
#include <cstddef>

namespace dslide {

constexpr size_t BLOCK = 64;  // neurons in a block

// Floats from one row of working memory to the next for rows of so many (a multiple of 16): an odd number of cache
// lines. With a power of two the same columns of all rows would fall into a few sets of the cache and drive each other
// out, which costs matrix products a tenth of their speed.
constexpr size_t spread(size_t width) { return (width / 16 | 1) * 16; }

constexpr size_t PACKED = spread(BLOCK);  // floats from one row of a packed block to the next

// packed[p * PACKED + c] = rows[c][p] for p < inputs; columns from `count` on are zero. inputs is a multiple of 16.
inline void pack_block(const float* const* rows, size_t count, size_t inputs, float* packed) {
  static const float zeros[16] = {};
  for (size_t p = 0; p < inputs; p += 16) {  // a cache line of each row at a time
    for (size_t c = 0; c < BLOCK; c += 4) {  // four rows side by side: four floats are stored together
      const float* row[4];
      for (size_t i = 0; i < 4; ++i) row[i] = c + i < count ? rows[c + i] + p : zeros;
      float* out = packed + p * PACKED + c;
      for (size_t q = 0; q < 16; ++q) {
        for (size_t i = 0; i < 4; ++i) out[q * PACKED + i] = row[i][q];
      }
    }
  }
}

}  // namespace dslide
