// Linear classifiers in prediction.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include "layers/linear_classifiers.hpp"
#include "runtime/thread_pool.hpp"

namespace dslide {
namespace {
constexpr size_t FEW_SCORES = 256;        // of all rows: fewer are not worth waking threads for
constexpr int64_t GROUP = 16;             // features of a label, of which the last is kept apart
constexpr size_t FEW_ROWS = 8;            // and these are not worth ordering by label,
constexpr size_t LABELS_PER_PAIR = 64;    // or less than a pair of row and label for so many labels
constexpr size_t MOST_PAIRS = 1 << 20;    // ordered at once
constexpr size_t LABELS = 16;             // per task
constexpr size_t WEIGHTS_PER_SEARCH = 8;  // writing so many weights by feature takes as long as one search
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

// Row i of x, with values divided by its norm, which are written to `values`.
LinearScorer::Row LinearScorer::unit_row(const Csr& x, const double* norms, size_t i, float* values) {
  const auto count = static_cast<size_t>(x.offsets[i + 1] - x.offsets[i]);
  for (size_t f = 0; f < count; ++f) values[f] = static_cast<float>(x.values[x.offsets[i] + f] / norms[i]);
  return {{x.begin(i), count}, {values, count}};
}

// The groups of a label are found before the label before it is scored, so that their memory comes meanwhile.
void LinearScorer::scores_by_row(const Csr& x, const double* norms, const int32_t* labels, size_t count,
                                 float* scores) const {
  const int parts = x.rows * count < FEW_SCORES ? 1 : threads();
  parallel_for(x.rows, 1, parts, [&](size_t begin, size_t end, int) {
    ScratchPool<Scratch>::Lease lease(scratch_);
    auto& [values, groups, by_feature] = *lease;
    for (size_t i = begin; i < end; ++i) {
      values.resize(x.offsets[i + 1] - x.offsets[i]);
      const Row row = unit_row(x, norms, i, values.data());
      for (size_t j = i * count; j <= (i + 1) * count; ++j) {
        if (j < (i + 1) * count && labels[j] >= 0) find_groups(labels[j], row, groups[j % 2]);
        if (j > i * count) scores[j - 1] = labels[j - 1] < 0 ? 0 : product(labels[j - 1], row, groups[(j - 1) % 2]);
      }
    }
  });
}

// The same sums, in the same order, label by label: its weights are written into an array by feature, once for all rows
// that it is scored for, and a row's features are looked up there.
void LinearScorer::scores_by_label(const Csr& x, const double* norms, const int32_t* labels, size_t count,
                                   float* scores) const {
  std::vector<float> values(x.offsets[x.rows] - x.offsets[0]);
  std::vector<Row> rows(x.rows);
  parallel_each(x.rows,
                [&](size_t i) { rows[i] = unit_row(x, norms, i, values.data() + (x.offsets[i] - x.offsets[0])); });
  const size_t pairs = x.rows * count;
  std::vector<uint32_t> end(weights_.rows + 1), order(pairs), scored;  // `scored`: the labels, in the order they came
  for (size_t j = 0; j < pairs; ++j) {
    if (labels[j] < 0) {
      scores[j] = 0;
    } else if (end[labels[j] + 1]++ == 0) {
      scored.push_back(labels[j]);
    }
  }
  std::partial_sum(end.begin(), end.end(), end.begin());  // now by label where its pairs begin,
  for (size_t j = 0; j < pairs; ++j) {
    if (labels[j] >= 0) order[end[labels[j]]++] = static_cast<uint32_t>(j);  // and here where they end
  }
  parallel_for_dynamic(scored.size(), LABELS, threads(), [&](size_t first, size_t last, int) {
    ScratchPool<Scratch>::Lease lease(scratch_);
    Scratch& scratch = *lease;
    scratch.by_feature.resize(features_);
    for (size_t l = first; l < last; ++l) {
      const uint32_t label = scored[l], begin = label == 0 ? 0 : end[label - 1];
      score_rows(label, rows, count, {order.data() + begin, end[label] - begin}, scratch, scores);
    }
  });
}

// Scores of one label for some places in the matrix of scores.
void LinearScorer::score_rows(size_t label, const std::vector<Row>& rows, size_t count,
                              std::span<const uint32_t> places, Scratch& scratch, float* scores) const {
  size_t features = 0;
  for (const uint32_t place : places) features += rows[place / count].ids.size();
  const auto weights = static_cast<size_t>(weights_.offsets[label + 1] - weights_.offsets[label]);
  if (weights > WEIGHTS_PER_SEARCH * features) {
    for (const uint32_t place : places) {
      find_groups(label, rows[place / count], scratch.groups[0]);
      scores[place] = product(label, rows[place / count], scratch.groups[0]);
    }
    return;
  }
  float* const by_feature = scratch.by_feature.data();
  const int32_t* const ids = weights_.begin(label);
  const float* const values = weights_.values + weights_.offsets[label];
  for (size_t w = 0; w < weights; ++w) by_feature[ids[w]] = values[w];
  for (const uint32_t place : places) {
    const Row& row = rows[place / count];
    float sum = 0;
    for (size_t f = 0; f < row.ids.size(); ++f) sum += by_feature[row.ids[f]] * row.values[f];
    scores[place] = bias_[label] + sum;
  }
  for (size_t w = 0; w < weights; ++w) by_feature[ids[w]] = 0;
}

void LinearScorer::scores(const Csr& x, const double* norms, const int32_t* labels, size_t count, float* scores) const {
  const size_t most = std::max<size_t>(1, MOST_PAIRS / std::max<size_t>(1, count));
  for (size_t first = 0; first < x.rows; first += most) {
    const size_t rows = std::min(most, x.rows - first), place = first * count;
    const Csr some{rows, x.offsets + first, x.ids, x.values};
    if (rows * count * LABELS_PER_PAIR < weights_.rows || rows < FEW_ROWS) {
      scores_by_row(some, norms + first, labels + place, count, scores + place);
    } else {
      scores_by_label(some, norms + first, labels + place, count, scores + place);
    }
  }
}

void LinearScorer::mixed_scores(const Csr& x, const double* norms, const int32_t* ids, const float* logits,
                                size_t count, Stripe own, const Calibration& calibration, float* scores) const {
  std::vector<int32_t> labels(x.rows * count);
  const int parts = labels.size() < FEW_SCORES ? 1 : threads();
  parallel_for(labels.size(), 1, parts, [&](size_t begin, size_t end, int) {
    for (size_t j = begin; j < end; ++j) {
      labels[j] = ids[j] >= 0 && own.contains(ids[j]) ? static_cast<int32_t>(own.to_local(ids[j])) : -1;
    }
  });
  this->scores(x, norms, labels.data(), count, scores);
  parallel_for(labels.size(), 1, parts, [&](size_t begin, size_t end, int) {
    for (size_t j = begin; j < end; ++j) {
      if (labels[j] >= 0) scores[j] = calibration.score(logits[j] + scores[j], labels[j]);
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
