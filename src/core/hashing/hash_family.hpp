// Shared by the hash families: combining codes into bucket numbers, and densification of empty bins.
#pragma once
#include <algorithm>
#include <memory>
#include <vector>
#include "hashing/hash_functions.hpp"
#include "runtime/rng.hpp"

namespace dslide {
std::unique_ptr<HashFunctions> make_simhash(const HashSpec& spec);
std::unique_ptr<HashFunctions> make_wta(const HashSpec& spec);  // wta and dwta
std::unique_ptr<HashFunctions> make_minhash(const HashSpec& spec);

// The bucket number of k codes of `bits` bits each, code(0) ... code(k - 1): the codes concatenated, first one lowest,
// if they fit in table_bits; else a hash of the 64-bit words they fill.
template <class Code> uint32_t combine_codes(size_t k, size_t bits, size_t table_bits, const Code& code) {
  uint64_t hash = 0, word = 0;
  size_t used = 0;
  for (size_t j = 0; j < k; ++j) {
    if (used + bits > 64) {
      hash = mix(hash, word);
      word = used = 0;
    }
    word |= static_cast<uint64_t>(code(j)) << used;
    used += bits;
  }
  return static_cast<uint32_t>(k * bits <= table_bits ? word : mix(hash, word) >> (64 - table_bits));
}

// The bucket numbers of a vector from its (tables, k) codes.
inline void combine_tables(const HashSpec& spec, size_t bits, const uint32_t* codes, uint32_t* buckets) {
  for (size_t t = 0; t < spec.tables; ++t, codes += spec.k) {
    buckets[t] = combine_codes(spec.k, bits, spec.table_bits, [&](size_t j) { return codes[j]; });
  }
}

constexpr uint32_t EMPTY = 0xFFFFFFFFu;  // code of a bin without elements

// Densification: gives every empty bin the code of the first filled bin in its probing sequence, which is the same for
// all vectors; 0 if none is found in MAX_ATTEMPTS. Codes are borrowed only from bins that were filled originally.
class Densifier {
 public:
  static constexpr uint64_t MAX_ATTEMPTS = 128;

  Densifier(uint64_t seed, size_t bins) : seed_(seed), bins_(static_cast<uint32_t>(bins)), filled_(bins) {}

  void operator()(std::vector<uint32_t>& codes) {
    const size_t empty = std::count(codes.begin(), codes.end(), EMPTY);
    if (empty == 0) return;
    if (empty == bins_) return std::fill(codes.begin(), codes.end(), 0u);
    filled_ = codes;
    for (uint32_t bin = 0; bin < bins_; ++bin) {
      if (codes[bin] == EMPTY) codes[bin] = borrowed(bin);
    }
  }

 private:
  uint32_t borrowed(uint32_t bin) const {
    for (uint64_t attempt = 0; attempt < MAX_ATTEMPTS; ++attempt) {
      const uint32_t code = filled_[below(mix(seed_, bin, attempt), bins_)];
      if (code != EMPTY) return code;
    }
    return 0;
  }

  uint64_t seed_;
  uint32_t bins_;
  std::vector<uint32_t> filled_;
};
}  // namespace dslide
