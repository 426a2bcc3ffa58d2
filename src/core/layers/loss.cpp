#include "layers/loss.hpp"

#include <cmath>

#include "kernels/kernels.hpp"
#include "runtime/thread_pool.hpp"

namespace dslide {
namespace {

// First slot of a row, how many it has, and their log-weights.
struct RowSlots {
  size_t begin, count;
  const float* log_weight;
};

RowSlots row_slots(const ActiveSet& active, size_t row) {
  if (active.is_per_row) {
    const auto begin = static_cast<size_t>(active.row_begin[row]), end = static_cast<size_t>(active.row_begin[row + 1]);
    return {begin, end - begin, active.log_weight.data() + begin};
  }
  return {row * active.ids.size(), active.ids.size(), active.log_weight.data()};
}

// Slot of label e of a row.
size_t label_slot(const ActiveSet& active, size_t row, int64_t found) {
  return static_cast<size_t>(found) + (active.is_per_row ? 0 : row * active.ids.size());
}

// Losses are summed row by row and then in row order, so that threads don't matter.
template <class RowLoss>
double sum_rows(size_t rows, const RowLoss& row_loss) {
  std::vector<double> loss(rows);
  run_parts(rows, [&](size_t begin, size_t end, int) {
    for (size_t i = begin; i < end; ++i) loss[i] = row_loss(i);
  });
  double total = 0;
  for (const double x : loss) total += x;
  return total;
}

}  // namespace

void row_shares(const int64_t* offsets, size_t rows, const float* weights, float* shares) {
  for (size_t i = 0; i < rows; ++i) {
    double sum = 0;
    for (int64_t e = offsets[i]; e < offsets[i + 1]; ++e) sum += weights[e];
    for (int64_t e = offsets[i]; e < offsets[i + 1]; ++e) shares[e] = static_cast<float>(weights[e] / sum);
  }
}

void softmax_stats(const ActiveSet& active, const float* z, float* reference, float* sum) {
  const Kernels& kernel = kernels();
  run_parts(active.rows, [&](size_t begin, size_t end, int) {
    for (size_t i = begin; i < end; ++i) {
      const RowSlots s = row_slots(active, i);
      kernel.softmax_stats(1, s.count, z + s.begin, s.count, s.log_weight, reference + i, sum + i);
    }
  });
}

double softmax_gradient(const ActiveSet& active, float* z, const Labels& labels, const float* log_norm, float scale) {
  const Kernels& kernel = kernels();
  return sum_rows(active.rows, [&](size_t i) {
    const RowSlots s = row_slots(active, i);
    double loss = 0;
    for (int64_t e = labels.lists.offsets[i]; e < labels.lists.offsets[i + 1]; ++e) {
      if (labels.found[e] < 0) continue;
      loss += softmax_label_loss(labels.targets[e], z[label_slot(active, i, labels.found[e])], log_norm[i]);
    }
    kernel.softmax_gradient(1, s.count, z + s.begin, s.count, s.log_weight, log_norm + i, scale, z + s.begin, s.count);
    for (int64_t e = labels.lists.offsets[i]; e < labels.lists.offsets[i + 1]; ++e) {
      if (labels.found[e] >= 0) z[label_slot(active, i, labels.found[e])] -= scale * labels.targets[e];
    }
    return loss;
  });
}

double sigmoid_gradient(const ActiveSet& active, float* z, const Labels& labels, float scale) {
  const Kernels& kernel = kernels();
  std::vector<float> weight(active.log_weight.size());
  for (size_t i = 0; i < weight.size(); ++i) weight[i] = std::exp(active.log_weight[i]);
  const std::vector<float> no_shift(active.ids.size(), 0.0f);
  return sum_rows(active.rows, [&](size_t i) {
    const RowSlots s = row_slots(active, i);
    const float* weights = weight.data() + (s.log_weight - active.log_weight.data());
    double loss = 0;
    std::vector<std::pair<size_t, float>> changes;
    for (int64_t e = labels.lists.offsets[i]; e < labels.lists.offsets[i + 1]; ++e) {
      if (labels.found[e] < 0) continue;
      const size_t slot = label_slot(active, i, labels.found[e]);
      const Correction c = sigmoid_label(labels.targets[e], weights[slot - s.begin], z[slot]);
      loss += c.loss;
      changes.emplace_back(slot, scale * c.gradient);
    }
    loss += kernel.sigmoid_gradient(z + s.begin, no_shift.data(), weights, s.count, scale);
    for (const auto& [slot, change] : changes) z[slot] += change;
    return loss;
  });
}

Correction sigmoid_label(float target, float weight, float logit) {
  const double x = logit, tail = std::log1p(std::exp(-std::fabs(x)));
  const double no = std::fmax(x, 0.0) + tail, yes = std::fmax(-x, 0.0) + tail;  // losses of either answer
  const double chance = 1 / (1 + std::exp(-x));
  return {target * yes - weight * no, static_cast<float>(target * (chance - 1) - weight * chance)};
}

}  // namespace dslide
