// SimHash: a code is the sign of the sum of all coordinates, each with a random sign.
//
// Signs are bits of mix(seed, coordinate, word), so nothing is stored. Dense rows are processed in groups of four
// coordinates: the 16 possible signed sums of a group are computed once, then a projection costs one look-up and
// addition per group, for 8 rows at a time: several times faster than multiplying by a +-1 matrix.
//
// The order of additions is fixed, for dense and sparse rows and any blocking: within a group by coordinate, then group
// by group. So codes are bit-identical; zeros change nothing.
#include <array>
#include <bit>
#include <cstring>
#include "hashing/hash_family.hpp"
#include "kernels/kernels.hpp"
#include "runtime/memory.hpp"

namespace dslide {
namespace {
constexpr size_t GROUP = 4;             // coordinates per group
constexpr size_t CHOICES = 1 << GROUP;  // sign combinations per group
constexpr size_t PANEL = 8;             // projections summed at a time
constexpr size_t TILE = 8;              // rows summed at a time
constexpr size_t BLOCK_GROUPS = 32;     // groups per block; their sums (16 KB) stay in L1
constexpr size_t CHUNK_ROWS = 256;      // rows that share the choices computed for a block

struct alignas(32) Tile {  // one float for each of TILE rows
  float of_row[TILE];
};

// Moves bit j of a byte to the lowest bit of byte j.
inline uint64_t bits_to_bytes(uint64_t byte) {
  const uint64_t one_each = (byte & 0xFF) * 0x0101010101010101ull & 0x8040201008040201ull;
  return (one_each + 0x7F7F7F7F7F7F7F7Full) >> 7 & 0x0101010101010101ull;
}

// sums (64) += x with the 64 signs in `bits`. Powers of two come from memory: SSE cannot shift lanes differently.
inline void add_signed(float x, uint64_t bits, float* sums) {
  static constexpr auto POWERS = [] {
    std::array<uint32_t, 32> powers{};
    for (uint32_t j = 0; j < 32; ++j) powers[j] = 1u << j;
    return powers;
  }();
  const float minus = -x;
  for (size_t half = 0; half < 2; ++half, sums += 32, bits >>= 32) {
    const uint32_t word = static_cast<uint32_t>(bits);
    for (size_t j = 0; j < 32; ++j) sums[j] += (word & POWERS[j]) == 0 ? minus : x;
  }
}

class SimHash final : public HashFunctions {
 public:
  explicit SimHash(const HashSpec& spec) : HashFunctions(spec), words_((spec.k * spec.tables + 63) / 64) {}

 private:
  void dense_part(const DenseRows& x, size_t begin, size_t end, uint32_t* codes) const override {
    const Kernels& kernel = kernels();
    const size_t width = words_ * 64;                    // projections, padded to whole words
    std::vector<uint8_t> choices(width * BLOCK_GROUPS);  // (panels, BLOCK_GROUPS, PANEL)
    Aligned<Tile> group_sums(BLOCK_GROUPS * CHOICES);    // (BLOCK_GROUPS, CHOICES)
    Aligned<Tile> sums((std::min(CHUNK_ROWS, end - begin) + TILE - 1) / TILE * width);  // (tiles, width)
    size_t chosen = spec_.dimension;  // first coordinate of the current choices
    for (size_t first = begin; first < end; first += CHUNK_ROWS) {
      const size_t last = std::min(first + CHUNK_ROWS, end);
      std::fill(sums.begin(), sums.end(), Tile{});
      for (size_t d = 0; d < spec_.dimension; d += BLOCK_GROUPS * GROUP) {
        const size_t depth = std::min(BLOCK_GROUPS * GROUP, spec_.dimension - d), groups = (depth + GROUP - 1) / GROUP;
        if (chosen != d) choose(d, groups, choices.data());
        chosen = d;
        Tile* tile_sums = sums.data();
        for (size_t row = first; row < last; row += TILE, tile_sums += width) {
          sum_groups(x, row, last, d, depth, group_sums.data());
          for (size_t p = 0; p < spec_.k * spec_.tables; p += PANEL) {
            if (p / PANEL < TILE) prefetch(x, row + TILE + p / PANEL, end, d, depth);
            kernel.add_choices(group_sums[0].of_row, &choices[p * BLOCK_GROUPS], groups, tile_sums[p].of_row);
          }
        }
      }
      const Tile* tile_sums = sums.data();
      for (size_t row = first; row < last; row += TILE, tile_sums += width) {
        finish(tile_sums, std::min(TILE, last - row), codes + row * spec_.tables);
      }
    }
  }

  void sparse_part(const Csr& x, size_t begin, size_t end, uint32_t* codes) const override {
    std::vector<float> sums(words_ * 64);
    for (size_t row = begin; row < end; ++row) {
      std::fill(sums.begin(), sums.end(), 0.0f);
      for (int64_t i = x.offsets[row], next; i < x.offsets[row + 1]; i = next) {
        const auto group = x.ids[i] / static_cast<int32_t>(GROUP);
        for (next = i + 1; next < x.offsets[row + 1] && x.ids[next] / static_cast<int32_t>(GROUP) == group;) ++next;
        for (size_t w = 0; w < words_; ++w) {
          float group_sums[64] = {};
          for (int64_t j = i; j < next; ++j) add_signed(x.values[j], signs(x.ids[j], w), group_sums);
          for (size_t p = 0; p < 64; ++p) sums[w * 64 + p] += group_sums[p];
        }
      }
      for (size_t t = 0; t < spec_.tables; ++t) {
        const float* table_sums = &sums[t * spec_.k];
        codes[row * spec_.tables + t] =
            combine_codes(spec_.k, 1, spec_.table_bits, [&](size_t j) { return table_sums[j] > 0.0f; });
      }
    }
  }

  // Bit p of the word is the sign of a coordinate in projection 64 word + p: 1 is plus.
  uint64_t signs(size_t coordinate, size_t word) const { return mix(spec_.seed, coordinate, word); }

  // The signed sum that each projection takes from each group, from coordinate d on: (panels, BLOCK_GROUPS, PANEL).
  void choose(size_t d, size_t groups, uint8_t* choices) const {
    static_assert(PANEL == 8 && std::endian::native == std::endian::little);
    for (size_t g = 0; g < groups; ++g) {
      for (size_t w = 0; w < words_; ++w) {
        uint64_t of_group[GROUP];
        for (size_t i = 0; i < GROUP; ++i) of_group[i] = signs(d + g * GROUP + i, w);
        for (size_t byte = 0; byte < 8; ++byte) {
          uint64_t panel = 0;
          for (size_t i = 0; i < GROUP; ++i) panel |= bits_to_bytes(of_group[i] >> 8 * byte) << (2 + i);
          std::memcpy(choices + ((w * 8 + byte) * BLOCK_GROUPS + g) * PANEL, &panel, PANEL);
        }
      }
    }
  }

  // Prefetches coordinates [d, d + depth) of a row, if there is such a row.
  static void prefetch(const DenseRows& x, size_t row, size_t end, size_t d, size_t depth) {
    if (row >= end) return;
    const float* at = x[row] + d;
    for (size_t i = 0; i < depth; i += CACHE_LINE / sizeof(float)) __builtin_prefetch(at + i);
  }

  // The signed sums of all groups in coordinates [d, d + depth) of TILE rows from `row` on; the last row is repeated.
  static void sum_groups(const DenseRows& x, size_t row, size_t end, size_t d, size_t depth, Tile* group_sums) {
    const float* rows[TILE];
    for (size_t r = 0; r < TILE; ++r) rows[r] = x[std::min(row + r, end - 1)] + d;
    alignas(CACHE_LINE) float columns[BLOCK_GROUPS * GROUP][TILE];  // transposed rows
    const size_t whole = depth / GROUP * GROUP, padded = (depth + GROUP - 1) / GROUP * GROUP;
    kernels().pack(rows, TILE, TILE, whole, columns[0], TILE);
    for (size_t i = whole; i < padded; ++i) {  // the last group, if it is not full
      for (size_t r = 0; r < TILE; ++r) columns[i][r] = i < depth ? rows[r][i] : 0.0f;
    }
    kernels().signed_sums(columns[0], padded / GROUP, group_sums->of_row);
  }

  // sums is (k * tables), codes (rows, tables).
  void finish(const Tile* sums, size_t rows, uint32_t* codes) const {
    uint64_t words[TILE];
    for (size_t t = 0; t < spec_.tables; ++t) {
      kernels().positive_bits(sums[t * spec_.k].of_row, spec_.k, words);
      for (size_t r = 0; r < rows; ++r) {
        codes[r * spec_.tables + t] = combine_codes(1, spec_.k, spec_.table_bits, [&](size_t) { return words[r]; });
      }
    }
  }

  size_t words_;  // 64-bit words of signs per coordinate
};
}  // namespace

std::unique_ptr<HashFunctions> make_simhash(const HashSpec& spec) { return std::make_unique<SimHash>(spec); }
}  // namespace dslide
