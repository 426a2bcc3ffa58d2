#include "wire/collectives.hpp"
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include "runtime/checks.hpp"

namespace dslide {
namespace {
template <class T> void copy(Bytes message, size_t at, size_t count, T* to) {
  std::memcpy(to, message.data() + at * sizeof(T), count * sizeof(T));
}
}  // namespace

void ranking_table(const Csr& hits, const uint32_t* ranking, size_t want, uint32_t* table) {
  std::fill_n(table, hits.rows * want, 0u);
  for (size_t r = 0; r < hits.rows; ++r) {
    const int64_t first = hits.offsets[r], end = hits.offsets[r + 1];
    require(static_cast<size_t>(end - first) <= want, "row ", r, " has ", end - first, " hits, more than ", want);
    std::copy(ranking + first, ranking + end, table + r * want);
  }
}

std::vector<size_t> best_hits(const Csr& hits, const uint32_t* ranking, std::span<const Bytes> tables, size_t want) {
  std::vector<size_t> kept;
  std::vector<uint32_t> all(tables.size() * want);
  for (size_t r = 0; r < hits.rows; ++r) {
    if (hits.offsets[r] == hits.offsets[r + 1]) continue;
    for (size_t t = 0; t < tables.size(); ++t) copy(tables[t], r * want, want, &all[t * want]);
    std::nth_element(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(want) - 1, all.end(), std::greater<>());
    const uint32_t least = all[want - 1];
    for (auto e = static_cast<size_t>(hits.offsets[r]); e < static_cast<size_t>(hits.offsets[r + 1]); ++e) {
      if (ranking[e] >= least) kept.push_back(e);
    }
  }
  return kept;
}

void log_normaliser(std::span<const Bytes> messages, size_t rows, float* result) {
  std::vector<float> reference(messages.size()), sum(messages.size());
  for (size_t r = 0; r < rows; ++r) {
    float largest = -std::numeric_limits<float>::infinity(), total = 0;
    for (size_t m = 0; m < messages.size(); ++m) {
      copy(messages[m], r, 1, &reference[m]);
      copy(messages[m], rows + r, 1, &sum[m]);
      largest = std::max(largest, reference[m]);
    }
    for (size_t m = 0; m < messages.size(); ++m) {
      if (sum[m] > 0) total += sum[m] * std::exp(reference[m] - largest);
    }
    result[r] = largest + std::log(total);
  }
}
}  // namespace dslide
