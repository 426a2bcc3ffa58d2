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
  // Coordinates of a row's positive values, each packed into one integer that is larger for larger values and, among
  // equals, for lower coordinates (positive floats order like their bits).
  class Set {
   public:
    void add(float value, uint32_t coordinate) {
      if (value > 0.0f) members_.push_back(uint64_t{std::bit_cast<uint32_t>(value)} << 32 | (0xFFFFFFFFu - coordinate));
    }
    void keep(size_t top) {
      if (members_.size() <= top) return;
      std::nth_element(members_.begin(), members_.begin() + top, members_.end(), std::greater<>());
      members_.resize(top);
    }
    template <class Fn> void each(const Fn& fn) const {
      for (const uint64_t member : members_) fn(0xFFFFFFFFu - static_cast<uint32_t>(member));
    }
    void clear() { members_.clear(); }

   private:
    std::vector<uint64_t> members_;
  };

  struct Scratch {
    Set set;
    std::vector<uint32_t> codes;  // (bins)
    Densifier densify;
  };

  Scratch scratch() const { return {{}, std::vector<uint32_t>(bins_), Densifier(mix(spec_.seed, 1), bins_)}; }

  void dense_part(const DenseRows& x, size_t begin, size_t end, uint32_t* codes) const override {
    Scratch s = scratch();
    for (size_t row = begin; row < end; ++row) {
      const float* values = x[row];
      s.set.clear();
      for (size_t d = 0; d < spec_.dimension; ++d) s.set.add(values[d], static_cast<uint32_t>(d));
      finish(s, codes + row * spec_.tables);
    }
  }

  void sparse_part(const Csr& x, size_t begin, size_t end, uint32_t* codes) const override {
    Scratch s = scratch();
    for (size_t row = begin; row < end; ++row) {
      s.set.clear();
      for (int64_t i = x.offsets[row]; i < x.offsets[row + 1]; ++i) {
        s.set.add(x.values[i], static_cast<uint32_t>(x.ids[i]));
      }
      finish(s, codes + row * spec_.tables);
    }
  }

  void finish(Scratch& s, uint32_t* codes) const {
    s.set.keep(top_);
    std::fill(s.codes.begin(), s.codes.end(), EMPTY);
    s.set.each([&](uint32_t coordinate) {
      const uint64_t hash = mix(spec_.seed, 0, coordinate);  // high half: bin; low half: value
      uint32_t& code = s.codes[below(hash, static_cast<uint32_t>(bins_))];
      code = std::min(code, static_cast<uint32_t>(hash) >> (32 - CODE_BITS));
    });
    s.densify(s.codes);
    combine_tables(spec_, CODE_BITS, s.codes.data(), codes);
  }

  size_t bins_;
  size_t top_;  // largest size of a set
};

}  // namespace

std::unique_ptr<HashFunctions> make_minhash(const HashSpec& spec) { return std::make_unique<MinHash>(spec); }

}  // namespace dslide
