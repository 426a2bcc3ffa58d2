#include "layers/label_prior.hpp"
#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include "layers/built_rows.hpp"
#include "layers/link_prefetch.hpp"
#include "runtime/thread_pool.hpp"

namespace dslide {
namespace {
constexpr int64_t PREFETCH_DISTANCE = 8;               // in features
constexpr size_t PREFETCH_LINES = 4;                   // of a feature's links
constexpr int64_t PREFETCH_LINKS = 1024;               // the same where each feature is visited once
constexpr size_t PREFETCH_ACTIVE = 16;                 // and of links to active neurons
constexpr size_t LINE = CACHE_LINE / sizeof(int32_t);  // links per cache line
constexpr size_t FEATURES = 64;                        // per task
constexpr size_t ROWS_PER_THREAD = 2;                  // fewer are not worth waking a thread for
constexpr float MOST_ROWS = 4;                         // rows with a gradient of 1 that count in full: see learn()

// Prefetches the links of a feature that comes soon.
void prefetch_links(const Csr& links, const float* trained, int32_t feature) {
  const int64_t first = links.offsets[feature];
  for (size_t line = 0; line < PREFETCH_LINES; ++line) {
    __builtin_prefetch(links.ids + first + line * LINE, 0, 2);
    __builtin_prefetch(links.values + first + line * LINE, 0, 2);
    if (trained) __builtin_prefetch(trained + first + line * LINE, 0, 2);
  }
}
}  // namespace

LabelPrior::LabelPrior(const PriorArrays& arrays)
    : arrays_(arrays), is_active_(arrays.neurons / 64 + 1, 0), position_(arrays.neurons) {}

void LabelPrior::find_active(const ActiveSet& active) {
  for (size_t p = 0; p < active.ids.size(); ++p) {
    const size_t neuron = active.ids[p];
    position_[neuron] = static_cast<int32_t>(p);
    is_active_[neuron / 64] |= uint64_t{1} << neuron % 64;
  }
}

void LabelPrior::forget_active(const ActiveSet& active) {
  for (const int32_t id : active.ids) is_active_[id / 64] = 0;
}

void LabelPrior::Sums::resize(size_t n) {
  if (sum.size() >= n) return;
  sum.assign(n, {});
  added.assign(n / 64 + 1, 0);
  has_any.assign(n / 64 + 1, 0);
}

template <class Use> void LabelPrior::Sums::drain(const Use& use) {
  uint8_t *word = has_any.data(), *const end = word + has_any.size();
  while ((word = static_cast<uint8_t*>(std::memchr(word, 1, end - word)))) {
    *word = 0;
    const size_t w = word - has_any.data();
    for (uint64_t bits = std::exchange(added[w], 0); bits != 0; bits &= bits - 1) {
      const size_t i = 64 * w + std::countr_zero(bits);
      use(i, sum[i]);
      sum[i] = {};
    }
  }
}

template <class Use>
void LabelPrior::each_link(const Csr& x, size_t row, size_t last, double norm, const Use& use) const {
  const Csr& links = arrays_.counted;
  const float* const trained = arrays_.is_trained ? arrays_.trained : nullptr;
  for (int64_t e = x.offsets[row]; e < x.offsets[row + 1]; ++e) {
    const int64_t soon = e + PREFETCH_DISTANCE, later = soon + PREFETCH_DISTANCE, end = x.offsets[last];
    if (soon < end) prefetch_links(links, trained, x.ids[soon]);
    if (later < end) __builtin_prefetch(links.offsets + x.ids[later]);
    const auto unit = static_cast<float>(x.values[e] / norm);
    if (unit == 0) continue;
    for (int64_t k = links.offsets[x.ids[e]]; k < links.offsets[x.ids[e] + 1]; ++k) use(k, links.ids[k], unit);
  }
}

void LabelPrior::use_groups(const Csr& x, const GroupedInputs* groups) {
  if (!groups) own_groups_.fill(x);
  groups_ = groups ? groups : &own_groups_;
}

void LabelPrior::find_links(const Csr& x, const ActiveSet& active, const GroupedInputs* groups) {
  find_active(active);
  use_groups(x, groups);
  active_links_.resize(groups_->parts.size());
  parallel_each(active_links_.size(), [&](size_t t) { find_links_of(groups_->parts[t], active_links_[t]); });
  forget_active(active);
  ++batch_;
}

// Nearly all links lead to neurons that are not active. The bit set, unlike the positions, stays in L1/L2.
void LabelPrior::find_links_of(const InputGroups& group, ActiveLinks& found) const {
  const Csr& links = arrays_.counted;
  const float* const trained = arrays_.is_trained ? arrays_.trained : nullptr;
  found.begin.assign(1, 0);
  size_t count = 0;
  LinkPrefetch prefetch(links, group.input, PREFETCH_LINKS);
  for (const int32_t input : group.input) {
    prefetch.advance([&](int64_t first, int64_t many) { prefetch_numbers(links.ids + first, many); });
    const int64_t first = links.offsets[input], last = links.offsets[input + 1];
    if (found.link.size() < count + (last - first)) found.link.resize(2 * count + (last - first));
    for (int64_t k = first; k < last; ++k) {
      found.link[count] = k;
      count += is_active(links.ids[k]);  // branch-free: the branch would be unpredictable
    }
    found.begin.push_back(count);
  }
  found.weights.resize(count);
  for (size_t i = 0; i < count; ++i) {
    if (i + PREFETCH_ACTIVE < count) {
      __builtin_prefetch(links.values + found.link[i + PREFETCH_ACTIVE]);
      if (trained) __builtin_prefetch(trained + found.link[i + PREFETCH_ACTIVE]);
    }
    const int64_t k = found.link[i];
    found.weights[i] = {position_[links.ids[k]], links.values[k], trained ? trained[k] : 0.0f};
  }
}

std::span<const LabelPrior::ActiveLinks::Weights> LabelPrior::active_links_of(const Csr& x, int64_t element) const {
  const ActiveLinks& found = active_links_[x.ids[element] % active_links_.size()];
  const size_t first = found.begin[groups_->place[element]];
  return {found.weights.data() + first, found.begin[groups_->place[element] + 1] - first};
}

void LabelPrior::add(const Csr& x, const double* norms, const Csr& own, float keep, ActiveSet& active,
                     const GroupedInputs* groups) {
  const std::lock_guard<std::mutex> lock(in_use_);
  const Csr& links = arrays_.counted;
  const float* const trained = arrays_.is_trained ? arrays_.trained : nullptr;
  const bool learning = own && arrays_.is_trained;
  if (!active.is_everything) {
    find_links(x, active, groups);
    active.prior.batch = batch_;
  }
  if (own) find_active(active);
  const int parts = threads();
  sums_.resize(parts);
  struct Part {
    BuiltRows rows;
    std::vector<float> counted;
  };
  std::vector<Part> found(parts);
  parallel_for(active.rows, 1, parts, [&](size_t first, size_t last, int thread) {
    Part& part = found[thread];
    Sums& sums = sums_[thread];
    sums.resize(active.ids.size());
    for (size_t i = first; i < last; ++i) {
      const size_t before = part.rows.ids.size();
      if (active.is_everything) {
        each_link(x, i, last, norms[i], [&](int64_t k, size_t p, float unit) {
          sums.add(p, unit * links.values[k], trained ? unit * trained[k] : 0.0f);
        });
      } else {
        for (int64_t e = x.offsets[i]; e < x.offsets[i + 1]; ++e) {
          const auto unit = static_cast<float>(x.values[e] / norms[i]);
          if (unit == 0) continue;
          for (const auto& link : active_links_of(x, e)) {
            sums.add(link.position, unit * link.counted, unit * link.trained);
          }
        }
      }
      if (own) subtract_own(x, i, norms[i], own, keep, active.is_everything, sums);
      sums.drain([&](size_t p, const Sum& sum) {
        part.rows.add(static_cast<int32_t>(p), weighted(active.ids[p], sum.counted, sum.trained));
        if (learning) part.counted.push_back(sum.counted);
      });
      part.rows.counts.push_back(static_cast<int64_t>(part.rows.ids.size() - before));
    }
  });
  if (own) forget_active(active);
  PriorLogits& prior = active.prior;
  std::vector<BuiltRows> rows;
  prior.counted.clear();
  for (Part& part : found) {
    prior.counted.insert(prior.counted.end(), part.counted.begin(), part.counted.end());
    rows.push_back(std::move(part.rows));
  }
  concatenate(rows, prior.begin, prior.position, prior.value);
  prior.gradient.assign(learning ? prior.value.size() : 0, 0.0f);
}

PriorLogits LabelPrior::logits(const Csr& x, const double* norms) const {
  const Csr& links = arrays_.counted;
  const float* const trained = arrays_.is_trained ? arrays_.trained : nullptr;
  const int parts = std::min(threads(), static_cast<int>(x.rows / ROWS_PER_THREAD) + 1);
  std::vector<BuiltRows> found(parts);
  parallel_for(x.rows, 1, parts, [&](size_t first, size_t last, int thread) {
    BuiltRows& rows = found[thread];
    ScratchPool<Sums>::Lease lease(free_sums_);
    Sums& sums = *lease;
    sums.resize(neurons());
    for (size_t i = first; i < last; ++i) {
      const size_t before = rows.ids.size();
      each_link(x, i, last, norms[i], [&](int64_t k, size_t neuron, float unit) {
        sums.add(neuron, unit * links.values[k], trained ? unit * trained[k] : 0.0f);
      });
      sums.drain([&](size_t neuron, const Sum& sum) {
        rows.add(static_cast<int32_t>(neuron), weighted(neuron, sum.counted, sum.trained));
      });
      rows.counts.push_back(static_cast<int64_t>(rows.ids.size() - before));
    }
  });
  PriorLogits prior;
  concatenate(found, prior.begin, prior.position, prior.value);
  return prior;
}

void LabelPrior::logits_of_row(const Csr& x, size_t row, double norm, NeuronSums& sums) const {
  const Csr& links = arrays_.counted;
  const float* const trained = arrays_.is_trained ? arrays_.trained : nullptr;
  size_t count = 0;
  const int64_t first = x.offsets[row];
  for (int64_t e = first; e < x.offsets[row + 1]; ++e) {
    count += links.offsets[x.ids[e] + 1] - links.offsets[x.ids[e]];
    if (e < first + PREFETCH_DISTANCE) prefetch_links(links, trained, x.ids[e]);
  }
  sums.reserve(count);
  for (int64_t e = first; e < x.offsets[row + 1]; ++e) {
    if (e + PREFETCH_DISTANCE < x.offsets[row + 1]) prefetch_links(links, trained, x.ids[e + PREFETCH_DISTANCE]);
    const auto unit = static_cast<float>(x.values[e] / norm);
    if (unit == 0) continue;
    const int64_t k = links.offsets[x.ids[e]];
    const float* const counted = links.values + k;
    const float* const further = trained ? trained + k : nullptr;
    sums.add(links.ids + k, links.offsets[x.ids[e] + 1] - k,
             [&](size_t j) { return std::pair(unit * counted[j], further ? unit * further[j] : 0.0f); });
  }
  for (size_t i = 0; i < sums.size(); ++i) {
    sums[i].sum = weighted(sums[i].neuron, sums[i].sum, sums[i].second);
  }
}

// Subtracts what a row contributes to the centroids of its labels. These are few: their links are searched for.
void LabelPrior::subtract_own(const Csr& x, size_t row, double norm, const Csr& own, float keep, bool all,
                              Sums& sums) const {
  const auto before = [](const ActiveLinks::Weights& link, int32_t position) { return link.position < position; };
  for (const int32_t* label = own.begin(row); label != own.end(row); ++label) {
    if (!is_active(*label)) continue;
    const int32_t position = position_[*label];
    float square = 0;
    for (int64_t e = x.offsets[row]; e < x.offsets[row + 1]; ++e) {
      if (all) {
        const Csr& links = arrays_.counted;
        if (!std::binary_search(links.begin(x.ids[e]), links.end(x.ids[e]), *label)) continue;
      } else {
        const std::span<const ActiveLinks::Weights> found = active_links_of(x, e);
        const auto at = std::lower_bound(found.begin(), found.end(), position, before);
        if (at == found.end() || at->position != position) continue;
      }
      const auto unit = static_cast<float>(x.values[e] / norm);
      square += unit * unit;
    }
    sums.sum[position].counted -= keep * arrays_.share[*label] * square;
  }
}

ScaleGradient LabelPrior::learn(const Csr& x, const double* norms, float rate, const ActiveSet& active,
                                const GroupedInputs* groups) {
  const std::lock_guard<std::mutex> lock(in_use_);
  const Csr& links = arrays_.counted;
  const PriorLogits& prior = active.prior;
  const size_t rows = active.rows, width = active.ids.size();
  gradient_.resize(std::max(gradient_.size(), rows * width));
  std::vector<ScaleGradient> by_row(rows);
  parallel_each(rows, [&](size_t i) {
    by_row[i] = {};
    for (int64_t e = prior.begin[i]; e < prior.begin[i + 1]; ++e) {
      gradient_[i * width + prior.position[e]] = prior.gradient[e];
      const int32_t rows_of_label = arrays_.rows[active.ids[prior.position[e]]];
      if (counts_for_scale(rows_of_label)) {
        by_row[i][prior_bucket(rows_of_label)] += double{prior.gradient[e]} * prior.counted[e];
      }
    }
  });
  ScaleGradient total{};
  std::vector<float> step(width, 0.0f);  // by position: first the sum of the gradients' sizes
  for (size_t i = 0; i < rows; ++i) {
    for (size_t b = 0; b < PRIOR_SCALES; ++b) total[b] += by_row[i][b];
    for (int64_t e = prior.begin[i]; e < prior.begin[i + 1]; ++e) {
      step[prior.position[e]] += std::fabs(prior.gradient[e]);
    }
  }
  const auto batch_rows = static_cast<float>(rows);  // gradients are those of the mean over rows
  for (float& s : step) s = rate * std::min(1.0f, MOST_ROWS / (batch_rows * s + 1e-30f));

  const bool all = active.is_everything;
  if (!all && active.prior.batch != batch_) {
    find_links(x, active, groups);
  } else {
    use_groups(x, groups);
  }
  const auto inputs_of = [&](size_t t) { return groups_->parts[t].input.size(); };
  const int parts = static_cast<int>(groups_->parts.size());
  parallel_for_queues(parts, inputs_of, FEATURES, [&](size_t t, size_t begin, size_t end, int) {
    const InputGroups& g = groups_->parts[t];
    std::vector<float> sums;
    for (size_t f = begin; f < end; ++f) {
      const int64_t first = links.offsets[g.input[f]], last = links.offsets[g.input[f] + 1];
      const size_t found = all ? 0 : active_links_[t].begin[f];
      const size_t count = all ? last - first : active_links_[t].begin[f + 1] - found;
      const auto position = [&](size_t j) {
        return all ? links.ids[first + j] : active_links_[t].weights[found + j].position;
      };
      sums.assign(count, 0.0f);
      for (size_t e = g.begin[f]; e < g.begin[f + 1]; ++e) {
        const auto unit = static_cast<float>(g.value[e] / norms[g.row[e]]);
        if (unit == 0) continue;  // the row's gradients may not be those of these links
        const float* const of_row = &gradient_[g.row[e] * width];
        for (size_t j = 0; j < count; ++j) sums[j] += unit * of_row[position(j)];
      }
      for (size_t j = 0; j < count; ++j) {
        arrays_.trained[all ? first + j : active_links_[t].link[found + j]] -= step[position(j)] * sums[j];
      }
    }
  });
  return total;
}
}  // namespace dslide
