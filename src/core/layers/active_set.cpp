#include "layers/active_set.hpp"
#include <algorithm>
#include <numeric>
#include "runtime/rng.hpp"

namespace dslide {
namespace {
// Merges two ascending lists. Neurons that are certain have log-weight 0, others that of random negatives.
void merge(const std::vector<int32_t>& certain, const ChosenNegatives& random, std::vector<int32_t>& ids,
           std::vector<float>& log_weight) {
  ids.clear();
  log_weight.clear();
  ids.reserve(certain.size() + random.ids.size());
  log_weight.reserve(certain.size() + random.ids.size());
  size_t r = 0;
  const auto take_random_below = [&](int64_t bound) {
    for (; r < random.ids.size() && random.ids[r] < bound; ++r) {
      ids.push_back(random.ids[r]);
      log_weight.push_back(random.log_weight[r]);
    }
  };
  for (const int32_t neuron : certain) {
    take_random_below(neuron);
    if (r < random.ids.size() && random.ids[r] == neuron) ++r;
    ids.push_back(neuron);
    log_weight.push_back(0.0f);
  }
  take_random_below(INT64_MAX);
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

ActiveSet ActiveSet::shared(size_t neurons, const Csr& certain, const Csr& hits, const RandomNegatives& negatives) {
  ActiveSet a;
  a.rows = certain.rows;
  std::vector<int32_t> sure(certain.ids, certain.ids + certain.nnz());
  if (hits) sure.insert(sure.end(), hits.ids, hits.ids + hits.nnz());
  sort_unique(sure);
  merge(sure, choose(negatives, negatives.seed, neurons), a.ids, a.log_weight);
  return a;
}

ActiveSet ActiveSet::per_row(size_t neurons, const Csr& certain, const Csr& hits, const RandomNegatives& negatives) {
  ActiveSet a;
  const size_t rows = a.rows = certain.rows;
  a.is_per_row = true;
  std::vector<std::vector<int32_t>> ids(rows);
  std::vector<std::vector<float>> weights(rows);
  parallel_for(rows, [&](size_t begin, size_t end, int) {
    std::vector<int32_t> sure;
    for (size_t i = begin; i < end; ++i) {
      sure.assign(certain.begin(i), certain.end(i));
      if (hits) sure.insert(sure.end(), hits.begin(i), hits.end(i));
      sort_unique(sure);
      merge(sure, choose(negatives, mix(negatives.seed, i), neurons), ids[i], weights[i]);
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
