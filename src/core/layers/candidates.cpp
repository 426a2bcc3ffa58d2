#include "layers/candidates.hpp"
#include <algorithm>
#include <array>
#include <bit>
#include <iterator>
#include "runtime/thread_pool.hpp"

namespace dslide {
namespace {
constexpr unsigned BIN_BITS = 12;  // sign, exponent and 3 bits of the mantissa of a logit

// Calls row(i, neurons), which appends to `neurons`, for each row; concatenates what the threads have made.
template <class Row> CandidateLists by_row(size_t rows, const Row& row) {
  const int parts = threads();
  CandidateLists all;
  all.offsets.assign(rows + 1, 0);
  std::vector<std::vector<int32_t>> found(parts);
  parallel_for(rows, 1, parts, [&](size_t begin, size_t end, int thread) {
    for (size_t i = begin; i < end; ++i) {
      row(i, found[thread]);
      all.offsets[i + 1] = static_cast<int64_t>(found[thread].size());
    }
  });
  size_t before = 0, rows_before = 0;
  for (int t = 0; t < parts; ++t) {
    const size_t end = part(rows, parts, t).end;
    for (; rows_before < end; ++rows_before) all.offsets[rows_before + 1] += static_cast<int64_t>(before);
    before += found[t].size();
    all.neurons.insert(all.neurons.end(), found[t].begin(), found[t].end());
  }
  return all;
}
}  // namespace

uint64_t rank_key(float logit, size_t neuron) {
  const auto bits = std::bit_cast<uint32_t>(logit + 0.0f);  // -0 is 0
  const uint32_t ordered = logit != logit ? 0 : bits >> 31 ? ~bits : bits | 0x80000000u;
  return uint64_t{ordered} << 32 | (0xffffffffu - static_cast<uint32_t>(neuron));
}

// Counts keys by their highest bits, and orders only those of the bin in which the bound lies.
uint64_t least_of_best(std::span<const uint64_t> keys, size_t want, std::vector<uint64_t>& some) {
  if (keys.size() <= want) return 0;
  if (want == 0) return ~uint64_t{0};
  std::array<uint32_t, 1 << BIN_BITS> counts{};
  for (const uint64_t key : keys) ++counts[key >> (64 - BIN_BITS)];
  size_t bin = counts.size() - 1, above = 0;
  for (; above + counts[bin] < want; --bin) above += counts[bin];
  some.clear();
  for (const uint64_t key : keys) {
    if (key >> (64 - BIN_BITS) == bin) some.push_back(key);
  }
  const auto least = some.begin() + static_cast<std::ptrdiff_t>(want - above - 1);
  std::nth_element(some.begin(), least, some.end(), std::greater<>());
  return *least;
}

CandidateLists prior_candidates(const PriorLogits& prior, const float* bias, size_t want, Stripe stripe,
                                std::vector<uint64_t>& keys) {
  const size_t rows = prior.begin.size() - 1;
  std::vector<std::vector<uint64_t>> chosen(rows);  // keys
  CandidateLists best = by_row(rows, [&](size_t i, std::vector<int32_t>& neurons) {
    const int64_t begin = prior.begin[i], end = prior.begin[i + 1];
    const auto count = static_cast<size_t>(end - begin);
    std::vector<uint64_t> all(count);
    for (size_t j = 0; j < count; ++j) {
      const size_t neuron = prior.position[begin + j];
      all[j] = rank_key(prior.value[begin + j] + bias[neuron], stripe.to_global(neuron));
    }
    std::vector<uint64_t> some;
    const uint64_t least = least_of_best(all, want, some);
    for (size_t j = 0; j < count; ++j) {
      if (all[j] < least) continue;
      neurons.push_back(prior.position[begin + j]);
      chosen[i].push_back(all[j]);
    }
  });
  keys.reserve(best.neurons.size());
  for (const auto& row : chosen) keys.insert(keys.end(), row.begin(), row.end());
  return best;
}

CandidateLists join_candidates(const Csr& lists, std::span<const int32_t> list_of, const Csr& more,
                               const Csr& excluded) {
  return by_row(list_of.size(), [&](size_t i, std::vector<int32_t>& neurons) {
    const int32_t *first = lists.begin(list_of[i]), *last = lists.end(list_of[i]);
    std::vector<int32_t> joined;
    if (more) {
      std::set_union(first, last, more.begin(i), more.end(i), std::back_inserter(joined));
      first = joined.data(), last = first + joined.size();
    }
    if (!excluded) {
      neurons.insert(neurons.end(), first, last);
    } else {
      std::set_difference(first, last, excluded.begin(i), excluded.end(i), std::back_inserter(neurons));
    }
  });
}
}  // namespace dslide
