#include "layers/label_prior.hpp"
#include <algorithm>
#include <cmath>
#include <numeric>
#include "runtime/thread_pool.hpp"

namespace dslide {
namespace {
constexpr int64_t PREFETCH_DISTANCE = 8;               // in features
constexpr size_t PREFETCH_LINES = 4;                   // of a feature's links
constexpr size_t LINE = CACHE_LINE / sizeof(int32_t);  // links per cache line

// The transpose of a CSR matrix: the rows with column c are row[begin[c]] .. row[begin[c + 1]], ascending.
struct Transposed {
  std::vector<int64_t> begin;
  std::vector<int32_t> row;
  std::vector<float> value;  // divided by the row's norm; empty for lists without values

  Transposed(const Csr& matrix, const std::vector<double>& norms, size_t columns)
      : begin(columns + 1, 0), row(matrix.nnz()), value(matrix.values ? row.size() : 0) {
    for (size_t e = 0; e < row.size(); ++e) ++begin[matrix.ids[e] + 1];
    std::partial_sum(begin.begin(), begin.end(), begin.begin());
    std::vector<int64_t> next(begin.begin(), begin.end() - 1);
    for (size_t i = 0; i < matrix.rows; ++i) {
      for (int64_t e = matrix.offsets[i]; e < matrix.offsets[i + 1]; ++e) {
        const size_t at = next[matrix.ids[e]]++;
        row[at] = static_cast<int32_t>(i);
        if (matrix.values) value[at] = static_cast<float>(matrix.values[e] / norms[i]);
      }
    }
  }
};

// A sparse accumulator: dense sums, and a list of those that were touched.
struct SparseSums {
  std::vector<double> sum;
  std::vector<int32_t> touched;  // in order of the first addition
  std::vector<uint8_t> is_touched;

  explicit SparseSums(size_t n) : sum(n, 0.0), is_touched(n, 0) {}
  void add(int32_t i, double x) {
    if (!is_touched[i]) {
      is_touched[i] = 1;
      touched.push_back(i);
    }
    sum[i] += x;
  }
  void clear() {
    for (const int32_t i : touched) sum[i] = 0, is_touched[i] = 0;
    touched.clear();
  }
};

// Consecutive rows of a sparse matrix, built by one thread.
struct BuiltRows {
  std::vector<int64_t> counts;  // by row
  std::vector<int32_t> ids;
  std::vector<float> values;

  void add(int32_t id, float value) {
    ids.push_back(id);
    values.push_back(value);
  }
};

// Concatenates the rows of all threads; frees each part once copied, to limit peak memory.
template <class Offsets, class Ids, class Values>
void concatenate(std::vector<BuiltRows>& parts, Offsets& begin, Ids& ids, Values& values) {
  begin.assign(1, 0);
  ids.clear();
  values.clear();
  for (BuiltRows& part : parts) {
    for (const int64_t count : part.counts) begin.push_back(begin.back() + count);
    ids.insert(ids.end(), part.ids.begin(), part.ids.end());
    values.insert(values.end(), part.values.begin(), part.values.end());
    part = {};
  }
}

// For each label, the norm of the sum of its rows to the power -`power`.
std::vector<float> centroid_shares(const Csr& x, const std::vector<double>& norms, size_t features, const Transposed& y,
                                   size_t labels, double power) {
  std::vector<float> share(labels, 0.0f);
  parallel_for(labels, [&](size_t first, size_t last, int) {
    SparseSums sums(features);
    for (size_t l = first; l < last; ++l) {
      for (int64_t k = y.begin[l]; k < y.begin[l + 1]; ++k) {
        const size_t row = y.row[k];
        for (int64_t e = x.offsets[row]; e < x.offsets[row + 1]; ++e) sums.add(x.ids[e], x.values[e] / norms[row]);
      }
      double square = 0;
      for (const int32_t i : sums.touched) square += sums.sum[i] * sums.sum[i];
      if (square > 0) share[l] = static_cast<float>(std::pow(square, -power / 2));
      sums.clear();
    }
  });
  return share;
}
}  // namespace

std::vector<double> row_norms(const Csr& x) {
  std::vector<double> norms(x.rows);
  parallel_each(x.rows, [&](size_t i) {
    double square = 0;
    for (int64_t e = x.offsets[i]; e < x.offsets[i + 1]; ++e) square += double{x.values[e]} * x.values[e];
    norms[i] = square > 0 ? std::sqrt(square) : 1.0;
  });
  return norms;
}

LabelPriorLists count_label_prior(const Csr& x, size_t features, const Csr& y, size_t labels, size_t max_labels,
                                  double power, bool skip_same, Stripe own) {
  const std::vector<double> norms = row_norms(x);
  const std::vector<float> share = centroid_shares(x, norms, features, Transposed(y, norms, labels), labels, power);
  const Transposed by_feature(x, norms, features);
  const int parts = threads();
  std::vector<BuiltRows> found(parts);
  parallel_for(features, 1, parts, [&](size_t first, size_t last, int thread) {
    BuiltRows& part = found[thread];
    SparseSums sums(labels);
    std::vector<std::pair<float, int32_t>> best;  // weight and label
    for (size_t i = first; i < last; ++i) {
      for (int64_t k = by_feature.begin[i]; k < by_feature.begin[i + 1]; ++k) {
        const int32_t row = by_feature.row[k];
        const double value = by_feature.value[k];
        for (int64_t e = y.offsets[row]; e < y.offsets[row + 1]; ++e) sums.add(y.ids[e], value);
      }
      best.clear();
      for (const int32_t l : sums.touched) {
        const auto weight = static_cast<float>(sums.sum[l]) * share[l];
        if (weight != 0 && !(skip_same && static_cast<size_t>(l) == i)) best.emplace_back(weight, l);
      }
      sums.clear();
      if (best.size() > max_labels) {  // ties to the lower label
        std::nth_element(best.begin(), best.begin() + max_labels, best.end(), [](const auto& a, const auto& b) {
          return a.first > b.first || (a.first == b.first && a.second < b.second);
        });
        best.resize(max_labels);
      }
      std::sort(best.begin(), best.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
      const size_t before = part.ids.size();
      for (const auto& [weight, label] : best) {
        if (own.contains(label)) part.add(own.to_local(label), weight);
      }
      part.counts.push_back(part.ids.size() - before);
    }
  });
  LabelPriorLists lists;
  lists.begin.reserve(features + 1);
  concatenate(found, lists.begin, lists.label, lists.weight);
  for (size_t l = own.first; l < labels; l += own.step) lists.share.push_back(share[l]);
  return lists;
}

LabelPrior::LabelPrior(const Csr& weights, const float* share, size_t neurons, float scale)
    : weights_(weights),
      share_(share),
      neurons_(neurons),
      scale_(scale),
      is_active_(neurons / 64 + 1, 0),
      position_(neurons) {}

void LabelPrior::add(const Csr& x, const double* norms, const Csr& own, float keep, ActiveSet& active) {
  const std::lock_guard<std::mutex> lock(in_use_);
  for (size_t p = 0; p < active.ids.size(); ++p) {
    const size_t neuron = active.ids[p];
    position_[neuron] = static_cast<int32_t>(p);
    is_active_[neuron / 64] |= uint64_t{1} << neuron % 64;
  }
  // Nearly all links lead to neurons that are not active. The bit set, unlike the positions, stays in L1/L2.
  const auto is_active = [&](size_t neuron) { return (is_active_[neuron / 64] >> neuron % 64 & 1) != 0; };
  const int parts = threads();
  std::vector<BuiltRows> found(parts);
  parallel_for(active.rows, 1, parts, [&](size_t first, size_t last, int thread) {
    BuiltRows& part = found[thread];
    std::vector<float> sum(active.ids.size(), 0.0f);
    std::vector<int64_t> row_of(active.ids.size(), -1);           // the last row that touched a position
    std::vector<int64_t> owner(own ? active.ids.size() : 0, -1);  // the last row with that label
    std::vector<int32_t> touched;
    for (size_t i = first; i < last; ++i) {
      const auto row = static_cast<int64_t>(i);
      if (own) {
        for (const int32_t* l = own.begin(i); l != own.end(i); ++l) {
          const size_t neuron = *l;
          if (is_active(neuron)) owner[position_[neuron]] = row;
        }
      }
      touched.clear();
      for (int64_t e = x.offsets[i]; e < x.offsets[i + 1]; ++e) {
        if (e + 2 * PREFETCH_DISTANCE < x.offsets[last]) {  // the links of a later feature, the offsets of one after
          const int32_t* const soon = weights_.begin(x.ids[e + PREFETCH_DISTANCE]);
          for (size_t line = 0; line < PREFETCH_LINES; ++line) __builtin_prefetch(soon + line * LINE, 0, 2);
          __builtin_prefetch(weights_.offsets + x.ids[e + 2 * PREFETCH_DISTANCE]);
        }
        const auto unit = static_cast<float>(x.values[e] / norms[i]);
        const float value = scale_ * unit, itself = keep * unit;
        for (int64_t k = weights_.offsets[x.ids[e]]; k < weights_.offsets[x.ids[e] + 1]; ++k) {
          const size_t neuron = weights_.ids[k];
          if (!is_active(neuron)) continue;
          const size_t p = position_[neuron];
          if (row_of[p] != row) {
            row_of[p] = row;
            sum[p] = 0;
            touched.push_back(static_cast<int32_t>(p));
          }
          const bool is_own = !owner.empty() && owner[p] == row;
          sum[p] += value * (is_own ? weights_.values[k] - itself * share_[neuron] : weights_.values[k]);
        }
      }
      for (const int32_t p : touched) part.add(p, sum[p]);
      part.counts.push_back(static_cast<int64_t>(touched.size()));
    }
  });
  for (const int32_t id : active.ids) is_active_[id / 64] = 0;
  concatenate(found, active.prior.begin, active.prior.position, active.prior.value);
}
}  // namespace dslide
