#include "layers/active_set.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "runtime/radix_sort.hpp"
#include "runtime/rng.hpp"
#include "runtime/thread_pool.hpp"

namespace dslide {
namespace {

// Numbers are not negative.
void sort_unique(std::vector<int32_t>& v) {
  if (v.size() < 256) {  // what is short is compared faster than counted
    std::sort(v.begin(), v.end());
  } else {
    std::vector<int32_t> other;
    const auto largest = static_cast<uint32_t>(*std::max_element(v.begin(), v.end()));
    radix_sort(v, other, largest, [](int32_t x) { return static_cast<uint32_t>(x); });
  }
  v.erase(std::unique(v.begin(), v.end()), v.end());
}

// Own neurons that are drawn, ascending, without repetition.
std::vector<int32_t> drawn(const Draw& draw, uint64_t seed) {
  std::vector<int32_t> ids;
  ids.reserve(draw.count / draw.own.step + 1);
  for (size_t i = 0; i < draw.count; ++i) {
    const uint32_t neuron = below(mix(seed, i), static_cast<uint32_t>(draw.of));
    if (draw.own.has(neuron)) ids.push_back(static_cast<int32_t>(neuron / draw.own.step));
  }
  sort_unique(ids);
  return ids;
}

// The logarithm of a drawn neuron's weight. The chance is that of at least one of the draws to meet it: it depends on
// nothing that other processes know, as the number of neurons really met would.
float drawn_log_weight(const Draw& draw) {
  if (!draw.correct || draw.count == 0) return 0.0f;
  const double missed = static_cast<double>(draw.count) * std::log1p(-1 / static_cast<double>(draw.of));
  return static_cast<float>(-std::log(-std::expm1(missed)));
}

// Merges two ascending lists; random neurons that are not certain get log_weight `weight`.
void merge(const std::vector<int32_t>& certain, const std::vector<int32_t>& random, float weight,
           std::vector<int32_t>& ids, std::vector<float>& log_weight) {
  ids.resize(certain.size() + random.size());
  ids.resize(static_cast<size_t>(
      std::set_union(certain.begin(), certain.end(), random.begin(), random.end(), ids.begin()) - ids.begin()));
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

ActiveSet ActiveSet::shared(size_t rows, const Lists& certain, const Lists& hits, const Draw& draw) {
  ActiveSet a;
  a.rows = rows;
  std::vector<int32_t> sure(certain.ids, certain.ids + certain.offsets[rows]);
  if (hits.offsets) sure.insert(sure.end(), hits.ids, hits.ids + hits.offsets[rows]);
  sort_unique(sure);
  merge(sure, drawn(draw, draw.seed), drawn_log_weight(draw), a.ids, a.log_weight);
  return a;
}

ActiveSet ActiveSet::per_row(size_t neurons, size_t rows, const Lists& certain, const Lists& hits, const Draw& draw) {
  ActiveSet a;
  a.rows = rows;
  a.is_per_row = true;
  std::vector<std::vector<int32_t>> ids(rows);
  std::vector<std::vector<float>> weights(rows);
  const float weight = drawn_log_weight(draw);
  run_parts(rows, [&](size_t begin, size_t end, int) {
    std::vector<int32_t> sure;
    for (size_t i = begin; i < end; ++i) {
      sure.assign(certain.begin(i), certain.end(i));
      if (hits.offsets) sure.insert(sure.end(), hits.begin(i), hits.end(i));
      sort_unique(sure);
      merge(sure, drawn(draw, mix(draw.seed, i)), weight, ids[i], weights[i]);
    }
  });

  a.row_begin.assign(rows + 1, 0);
  for (size_t i = 0; i < rows; ++i) a.row_begin[i + 1] = a.row_begin[i] + static_cast<int64_t>(ids[i].size());
  const auto slots = static_cast<size_t>(a.row_begin[rows]);
  a.ids.reserve(slots);
  a.log_weight.reserve(slots);
  for (size_t i = 0; i < rows; ++i) {
    a.ids.insert(a.ids.end(), ids[i].begin(), ids[i].end());
    a.log_weight.insert(a.log_weight.end(), weights[i].begin(), weights[i].end());
  }
  const std::vector<int32_t> neuron_of_slot = a.ids;
  sort_unique(a.ids);

  // Transpose by counting: slots are visited row by row, so a neuron's rows come out ascending.
  std::vector<int32_t> position_of(neurons, -1);
  for (size_t p = 0; p < a.ids.size(); ++p) position_of[static_cast<size_t>(a.ids[p])] = static_cast<int32_t>(p);
  a.position.resize(slots);
  a.neuron_begin.assign(a.ids.size() + 1, 0);
  for (size_t s = 0; s < slots; ++s) {
    a.position[s] = position_of[static_cast<size_t>(neuron_of_slot[s])];
    ++a.neuron_begin[static_cast<size_t>(a.position[s]) + 1];
  }
  std::partial_sum(a.neuron_begin.begin(), a.neuron_begin.end(), a.neuron_begin.begin());
  a.neuron_row.resize(slots);
  a.neuron_slot.resize(slots);
  std::vector<int64_t> next(a.neuron_begin.begin(), a.neuron_begin.end() - 1);
  for (size_t i = 0; i < rows; ++i) {
    for (int64_t s = a.row_begin[i]; s < a.row_begin[i + 1]; ++s) {
      const auto at = static_cast<size_t>(next[static_cast<size_t>(a.position[static_cast<size_t>(s)])]++);
      a.neuron_row[at] = static_cast<int32_t>(i);
      a.neuron_slot[at] = s;
    }
  }
  return a;
}

std::vector<int64_t> ActiveSet::find(const Lists& lists) const {
  std::vector<int64_t> found(static_cast<size_t>(lists.offsets[rows]));
  run_parts(rows, [&](size_t begin, size_t end, int) {
    for (size_t i = begin; i < end; ++i) {
      for (int64_t e = lists.offsets[i]; e < lists.offsets[i + 1]; ++e) {
        const int32_t id = lists.ids[e];
        int64_t at = -1;
        if (is_everything) {
          at = id;
        } else if (!is_per_row) {
          const auto it = std::lower_bound(ids.begin(), ids.end(), id);
          if (it != ids.end() && *it == id) at = it - ids.begin();
        } else {
          const auto first = position.begin() + row_begin[i], last = position.begin() + row_begin[i + 1];
          const auto it = std::lower_bound(
              first, last, id, [&](int32_t p, int32_t value) { return ids[static_cast<size_t>(p)] < value; });
          if (it != last && ids[static_cast<size_t>(*it)] == id) at = it - position.begin();
        }
        found[static_cast<size_t>(e)] = at;
      }
    }
  });
  return found;
}

}  // namespace dslide
