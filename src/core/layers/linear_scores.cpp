// Linear classifiers in prediction.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include "layers/linear_classifiers.hpp"
#include "runtime/thread_pool.hpp"

namespace dslide {
namespace {
constexpr size_t FEW_SCORES = 256;  // of all rows: fewer are not worth waking threads for
constexpr int64_t SUMS = 8;         // additions that don't wait for each other
constexpr size_t AHEAD = 2;         // labels: how early their weights are prefetched
constexpr int64_t NUMBERS_PER_LINE = CACHE_LINE / sizeof(float), PREFETCHED = 8 * NUMBERS_PER_LINE;

// The sum of the weights of a label times the row, which has all features.
float product(const Csr& weights, size_t label, const float* row) {
  const int32_t* id = weights.ids + weights.offsets[label];
  const float* value = weights.values + weights.offsets[label];
  const int64_t count = weights.offsets[label + 1] - weights.offsets[label], whole = count / SUMS * SUMS;
  float sums[SUMS] = {};
  for (int64_t e = 0; e < whole; e += SUMS) {
    for (int64_t j = 0; j < SUMS; ++j) sums[j] += value[e + j] * row[id[e + j]];
  }
  for (int64_t e = whole; e < count; ++e) sums[0] += value[e] * row[id[e]];
  for (int64_t half = SUMS / 2; half > 0; half /= 2) {
    for (int64_t j = 0; j < half; ++j) sums[j] += sums[j + half];
  }
  return sums[0];
}
}  // namespace

template <class Use>
void LinearScorer::each_row(const Csr& x, const double* norms, size_t count, const Use& use) const {
  const int parts = x.rows * count < FEW_SCORES ? 1 : threads();
  parallel_for(x.rows, 1, parts, [&](size_t begin, size_t end, int) {
    ScratchPool<std::vector<float>>::Lease lease(rows_);
    std::vector<float>& dense = *lease;
    dense.resize(features_, 0.0f);
    for (size_t i = begin; i < end; ++i) {
      for (int64_t e = x.offsets[i]; e < x.offsets[i + 1]; ++e) {
        dense[x.ids[e]] = static_cast<float>(x.values[e] / norms[i]);
      }
      use(i, [&](size_t label) { return bias_[label] + product(weights_, label, dense.data()); });
      for (int64_t e = x.offsets[i]; e < x.offsets[i + 1]; ++e) dense[x.ids[e]] = 0;
    }
  });
}

void LinearScorer::scores(const Csr& x, const double* norms, const int32_t* labels, size_t count, float* scores) const {
  each_row(x, norms, count, [&](size_t i, const auto& score) {
    for (size_t j = i * count; j < (i + 1) * count; ++j) scores[j] = labels[j] < 0 ? 0.0f : score(labels[j]);
  });
}

void LinearScorer::mixed_scores(const Csr& x, const double* norms, const int32_t* ids, const float* logits,
                                size_t count, Stripe own, const Calibration& calibration, float* scores) const {
  each_row(x, norms, count, [&](size_t i, const auto& score) {
    const auto is_own = [&](size_t j) { return ids[j] >= 0 && own.contains(ids[j]); };
    for (size_t j = i * count; j < (i + 1) * count; ++j) {
      if (j + AHEAD < (i + 1) * count &&
          is_own(j + AHEAD)) {  // these are read from end to end, after a cache miss each
        const int64_t first = weights_.offsets[own.to_local(ids[j + AHEAD])];
        for (int64_t line = 0; line < PREFETCHED; line += NUMBERS_PER_LINE) {
          __builtin_prefetch(weights_.ids + first + line);
          __builtin_prefetch(weights_.values + first + line);
        }
      }
      const size_t label = is_own(j) ? own.to_local(ids[j]) : 0;
      scores[j] = is_own(j) ? calibration.score(logits[j] + score(label), label) : 0.0f;
    }
  });
}

void rank_again(const int32_t* ids, const float* scores, size_t rows, size_t count, size_t ranked, size_t k,
                int32_t* best, float* best_scores) {
  constexpr float NOTHING = -std::numeric_limits<float>::infinity();
  std::vector<size_t> order(count);
  for (size_t i = 0; i < rows; ++i) {
    const int32_t* const id = ids + i * count;
    const auto score = [&](size_t j) { return id[j] < 0 ? NOTHING : scores[i * count + j]; };
    std::iota(order.begin(), order.end(), size_t{0});
    std::sort(order.begin(), order.begin() + static_cast<int64_t>(std::min(ranked, count)), [&](size_t a, size_t b) {
      if (id[a] < 0 || id[b] < 0) return id[a] >= 0 && id[b] < 0;
      const float left = score(a), right = score(b);
      if (left == right || std::isnan(left) || std::isnan(right)) {
        return std::isnan(left) == std::isnan(right) ? id[a] < id[b] : std::isnan(right);
      }
      return left > right;
    });
    float least = std::numeric_limits<float>::infinity();
    for (size_t j = 0; j < k; ++j) {
      const float found = score(order[j]);
      least = found < least || std::isnan(found) ? found : least;
      best[i * k + j] = id[order[j]];
      best_scores[i * k + j] = least;
    }
  }
}
}  // namespace dslide
