#include "layers/label_prior.hpp"
#include <algorithm>
#include <cmath>
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

void LabelPrior::add(const Csr& x, const double* norms, const Csr& own, float keep, ActiveSet& active) {
  const std::lock_guard<std::mutex> lock(in_use_);
  const Csr& links = arrays_.counted;
  const float* const trained = arrays_.is_trained ? arrays_.trained : nullptr;
  const bool learning = own && arrays_.is_trained;
  // Nearly all links lead to neurons that are not active. The bit set, unlike the positions, stays in L1/L2.
  find_active(active);
  const int parts = threads();
  struct Part {
    BuiltRows rows;
    std::vector<float> counted;
  };
  std::vector<Part> found(parts);
  parallel_for(active.rows, 1, parts, [&](size_t first, size_t last, int thread) {
    Part& part = found[thread];
    std::vector<float> counted(active.ids.size()), extra(active.ids.size());  // sums by position
    std::vector<int64_t> row_of(active.ids.size(), -1);                       // the last row that touched a position
    std::vector<int64_t> owner(own ? active.ids.size() : 0, -1);              // the last row with that label
    std::vector<int32_t> touched;
    for (size_t i = first; i < last; ++i) {
      const auto row = static_cast<int64_t>(i);
      if (own) {
        for (const int32_t* l = own.begin(i); l != own.end(i); ++l) {
          if (is_active(*l)) owner[position_[*l]] = row;
        }
      }
      const auto is_own = [&](size_t p) { return !owner.empty() && owner[p] == row; };
      touched.clear();
      for (int64_t e = x.offsets[i]; e < x.offsets[i + 1]; ++e) {
        if (e + 2 * PREFETCH_DISTANCE < x.offsets[last]) {  // the links of a later feature, the offsets of one after
          prefetch_links(links, trained, x.ids[e + PREFETCH_DISTANCE]);
          __builtin_prefetch(links.offsets + x.ids[e + 2 * PREFETCH_DISTANCE]);
        }
        const auto unit = static_cast<float>(x.values[e] / norms[i]);
        const float itself = keep * unit;
        for (int64_t k = links.offsets[x.ids[e]]; k < links.offsets[x.ids[e] + 1]; ++k) {
          const size_t neuron = links.ids[k];
          if (!is_active(neuron)) continue;
          const size_t p = position_[neuron];
          if (row_of[p] != row) {
            row_of[p] = row;
            counted[p] = extra[p] = 0;
            touched.push_back(static_cast<int32_t>(p));
          }
          counted[p] += unit * (is_own(p) ? links.values[k] - itself * arrays_.share[neuron] : links.values[k]);
          if (trained) extra[p] += unit * trained[k];
        }
      }
      for (const int32_t p : touched) {
        part.rows.add(p, weighted(active.ids[p], counted[p], extra[p]));
        if (learning) part.counted.push_back(counted[p]);
      }
      part.rows.counts.push_back(static_cast<int64_t>(touched.size()));
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

void LabelPrior::best(const Csr& x, const double* norms, const Csr& own, const float* bias, size_t count, Stripe stripe,
                      int32_t* ids, uint32_t* keys) {
  const std::lock_guard<std::mutex> lock(in_use_);
  const Csr& links = arrays_.counted;
  const float* const trained = arrays_.is_trained ? arrays_.trained : nullptr;
  const int parts = threads();
  sums_.resize(parts);
  parallel_for(x.rows, 1, parts, [&](size_t first, size_t last, int thread) {
    Sums& sums = sums_[thread];
    if (sums.stamp.empty() || sums.now > UINT32_MAX - x.rows) {
      sums = {std::vector<float>(neurons()), std::vector<float>(neurons()), std::vector<uint32_t>(neurons(), 0), 0};
    }
    std::vector<int32_t> touched;
    std::vector<std::pair<uint32_t, int32_t>> found;  // key and neuron
    for (size_t i = first; i < last; ++i) {
      touched.clear();
      ++sums.now;
      for (int64_t e = x.offsets[i]; e < x.offsets[i + 1]; ++e) {
        if (e + PREFETCH_DISTANCE < x.offsets[last]) prefetch_links(links, trained, x.ids[e + PREFETCH_DISTANCE]);
        const auto unit = static_cast<float>(x.values[e] / norms[i]);
        for (int64_t k = links.offsets[x.ids[e]]; k < links.offsets[x.ids[e] + 1]; ++k) {
          const size_t neuron = links.ids[k];
          if (sums.stamp[neuron] != sums.now) {
            sums.stamp[neuron] = sums.now;
            sums.counted[neuron] = sums.trained[neuron] = 0;
            touched.push_back(static_cast<int32_t>(neuron));
          }
          sums.counted[neuron] += unit * links.values[k];
          if (trained) sums.trained[neuron] += unit * trained[k];
        }
      }
      for (const int32_t* l = own.begin(i); l != own.end(i); ++l) sums.stamp[*l] = 0;  // left out
      found.clear();
      for (const int32_t n : touched) {
        if (sums.stamp[n] != sums.now) continue;
        const float sum = weighted(n, sums.counted[n], sums.trained[n]) + bias[n];
        found.emplace_back(key_of(sum, stripe.to_global(n)), n);
      }
      const size_t taken = std::min(count, found.size());
      std::partial_sort(found.begin(), found.begin() + taken, found.end(), [](const auto& a, const auto& b) {
        return a.first > b.first || (a.first == b.first && a.second < b.second);
      });
      for (size_t k = 0; k < count; ++k) {
        ids[i * count + k] = k < taken ? found[k].second : -1;
        keys[i * count + k] = k < taken ? found[k].first : 0;
      }
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
      if (has_say(rows_of_label)) {
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
