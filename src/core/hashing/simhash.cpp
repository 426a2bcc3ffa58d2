// SimHash: a code is the sign of the sum of all coordinates, each taken with a random sign.
//
// Signs are bits of mix(seed, coordinate, word), so nothing is stored. For dense rows, coordinates are taken in groups
// of four: the 16 sums a group can have with all choices of signs are worked out once, then a projection costs one
// look-up and addition per group, for 8 rows side by side: several times faster than multiplying by a matrix of +-1.
//
// The order of additions is fixed, dense or sparse, whatever the blocking: within a group in the order of coordinates,
// then group after group. So the codes are the same to the bit; zeros change nothing.
#include <array>
#include <bit>
#include <cstring>

#include "hashing/hash_family.hpp"
#include "kernels/kernels.hpp"
#include "runtime/aligned.hpp"

namespace dslide {
namespace {

constexpr size_t kGroup = 4;              // coordinates in a group
constexpr size_t kChoices = 1 << kGroup;  // of signs in a group
constexpr size_t kPanel = 8;              // projections summed side by side
constexpr size_t kTile = 8;               // rows summed side by side
constexpr size_t kBlock = 32;             // groups worked on at a time; their sums (16 KB) stay in the nearest cache
constexpr size_t kChunk = 256;            // rows that use the choices worked out for a block

struct alignas(32) Tile {  // one number for each of kTile rows
  float of_row[kTile];
};

// Bit j of a byte becomes the lowest bit of byte j.
inline uint64_t bits_to_bytes(uint64_t byte) {
  const uint64_t one_each = (byte & 0xFF) * 0x0101010101010101ull & 0x8040201008040201ull;
  return (one_each + 0x7F7F7F7F7F7F7F7Full) >> 7 & 0x0101010101010101ull;
}

// sums (64) += x with the 64 signs in `bits`. Powers of two come from memory since SSE can't shift lanes differently.
inline void add_signed(float x, uint64_t bits, float* sums) {
  static constexpr auto kPowers = [] {
    std::array<uint32_t, 32> powers{};
    for (uint32_t j = 0; j < 32; ++j) powers[j] = 1u << j;
    return powers;
  }();
  const float minus = -x;
  for (size_t half = 0; half < 2; ++half, sums += 32, bits >>= 32) {
    const uint32_t word = static_cast<uint32_t>(bits);
    for (size_t j = 0; j < 32; ++j) sums[j] += (word & kPowers[j]) == 0 ? minus : x;
  }
}

class SimHash final : public HashFunctions {
 public:
  explicit SimHash(const HashSpec& spec) : HashFunctions(spec), words_((spec.k * spec.tables + 63) / 64) {}

 private:
  void dense_part(const DenseRows& x, size_t begin, size_t end, uint32_t* codes) const override {
    const Kernels& kernel = kernels();
    const size_t width = words_ * 64;              // projections, some at the end unused
    std::vector<uint8_t> choices(width * kBlock);  // (panels, kBlock, kPanel)
    Aligned<Tile> group_sums(kBlock * kChoices);   // (kBlock, kChoices)
    Aligned<Tile> sums((std::min(kChunk, end - begin) + kTile - 1) / kTile * width);  // (tiles, width)
    size_t chosen = spec_.dimension;  // the coordinate that the choices begin with
    for (size_t first = begin; first < end; first += kChunk) {
      const size_t last = std::min(first + kChunk, end);
      std::fill(sums.begin(), sums.end(), Tile{});
      for (size_t d = 0; d < spec_.dimension; d += kBlock * kGroup) {
        const size_t depth = std::min(kBlock * kGroup, spec_.dimension - d), groups = (depth + kGroup - 1) / kGroup;
        if (chosen != d) choose(d, groups, choices.data());
        chosen = d;
        Tile* tile_sums = sums.data();
        for (size_t row = first; row < last; row += kTile, tile_sums += width) {
          sum_groups(x, row, last, d, depth, group_sums.data());
          for (size_t p = 0; p < spec_.k * spec_.tables; p += kPanel) {
            if (p / kPanel < kTile) ask_for(x, row + kTile + p / kPanel, end, d, depth);
            kernel.add_choices(group_sums[0].of_row, &choices[p * kBlock], groups, tile_sums[p].of_row);
          }
        }
      }
      const Tile* tile_sums = sums.data();
      for (size_t row = first; row < last; row += kTile, tile_sums += width) {
        finish(tile_sums, std::min(kTile, last - row), codes + row * spec_.tables);
      }
    }
  }

  void sparse_part(const SparseRows& x, size_t begin, size_t end, uint32_t* codes) const override {
    std::vector<float> sums(words_ * 64);
    for (size_t row = begin; row < end; ++row) {
      std::fill(sums.begin(), sums.end(), 0.0f);
      for (int64_t i = x.indptr[row], next; i < x.indptr[row + 1]; i = next) {
        const auto group = x.indices[i] / static_cast<int32_t>(kGroup);
        for (next = i + 1; next < x.indptr[row + 1] && x.indices[next] / static_cast<int32_t>(kGroup) == group;) ++next;
        for (size_t w = 0; w < words_; ++w) {
          float group_sums[64] = {};
          for (int64_t j = i; j < next; ++j) add_signed(x.values[j], signs(x.indices[j], w), group_sums);
          for (size_t p = 0; p < 64; ++p) sums[w * 64 + p] += group_sums[p];
        }
      }
      for (size_t t = 0; t < spec_.tables; ++t) {
        const float* table_sums = &sums[t * spec_.k];
        codes[row * spec_.tables + t] =
            join(spec_.k, 1, spec_.table_bits, [&](size_t j) { return table_sums[j] > 0.0f; });
      }
    }
  }

  // Bit p of the word is the sign of a coordinate in projection 64 word + p: 1 for plus.
  uint64_t signs(size_t coordinate, size_t word) const { return mix(spec_.seed, coordinate, word); }

  // Which of its sums each projection takes from each group, beginning at coordinate d: choices is (panels, kBlock,
  // kPanel), as add_choices() of the kernels wants them.
  void choose(size_t d, size_t groups, uint8_t* choices) const {
    static_assert(kPanel == 8 && std::endian::native == std::endian::little);
    for (size_t g = 0; g < groups; ++g) {
      for (size_t w = 0; w < words_; ++w) {
        uint64_t of_group[kGroup];
        for (size_t i = 0; i < kGroup; ++i) of_group[i] = signs(d + g * kGroup + i, w);
        for (size_t byte = 0; byte < 8; ++byte) {
          uint64_t panel = 0;
          for (size_t i = 0; i < kGroup; ++i) panel |= bits_to_bytes(of_group[i] >> 8 * byte) << (2 + i);
          std::memcpy(choices + ((w * 8 + byte) * kBlock + g) * kPanel, &panel, kPanel);
        }
      }
    }
  }

  // Asks for the memory of coordinates [d, d + depth) of a row that is needed soon, if there is such a row.
  static void ask_for(const DenseRows& x, size_t row, size_t end, size_t d, size_t depth) {
    if (row >= end) return;
    const float* at = x[row] + d;
    for (size_t i = 0; i < depth; i += CACHE_LINE / sizeof(float)) __builtin_prefetch(at + i);
  }

  // The sums of all groups in coordinates [d, d + depth) of kTile rows from `row` on; the last repeated past the end.
  static void sum_groups(const DenseRows& x, size_t row, size_t end, size_t d, size_t depth, Tile* group_sums) {
    const float* rows[kTile];
    for (size_t r = 0; r < kTile; ++r) rows[r] = x[std::min(row + r, end - 1)] + d;
    alignas(CACHE_LINE) float columns[kBlock * kGroup][kTile];  // the rows side by side
    const size_t whole = depth / kGroup * kGroup, padded = (depth + kGroup - 1) / kGroup * kGroup;
    kernels().pack(rows, kTile, kTile, whole, columns[0], kTile);
    for (size_t i = whole; i < padded; ++i) {  // the last group if it is not full
      for (size_t r = 0; r < kTile; ++r) columns[i][r] = i < depth ? rows[r][i] : 0.0f;
    }
    kernels().signed_sums(columns[0], padded / kGroup, group_sums->of_row);
  }

  // sums is (k * tables), codes (rows, tables).
  void finish(const Tile* sums, size_t rows, uint32_t* codes) const {
    uint64_t words[kTile];
    for (size_t t = 0; t < spec_.tables; ++t) {
      kernels().positive_bits(sums[t * spec_.k].of_row, spec_.k, words);
      for (size_t r = 0; r < rows; ++r) {
        codes[r * spec_.tables + t] = join(1, spec_.k, spec_.table_bits, [&](size_t) { return words[r]; });
      }
    }
  }

  size_t words_;  // 64-bit words of signs per coordinate
};

}  // namespace

std::unique_ptr<HashFunctions> make_simhash(const HashSpec& spec) { return std::make_unique<SimHash>(spec); }

}  // namespace dslide
