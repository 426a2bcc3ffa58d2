// A block of weight rows, transposed, so that a matrix product can read the same input of all its neurons at once.
#pragma once
#include <cstddef>
#include <cstring>

namespace dslide {

constexpr size_t BLOCK = 64;  // neurons in a block

// Floats from one row of working memory to the next for rows of so many (a multiple of 16): an odd number of cache
// lines. With a power of two the same columns of all rows would fall into a few sets of the cache and drive each other
// out, which costs matrix products a tenth of their speed.
constexpr size_t spread(size_t width) { return (width / 16 | 1) * 16; }

constexpr size_t PACKED = spread(BLOCK);  // floats from one row of a packed block to the next

// packed[p * PACKED + c] = rows[c][p] for p < inputs; columns from `count` on are zero. inputs is a multiple of 16.
inline void pack_block(const float* const* rows, size_t count, size_t inputs, float* packed) {
  using Four = float __attribute__((vector_size(16)));
  using Places = int __attribute__((vector_size(16)));
  static const float zeros[16] = {};
  for (size_t p = 0; p < inputs; p += 16) {  // a cache line of each row at a time
    for (size_t c = 0; c < BLOCK; c += 4) {
      const float* row[4];
      for (size_t i = 0; i < 4; ++i) row[i] = c + i < count ? rows[c + i] + p : zeros;
      for (size_t q = 0; q < 16; q += 4) {  // four floats of four rows change places
        Four a[4];
        for (size_t i = 0; i < 4; ++i) std::memcpy(&a[i], row[i] + q, sizeof(Four));
        const Four low01 = __builtin_shuffle(a[0], a[1], Places{0, 4, 1, 5});
        const Four low23 = __builtin_shuffle(a[2], a[3], Places{0, 4, 1, 5});
        const Four high01 = __builtin_shuffle(a[0], a[1], Places{2, 6, 3, 7});
        const Four high23 = __builtin_shuffle(a[2], a[3], Places{2, 6, 3, 7});
        const Four out[4] = {__builtin_shuffle(low01, low23, Places{0, 1, 4, 5}),
                             __builtin_shuffle(low01, low23, Places{2, 3, 6, 7}),
                             __builtin_shuffle(high01, high23, Places{0, 1, 4, 5}),
                             __builtin_shuffle(high01, high23, Places{2, 3, 6, 7})};
        for (size_t i = 0; i < 4; ++i) std::memcpy(packed + (p + q + i) * PACKED + c, &out[i], sizeof(Four));
      }
    }
  }
}

}  // namespace dslide
