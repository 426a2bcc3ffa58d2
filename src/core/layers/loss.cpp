#include "layers/loss.hpp"
#include <cmath>
#include "kernels/kernels.hpp"
#include "runtime/thread_pool.hpp"

namespace dslide {
namespace {
// use(element, slot) for each of a row's labels that is active.
template <class Use> void each_label(const ActiveSet& active, const Labels& labels, size_t row, const Use& use) {
  const size_t first = active.is_per_row ? 0 : active.slots_of(row).begin;
  for (int64_t e = labels.lists.offsets[row]; e < labels.lists.offsets[row + 1]; ++e) {
    if (labels.found[e] >= 0) use(e, first + labels.found[e]);
  }
}

// Row losses are summed in row order, so the result does not depend on threads.
template <class RowLoss> double sum_rows(size_t rows, const RowLoss& row_loss) {
  std::vector<double> loss(rows);
  parallel_each(rows, [&](size_t i) { loss[i] = row_loss(i); });
  double total = 0;
  for (const double x : loss) total += x;
  return total;
}
}  // namespace

void row_shares(const Csr& weights, float* shares) {
  for (size_t i = 0; i < weights.rows; ++i) {
    const int64_t begin = weights.offsets[i], end = weights.offsets[i + 1];
    double sum = 0;
    for (int64_t e = begin; e < end; ++e) sum += weights.values[e];
    for (int64_t e = begin; e < end; ++e) shares[e] = static_cast<float>(weights.values[e] / sum);
  }
}

void softmax_stats(const ActiveSet& active, const float* z, float* reference, float* sum) {
  const Kernels& kernel = kernels();
  parallel_each(active.rows, [&](size_t i) {
    const Range s = active.slots_of(i);
    kernel.softmax_stats(1, s.size(), z + s.begin, s.size(), active.log_weights_of(i), reference + i, sum + i);
  });
}

double softmax_gradient(const ActiveSet& active, float* z, const Labels& labels, const float* log_norm, float scale) {
  const Kernels& kernel = kernels();
  return sum_rows(active.rows, [&](size_t i) {
    const Range s = active.slots_of(i);
    double loss = 0;
    each_label(active, labels, i, [&](int64_t e, size_t slot) {
      loss += softmax_label_loss(labels.lists.values[e], z[slot], log_norm[i]);
    });
    kernel.softmax_gradient(1, s.size(), z + s.begin, s.size(), active.log_weights_of(i), log_norm + i, scale,
                            z + s.begin, s.size());
    each_label(active, labels, i, [&](int64_t e, size_t slot) { z[slot] -= scale * labels.lists.values[e]; });
    return loss;
  });
}

double sigmoid_gradient(const ActiveSet& active, float* z, const Labels& labels, float scale) {
  const Kernels& kernel = kernels();
  std::vector<float> weight(active.log_weight.size());
  for (size_t i = 0; i < weight.size(); ++i) weight[i] = std::exp(active.log_weight[i]);
  const std::vector<float> no_shift(active.ids.size(), 0.0f);
  return sum_rows(active.rows, [&](size_t i) {
    const Range s = active.slots_of(i);
    const float* weights = weight.data() + (active.is_per_row ? s.begin : 0);
    double loss = 0;
    std::vector<std::pair<size_t, float>> changes;
    each_label(active, labels, i, [&](int64_t e, size_t slot) {
      const Correction c = sigmoid_label(labels.lists.values[e], weights[slot - s.begin], z[slot]);
      loss += c.loss;
      changes.emplace_back(slot, scale * c.gradient);
    });
    loss += kernel.sigmoid_gradient(z + s.begin, no_shift.data(), weights, s.size(), scale);
    for (const auto& [slot, change] : changes) z[slot] += change;
    return loss;
  });
}

Correction sigmoid_label(float target, float weight, float logit) {
  const double x = logit, tail = std::log1p(std::exp(-std::fabs(x)));
  const double no = std::fmax(x, 0.0) + tail, yes = std::fmax(-x, 0.0) + tail;  // negative and positive
  const double chance = 1 / (1 + std::exp(-x));
  return {target * yes - weight * no, static_cast<float>(target * (chance - 1) - weight * chance)};
}
}  // namespace dslide
