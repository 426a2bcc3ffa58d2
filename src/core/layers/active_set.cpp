#include "layers/active_set.hpp"
#include <algorithm>
#include <cmath>
#include <numeric>
#include "runtime/radix_sort.hpp"
#include "runtime/rng.hpp"

namespace dslide {
namespace {
// Values are not negative.
void sort_unique(std::vector<int32_t>& v) {
  if (v.size() < 256) {  // a comparison sort is faster for short lists
    std::sort(v.begin(), v.end());
  } else {
    std::vector<int32_t> scratch;
    const auto largest = static_cast<uint32_t>(*std::max_element(v.begin(), v.end()));
    radix_sort(v, scratch, largest, [](int32_t x) { return static_cast<uint32_t>(x); });
  }
  v.erase(std::unique(v.begin(), v.end()), v.end());
}

// Own neurons among the random negatives, ascending, without repetition.
std::vector<int32_t> draw(const RandomNegatives& negatives, uint64_t seed) {
  std::vector<int32_t> ids;
  ids.reserve(negatives.count / negatives.own.step + 1);
  for (size_t i = 0; i < negatives.count; ++i) {
    const uint32_t neuron = below(mix(seed, i), static_cast<uint32_t>(negatives.neurons));
    if (negatives.own.contains(neuron)) ids.push_back(static_cast<int32_t>(negatives.own.to_local(neuron)));
  }
  sort_unique(ids);
  return ids;
}

// The log-weight of a random negative. The inclusion probability is that of at least one draw hitting the neuron:
// unlike the number of distinct neurons drawn, it needs no information from other ranks.
float negative_log_weight(const RandomNegatives& negatives) {
  if (!negatives.correct || negatives.count == 0) return 0.0f;
  const double missed = static_cast<double>(negatives.count) * std::log1p(-1 / static_cast<double>(negatives.neurons));
  return static_cast<float>(-std::log(-std::expm1(missed)));
}

// Merges two ascending lists; random neurons that are not certain get log-weight `weight`.
void merge(const std::vector<int32_t>& certain, const std::vector<int32_t>& random, float weight,
           std::vector<int32_t>& ids, std::vector<float>& log_weight) {
  ids.resize(certain.size() + random.size());
  ids.resize(std::set_union(certain.begin(), certain.end(), random.begin(), random.end(), ids.begin()) - ids.begin());
  log_weight.assign(ids.size(), 0.0f);
  if (weight == 0.0f || ids.size() == certain.size()) return;
  auto next = certain.begin();
  for (size_t i = 0; i < ids.size(); ++i) {
    while (next != certain.end() && *next < ids[i]) ++next;
    if (next == certain.end() || *next != ids[i]) log_weight[i] = weight;
  }
}
}  // namespace

ActiveSet ActiveSet::everything(size_t neurons, size_t rows) {
  ActiveSet a;
  a.rows = rows;
  a.is_everything = true;
  a.ids.resize(neurons);
  std::iota(a.ids.begin(), a.ids.end(), 0);
  a.log_weight.assign(neurons, 0.0f);
  return a;
}

ActiveSet ActiveSet::shared(const Csr& certain, const Csr& hits, const RandomNegatives& negatives) {
  ActiveSet a;
  a.rows = certain.rows;
  std::vector<int32_t> sure(certain.ids, certain.ids + certain.nnz());
  if (hits) sure.insert(sure.end(), hits.ids, hits.ids + hits.nnz());
  sort_unique(sure);
  merge(sure, draw(negatives, negatives.seed), negative_log_weight(negatives), a.ids, a.log_weight);
  return a;
}

ActiveSet ActiveSet::per_row(size_t neurons, const Csr& certain, const Csr& hits, const RandomNegatives& negatives) {
  ActiveSet a;
  const size_t rows = a.rows = certain.rows;
  a.is_per_row = true;
  std::vector<std::vector<int32_t>> ids(rows);
  std::vector<std::vector<float>> weights(rows);
  const float weight = negative_log_weight(negatives);
  parallel_for(rows, [&](size_t begin, size_t end, int) {
    std::vector<int32_t> sure;
    for (size_t i = begin; i < end; ++i) {
      sure.assign(certain.begin(i), certain.end(i));
      if (hits) sure.insert(sure.end(), hits.begin(i), hits.end(i));
      sort_unique(sure);
      merge(sure, draw(negatives, mix(negatives.seed, i)), weight, ids[i], weights[i]);
    }
  });

  a.row_begin.assign(rows + 1, 0);
  for (size_t i = 0; i < rows; ++i) a.row_begin[i + 1] = a.row_begin[i] + static_cast<int64_t>(ids[i].size());
  const size_t slots = a.row_begin[rows];
  a.ids.reserve(slots);
  a.log_weight.reserve(slots);
  for (size_t i = 0; i < rows; ++i) {
    a.ids.insert(a.ids.end(), ids[i].begin(), ids[i].end());
    a.log_weight.insert(a.log_weight.end(), weights[i].begin(), weights[i].end());
  }
  const std::vector<int32_t> neuron_of_slot = a.ids;
  sort_unique(a.ids);

  // Transpose by counting sort: slots are visited row by row, so a neuron's rows are ascending.
  std::vector<int32_t> position_of(neurons, -1);
  for (size_t p = 0; p < a.ids.size(); ++p) position_of[a.ids[p]] = static_cast<int32_t>(p);
  a.position.resize(slots);
  a.neuron_begin.assign(a.ids.size() + 1, 0);
  for (size_t s = 0; s < slots; ++s) {
    a.position[s] = position_of[neuron_of_slot[s]];
    ++a.neuron_begin[a.position[s] + 1];
  }
  std::partial_sum(a.neuron_begin.begin(), a.neuron_begin.end(), a.neuron_begin.begin());
  a.neuron_row.resize(slots);
  a.neuron_slot.resize(slots);
  std::vector<int64_t> next(a.neuron_begin.begin(), a.neuron_begin.end() - 1);
  for (size_t i = 0; i < rows; ++i) {
    for (int64_t s = a.row_begin[i]; s < a.row_begin[i + 1]; ++s) {
      const size_t at = next[a.position[s]]++;
      a.neuron_row[at] = static_cast<int32_t>(i);
      a.neuron_slot[at] = s;
    }
  }
  return a;
}

std::vector<int64_t> ActiveSet::find(const Csr& lists) const {
  std::vector<int64_t> found(lists.nnz());
  parallel_each(rows, [&](size_t i) {
    for (int64_t e = lists.offsets[i]; e < lists.offsets[i + 1]; ++e) {
      const int32_t id = lists.ids[e];
      found[e] = -1;
      if (is_everything) {
        found[e] = id;
      } else if (!is_per_row) {
        const auto it = std::lower_bound(ids.begin(), ids.end(), id);
        if (it != ids.end() && *it == id) found[e] = it - ids.begin();
      } else {
        const auto first = position.begin() + row_begin[i], last = position.begin() + row_begin[i + 1];
        const auto it = std::lower_bound(first, last, id, [&](int32_t p, int32_t value) { return ids[p] < value; });
        if (it != last && ids[*it] == id) found[e] = it - position.begin();
      }
    }
  });
  return found;
}
}  // namespace dslide
