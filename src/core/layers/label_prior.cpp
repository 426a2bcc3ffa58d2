#include "layers/label_prior.hpp"
#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include "layers/built_rows.hpp"
#include "runtime/thread_pool.hpp"

namespace dslide {
namespace {
constexpr int64_t PREFETCH_DISTANCE = 8;               // in features
constexpr size_t PREFETCH_LINES = 4;                   // of a feature's links
constexpr size_t LINE = CACHE_LINE / sizeof(int32_t);  // links per cache line
constexpr size_t FEATURES = 64;                        // per task
constexpr float MOST_ROWS = 4;                         // rows with a gradient of 1 that count in full: see learn()
constexpr uint32_t TIE_BITS = 0x3ff;                   // of a key: random

// Prefetches the links of a feature that comes soon.
void prefetch_links(const Csr& links, const float* trained, int32_t feature) {
  const int64_t first = links.offsets[feature];
  for (size_t line = 0; line < PREFETCH_LINES; ++line) {
    __builtin_prefetch(links.ids + first + line * LINE, 0, 2);
    if (trained) __builtin_prefetch(trained + first + line * LINE, 0, 2);
  }
}

// An unsigned number that orders as the float, with random low bits.
uint32_t key_of(float sum, size_t neuron) {
  const auto bits = std::bit_cast<uint32_t>(sum);
  const uint32_t ordered = bits >> 31 ? ~bits : bits | 0x80000000u;
  const auto random = static_cast<uint32_t>((neuron + 1) * 0x9e3779b97f4a7c15u >> 32);
  return (ordered & ~TIE_BITS) | (random & TIE_BITS) | 1;  // never 0
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
    if (e + 2 * PREFETCH_DISTANCE < x.offsets[last]) {  // the links of a later feature, the offsets of one after
      prefetch_links(links, trained, x.ids[e + PREFETCH_DISTANCE]);
      __builtin_prefetch(links.offsets + x.ids[e + 2 * PREFETCH_DISTANCE]);
    }
    const auto unit = static_cast<float>(x.values[e] / norm);
    if (unit == 0) continue;
    for (int64_t k = links.offsets[x.ids[e]]; k < links.offsets[x.ids[e] + 1]; ++k) use(k, links.ids[k], unit);
  }
}

void LabelPrior::add(const Csr& x, const double* norms, const Csr& own, float keep, ActiveSet& active) {
  const std::lock_guard<std::mutex> lock(in_use_);
  const Csr& links = arrays_.counted;
  const float* const trained = arrays_.is_trained ? arrays_.trained : nullptr;
  const bool learning = own && arrays_.is_trained;
  // Nearly all links lead to neurons that are not active. The bit set, unlike the positions, stays in L1/L2.
  find_active(active);
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
      const auto add = [&](int64_t k, size_t p, float unit) {
        sums.add(p, unit * links.values[k], trained ? unit * trained[k] : 0.0f);
      };
      if (active.is_everything) {
        each_link(x, i, last, norms[i], add);
      } else {
        each_link(x, i, last, norms[i], [&](int64_t k, size_t neuron, float unit) {
          if (is_active(neuron)) add(k, position_[neuron], unit);
        });
      }
      if (own) subtract_own(x, i, norms[i], own, keep, sums);
      sums.drain([&](size_t p, const Sum& sum) {
        part.rows.add(static_cast<int32_t>(p), weighted(active.ids[p], sum.counted, sum.trained));
        if (learning) part.counted.push_back(sum.counted);
      });
      part.rows.counts.push_back(static_cast<int64_t>(part.rows.ids.size() - before));
    }
  });
  forget_active(active);
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

// Subtracts what a row contributes to the centroids of its labels. These are few: their links are searched for.
void LabelPrior::subtract_own(const Csr& x, size_t row, double norm, const Csr& own, float keep, Sums& sums) const {
  const Csr& links = arrays_.counted;
  for (const int32_t* label = own.begin(row); label != own.end(row); ++label) {
    if (!is_active(*label)) continue;
    float square = 0;
    for (int64_t e = x.offsets[row]; e < x.offsets[row + 1]; ++e) {
      const int32_t feature = x.ids[e];
      if (!std::binary_search(links.begin(feature), links.end(feature), *label)) continue;
      const auto unit = static_cast<float>(x.values[e] / norm);
      square += unit * unit;
    }
    sums.sum[position_[*label]].counted -= keep * arrays_.share[*label] * square;
  }
}

void LabelPrior::best(const Csr& x, const double* norms, const Csr& own, const float* bias, size_t count, Stripe stripe,
                      int32_t* ids, uint32_t* keys) {
  const std::lock_guard<std::mutex> lock(in_use_);
  const Csr& links = arrays_.counted;
  const float* const trained = arrays_.is_trained ? arrays_.trained : nullptr;
  const int parts = threads();
  sums_.resize(parts);
  parallel_for(x.rows, 1, parts, [&](size_t first, size_t last, int thread) {
    Sums& sums = sums_[thread];
    sums.resize(neurons());
    for (size_t i = first; i < last; ++i) {
      each_link(x, i, last, norms[i], [&](int64_t k, size_t neuron, float unit) {
        sums.add(neuron, unit * links.values[k], trained ? unit * trained[k] : 0.0f);
      });
      for (const int32_t* label = own.begin(i); label != own.end(i); ++label) sums.clear(*label);
      int32_t* const best_ids = ids + i * count;
      uint32_t* const best_keys = keys + i * count;
      std::fill_n(best_ids, count, -1);
      std::fill_n(best_keys, count, 0u);
      sums.drain([&](size_t n, const Sum& sum) {
        const float total = weighted(n, sum.counted, sum.trained) + bias[n];
        const uint32_t key = key_of(total, stripe.to_global(n));
        if (key <= best_keys[count - 1]) return;  // ties to the lower neuron
        size_t at = count - 1;                    // an insertion sort: few are better than all before
        for (; at > 0 && best_keys[at - 1] < key; --at) {
          best_keys[at] = best_keys[at - 1];
          best_ids[at] = best_ids[at - 1];
        }
        best_keys[at] = key;
        best_ids[at] = static_cast<int32_t>(n);
      });
    }
  });
}

ScaleGradient LabelPrior::learn(const Csr& x, const double* norms, float rate, const ActiveSet& active) {
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
  const auto count = static_cast<float>(rows);  // gradients are those of the mean over rows
  for (float& s : step) s = rate * std::min(1.0f, MOST_ROWS / (count * s + 1e-30f));

  find_active(active);
  group_by_input(x, groups_);
  const auto inputs_of = [&](size_t t) { return groups_[t].input.size(); };
  const int parts = static_cast<int>(groups_.size());
  struct Link {
    int64_t link;
    int32_t position;
  };
  parallel_for_queues(parts, inputs_of, FEATURES, [&](size_t t, size_t begin, size_t end, int) {
    const InputGroups& g = groups_[t];
    std::vector<Link> found;
    std::vector<float> sums;
    for (size_t f = begin; f < end; ++f) {
      found.clear();
      for (int64_t k = links.offsets[g.input[f]]; k < links.offsets[g.input[f] + 1]; ++k) {
        if (is_active(links.ids[k])) found.push_back({k, position_[links.ids[k]]});
      }
      sums.assign(found.size(), 0.0f);
      for (size_t e = g.begin[f]; e < g.begin[f + 1]; ++e) {
        const auto unit = static_cast<float>(g.value[e] / norms[g.row[e]]);
        if (unit == 0) continue;  // the row's gradients may not be those of these links
        const float* const of_row = &gradient_[g.row[e] * width];
        for (size_t j = 0; j < found.size(); ++j) sums[j] += unit * of_row[found[j].position];
      }
      for (size_t j = 0; j < found.size(); ++j) arrays_.trained[found[j].link] -= step[found[j].position] * sums[j];
    }
  });
  forget_active(active);
  return total;
}
}  // namespace dslide
