// Winner-take-all hashing, and its densified variant for vectors with many exact zeros.
//
// A bin is a few random coordinates, its code the position of the largest one. Bins are cut from random permutations of
// the coordinates, as many as needed, so that bins of one permutation share no coordinate. The variants differ only in
// the value of a zero: 0 (wta) or -infinity (dwta). A bin without finite values is empty and borrows its code.
#include <limits>
#include <numeric>
#include "hashing/hash_family.hpp"

namespace dslide {
namespace {
constexpr size_t POSITIONS = 8;  // coordinates per bin
constexpr size_t CODE_BITS = 3;
constexpr size_t ROWS = 16;  // rows processed at a time
constexpr float LOWEST = -std::numeric_limits<float>::infinity();

// For each of ROWS rows the position of the largest value in a bin, the first of equals; EMPTY if all are LOWEST.
// columns is (dimension, ROWS), coordinates (positions).
inline void winners(const float* columns, const uint32_t* coordinates, size_t positions, uint32_t* codes) {
  float best[ROWS];
  uint32_t code[ROWS];
  for (size_t r = 0; r < ROWS; ++r) best[r] = LOWEST, code[r] = EMPTY;
  for (uint32_t j = 0; j < positions; ++j) {
    const float* value = columns + size_t{coordinates[j]} * ROWS;
    for (size_t r = 0; r < ROWS; ++r) {
      const bool wins = value[r] > best[r];
      best[r] = wins ? value[r] : best[r];
      code[r] = wins ? j : code[r];
    }
  }
  for (size_t r = 0; r < ROWS; ++r) codes[r] = code[r];
}

// The same for one row; values is (positions).
inline uint32_t winner(const float* values, size_t positions) {
  float best = LOWEST;
  uint32_t code = EMPTY;
  for (uint32_t j = 0; j < positions; ++j) {
    if (values[j] > best) best = values[j], code = j;
  }
  return code;
}

class Wta final : public HashFunctions {
 public:
  explicit Wta(const HashSpec& spec)
      : HashFunctions(spec),
        zero_(spec.family == Family::dwta ? LOWEST : 0.0f),
        bins_(spec.k * spec.tables),
        positions_(std::min(POSITIONS, spec.dimension)) {
    draw_coordinates();
    index_slots();
  }

 private:
  void dense_part(const DenseRows& x, size_t begin, size_t end, uint32_t* codes) const override {
    std::vector<float> columns(spec_.dimension * ROWS);         // (dimension, rows)
    std::vector<uint32_t> won(bins_ * ROWS), row_codes(bins_);  // (bins, rows), (bins)
    Densifier densify(probe_seed(), bins_);
    for (size_t first = begin; first < end; first += ROWS) {
      const size_t count = std::min(ROWS, end - first);
      for (size_t r = 0; r < count; ++r) {
        const float* row = x[first + r];
        for (size_t d = 0; d < spec_.dimension; ++d) columns[d * ROWS + r] = value_of(row[d]);
      }
      for (size_t bin = 0; bin < bins_; ++bin) {
        winners(columns.data(), &coordinates_[bin * positions_], positions_, &won[bin * ROWS]);
      }
      for (size_t r = 0; r < count; ++r) {
        for (size_t bin = 0; bin < bins_; ++bin) row_codes[bin] = won[bin * ROWS + r];
        densify(row_codes);
        combine_tables(spec_, CODE_BITS, row_codes.data(), codes + (first + r) * spec_.tables);
      }
    }
  }

  // The cost is proportional to the bins of the row's coordinates, plus one pass over all bins.
  void sparse_part(const Csr& x, size_t begin, size_t end, uint32_t* codes) const override {
    std::vector<float> values(bins_ * positions_);
    std::vector<uint32_t> row_codes(bins_);
    Densifier densify(probe_seed(), bins_);
    for (size_t row = begin; row < end; ++row) {
      std::fill(values.begin(), values.end(), zero_);
      for (int64_t i = x.offsets[row]; i < x.offsets[row + 1]; ++i) {
        const size_t d = x.ids[i];
        for (uint32_t s = slot_offsets_[d]; s < slot_offsets_[d + 1]; ++s) values[slots_[s]] = value_of(x.values[i]);
      }
      for (size_t bin = 0; bin < bins_; ++bin) row_codes[bin] = winner(&values[bin * positions_], positions_);
      densify(row_codes);
      combine_tables(spec_, CODE_BITS, row_codes.data(), codes + row * spec_.tables);
    }
  }

  float value_of(float value) const { return value == 0.0f ? zero_ : value; }

  uint64_t probe_seed() const { return mix(spec_.seed, 1); }

  void draw_coordinates() {
    const size_t per_permutation = spec_.dimension / positions_;  // bins; remaining coordinates are not used
    coordinates_.reserve(bins_ * positions_);
    std::vector<uint32_t> order(spec_.dimension);
    for (uint64_t permutation = 0; coordinates_.size() < bins_ * positions_; ++permutation) {
      std::iota(order.begin(), order.end(), 0u);
      const size_t wanted = std::min(per_permutation * positions_, bins_ * positions_ - coordinates_.size());
      for (size_t i = 0; i < wanted; ++i) {
        const uint32_t left = static_cast<uint32_t>(spec_.dimension - i);
        std::swap(order[i], order[i + below(mix(mix(spec_.seed, 0), permutation, i), left)]);
        coordinates_.push_back(order[i]);
      }
    }
  }

  void index_slots() {
    slot_offsets_.assign(spec_.dimension + 1, 0);
    for (const uint32_t d : coordinates_) ++slot_offsets_[d];
    std::partial_sum(slot_offsets_.begin(), slot_offsets_.end(), slot_offsets_.begin());
    slots_.resize(coordinates_.size());
    for (size_t slot = slots_.size(); slot-- > 0;) {
      slots_[--slot_offsets_[coordinates_[slot]]] = static_cast<uint32_t>(slot);
    }
  }

  float zero_;
  size_t bins_, positions_;
  std::vector<uint32_t> coordinates_;   // (bins, positions)
  std::vector<uint32_t> slot_offsets_;  // (dimension + 1): where a coordinate's slots begin in slots_
  std::vector<uint32_t> slots_;         // bin * positions + position
};
}  // namespace

std::unique_ptr<HashFunctions> make_wta(const HashSpec& spec) { return std::make_unique<Wta>(spec); }
}  // namespace dslide
