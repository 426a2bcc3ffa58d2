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
constexpr int64_t GROUP = 16;       // features of a label, of which the last is kept apart
constexpr int64_t NO_LABEL = -1;
}  // namespace

LinearScorer::LinearScorer(const Csr& weights, const float* bias, size_t features)
    : weights_(weights), bias_(bias), features_(features), last_begin_(weights.rows + 1, 0) {
  for (size_t label = 0; label < weights.rows; ++label) {
    last_begin_[label + 1] = last_begin_[label] + (weights.offsets[label + 1] - weights.offsets[label]) / GROUP;
  }
  last_.resize(last_begin_[weights.rows]);
  parallel_each(weights.rows, [&](size_t label) {
    const int32_t* const ids = weights.begin(label);
    for (int64_t g = last_begin_[label]; g < last_begin_[label + 1]; ++g) {
      last_[g] = ids[GROUP * (g - last_begin_[label]) + GROUP - 1];
    }
  });
}

// A label has thousands of features, a row some dozens, so that each of these is searched for: among the groups' last
// features, which are few lines of memory, and then in its group. All searches halve their ranges together: a step of
// one does not wait for the others, and there is no branch to predict.
void LinearScorer::find_groups(size_t label, const Row& row, std::vector<uint32_t>& group) const {
  const int32_t *const last = last_.data() + last_begin_[label], *const wanted = row.ids.data();
  const auto groups = static_cast<uint32_t>(last_begin_[label + 1] - last_begin_[label]);
  group.assign(row.ids.size(), 0);
  uint32_t* const at = group.data();
  for (uint32_t left = groups; left > 0; left /= 2) {
    const uint32_t half = left - left / 2;
    for (size_t f = 0; f < group.size(); ++f)
      at[f] += half & -static_cast<uint32_t>(last[at[f] + half - 1] < wanted[f]);
  }
  const int32_t* const ids = weights_.begin(label);
  for (size_t f = 0; f < group.size(); ++f) {
    __builtin_prefetch(ids + GROUP * at[f]);
    __builtin_prefetch(ids + GROUP * at[f] + GROUP - 1);
  }
}

float LinearScorer::product(size_t label, const Row& row, const std::vector<uint32_t>& group) const {
  const int64_t begin = weights_.offsets[label], end = weights_.offsets[label + 1];
  float sum = 0;
  for (size_t f = 0; f < group.size(); ++f) {
    const int64_t first = begin + GROUP * group[f];
    const int32_t wanted = row.ids[f];
    int64_t at = first;
    if (first + GROUP <= end) {
      for (int64_t j = 0; j < GROUP; ++j) at += weights_.ids[first + j] < wanted;
    } else {
      while (at < end && weights_.ids[at] < wanted) ++at;
    }
    if (at < end && weights_.ids[at] == wanted) sum += weights_.values[at] * row.values[f];
  }
  return bias_[label] + sum;
}

// The groups of a label are found before the label before
// it is scored, so that their memory comes meanwhile.
template <class LabelOf, class Use> void LinearScorer::each_score(const Csr& x, const double* norms, size_t count,
                                                                  const LabelOf& label_of, const Use& use) const {
  const int parts = x.rows * count < FEW_SCORES ? 1 : threads();
  parallel_for(x.rows, 1, parts, [&](size_t begin, size_t end, int) {
    ScratchPool<Row>::Lease lease(rows_);
    Row& row = *lease;
    for (size_t i = begin; i < end; ++i) {
      row.ids = {x.begin(i), x.end(i)};
      row.values.clear();
      for (int64_t e = x.offsets[i]; e < x.offsets[i + 1]; ++e) {
        row.values.push_back(static_cast<float>(x.values[e] / norms[i]));
      }
      for (size_t j = i * count; j <= (i + 1) * count; ++j) {
        const bool is_last = j == (i + 1) * count;
        const int64_t label = is_last ? NO_LABEL : label_of(j);
        if (label != NO_LABEL) find_groups(label, row, row.groups[j % 2]);
        if (j > i * count) {
          const int64_t before = label_of(j - 1);
          use(j - 1, before, before == NO_LABEL ? 0.0f : product(before, row, row.groups[(j - 1) % 2]));
        }
      }
    }
  });
}

void LinearScorer::scores(const Csr& x, const double* norms, const int32_t* labels, size_t count, float* scores) const {
  each_score(x, norms, count, [&](size_t j) { return int64_t{labels[j]}; },
             [&](size_t j, int64_t, float score) { scores[j] = score; });
}

void LinearScorer::mixed_scores(const Csr& x, const double* norms, const int32_t* ids, const float* logits,
                                size_t count, Stripe own, const Calibration& calibration, float* scores) const {
  const auto label_of = [&](size_t j) {
    return ids[j] >= 0 && own.contains(ids[j]) ? static_cast<int64_t>(own.to_local(ids[j])) : NO_LABEL;
  };
  each_score(x, norms, count, label_of, [&](size_t j, int64_t label, float score) {
    scores[j] = label == NO_LABEL ? 0.0f : calibration.score(logits[j] + score, label);
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
