// SimHash kernels, on tiles: one float for each of 8 rows.
#include "kernels/simd/vector.hpp"

namespace dslide::DSLIDE_LEVEL {
namespace {
typedef float Tile __attribute__((vector_size(32)));  // one vector or two
typedef int32_t TileBits __attribute__((vector_size(32)));

inline Tile load_tile(const float* p) {
  Tile tile;
  memcpy(&tile, p, sizeof tile);
  return tile;
}

void signed_sums(const float* x, size_t groups, float* tiles) {
  for (size_t g = 0; g < groups; ++g, x += 4 * 8, tiles += 16 * 8) {
    Tile sums[16];
    sums[1] = load_tile(x);
    sums[0] = -sums[1];
#pragma GCC unroll 4
    for (int i = 1; i < 4; ++i) {
      const Tile next = load_tile(x + i * 8);
#pragma GCC unroll 8
      for (int c = 0; c < 1 << i; ++c) {
        sums[c + (1 << i)] = sums[c] + next;
        sums[c] = sums[c] - next;
      }
    }
#pragma GCC unroll 16
    for (int c = 0; c < 16; ++c) memcpy(tiles + c * 8, &sums[c], sizeof(Tile));
  }
}

void positive_bits(const float* tiles, size_t count, uint64_t* words) {
  for (size_t row = 0; row < 8; ++row) words[row] = 0;
  for (size_t first = 0; first < count; first += 32) {  // a row's bits are collected in a 32-bit lane
    TileBits bits{};
    const size_t end = count < first + 32 ? count : first + 32;
    for (size_t j = first; j < end; ++j) {
      bits |= (load_tile(tiles + j * 8) > 0.0f) & static_cast<int32_t>(1u << (j - first));
    }
    for (size_t row = 0; row < 8; ++row) words[row] |= static_cast<uint64_t>(static_cast<uint32_t>(bits[row])) << first;
  }
}

void add_choices(const float* tiles, const uint8_t* choices, size_t tables, float* sums) {
  Tile sum[8];
#pragma GCC unroll 8
  for (int p = 0; p < 8; ++p) sum[p] = load_tile(sums + 8 * p);  // one memcpy of all sums would go through memory
  const char* at = reinterpret_cast<const char*>(tiles);
  for (size_t t = 0; t < tables; ++t, at += 16 * sizeof(Tile), choices += 8) {
    uint64_t eight;  // one load for all: loads are the bottleneck
    memcpy(&eight, choices, sizeof eight);
#pragma GCC unroll 8
    for (int p = 0; p < 8; ++p, eight >>= 8) {
      sum[p] += load_tile(reinterpret_cast<const float*>(at + 8 * (eight & 0xff)));  // 8: the scale of an address
    }
  }
#pragma GCC unroll 8
  for (int p = 0; p < 8; ++p) memcpy(sums + 8 * p, &sum[p], sizeof(Tile));
}
}  // namespace

void register_simhash(Kernels& table) {
  table.signed_sums = signed_sums;
  table.positive_bits = positive_bits;
  table.add_choices = add_choices;
}
}  // namespace dslide::DSLIDE_LEVEL
