// One-permutation MinHash, densified: one hash distributes the members of a set over all bins, the code of a bin is the
// smallest hash value in it, an empty bin borrows its code. Two sets agree in a code with the probability of their
// Jaccard similarity. The set of a vector is the coordinates of its largest positive values.
#include <bit>
#include <functional>
#include "hashing/hash_family.hpp"

namespace dslide {
namespace {
constexpr size_t CODE_BITS = 31;

class MinHash final : public HashFunctions {
 public:
  explicit MinHash(const HashSpec& spec)
      : HashFunctions(spec), bins_(spec.k * spec.tables), top_((spec.dimension + 7) / 8) {}

 private:
  void dense_part(const DenseRows& x, size_t begin, size_t end, uint32_t* codes) const override {
    each_row(begin, end, codes, [&](size_t row, const auto& add) {
      const float* values = x[row];
      for (size_t d = 0; d < spec_.dimension; ++d) add(values[d], d);
    });
  }

  void sparse_part(const Csr& x, size_t begin, size_t end, uint32_t* codes) const override {
    each_row(begin, end, codes, [&](size_t row, const auto& add) {
      for (int64_t i = x.offsets[row]; i < x.offsets[row + 1]; ++i) add(x.values[i], x.ids[i]);
    });
  }

  // fill(row, add) calls add(value, coordinate) for the coordinates of a row.
  template <class Fill> void each_row(size_t begin, size_t end, uint32_t* codes, const Fill& fill) const {
    // The coordinates of positive values, each packed into one integer that is larger for larger values and, among
    // equals, for lower coordinates (positive floats order like their bits).
    std::vector<uint64_t> set;
    std::vector<uint32_t> row_codes(bins_);
    Densifier densify(mix(spec_.seed, 1), bins_);
    for (size_t row = begin; row < end; ++row) {
      set.clear();
      fill(row, [&](float value, uint32_t coordinate) {
        if (value > 0.0f) set.push_back(uint64_t{std::bit_cast<uint32_t>(value)} << 32 | (0xFFFFFFFFu - coordinate));
      });
      if (set.size() > top_) {
        std::nth_element(set.begin(), set.begin() + top_, set.end(), std::greater<>());
        set.resize(top_);
      }
      std::fill(row_codes.begin(), row_codes.end(), EMPTY);
      for (const uint64_t member : set) {
        const uint64_t hash = mix(spec_.seed, 0, 0xFFFFFFFFu - static_cast<uint32_t>(member));
        uint32_t& code = row_codes[below(hash, static_cast<uint32_t>(bins_))];  // high half: bin; low half: value
        code = std::min(code, static_cast<uint32_t>(hash) >> (32 - CODE_BITS));
      }
      densify(row_codes);
      combine_tables(spec_, CODE_BITS, row_codes.data(), codes + row * spec_.tables);
    }
  }

  size_t bins_;
  size_t top_;  // largest size of a set
};
}  // namespace

std::unique_ptr<HashFunctions> make_minhash(const HashSpec& spec) { return std::make_unique<MinHash>(spec); }
}  // namespace dslide
