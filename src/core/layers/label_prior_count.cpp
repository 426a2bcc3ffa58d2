#include <algorithm>
#include <cmath>
#include <numeric>
#include "layers/built_rows.hpp"
#include "layers/label_prior.hpp"
#include "runtime/thread_pool.hpp"

namespace dslide {
namespace {
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

// A sparse accumulator: dense sums, how many terms each has, and a list of those that have any.
struct SparseSums {
  std::vector<double> sum;
  std::vector<int32_t> terms;
  std::vector<int32_t> touched;  // in order of the first addition

  explicit SparseSums(size_t n) : sum(n, 0.0), terms(n, 0) {}
  void add(int32_t i, double x) {
    if (terms[i]++ == 0) touched.push_back(i);
    sum[i] += x;
  }
  void clear() {
    for (const int32_t i : touched) sum[i] = 0, terms[i] = 0;
    touched.clear();
  }
};

// A candidate link of a feature.
struct Candidate {
  double gain;
  float weight;
  int32_t label;
};

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
                                  double power, bool by_gain, bool skip_same, Stripe own) {
  const std::vector<double> norms = row_norms(x);
  const Transposed by_label(y, norms, labels), by_feature(x, norms, features);
  const std::vector<float> share = centroid_shares(x, norms, features, by_label, labels, power);
  const auto rows_of = [](const Transposed& lists, size_t i) {
    return static_cast<double>(lists.begin[i + 1] - lists.begin[i]);
  };
  const auto rows = static_cast<double>(x.rows);
  const int parts = threads();
  std::vector<BuiltRows> found(parts);
  parallel_for(features, 1, parts, [&](size_t first, size_t last, int thread) {
    BuiltRows& part = found[thread];
    SparseSums sums(labels);
    std::vector<Candidate> best;
    for (size_t i = first; i < last; ++i) {
      for (int64_t k = by_feature.begin[i]; k < by_feature.begin[i + 1]; ++k) {
        const int32_t row = by_feature.row[k];
        const double value = by_feature.value[k];
        for (int64_t e = y.offsets[row]; e < y.offsets[row + 1]; ++e) sums.add(y.ids[e], value);
      }
      best.clear();
      for (const int32_t l : sums.touched) {
        const auto weight = static_cast<float>(sums.sum[l]) * share[l];
        if (weight == 0 || (skip_same && static_cast<size_t>(l) == i)) continue;
        double gain = weight;
        if (by_gain) {
          const auto both = static_cast<double>(sums.terms[l]);
          gain = both * std::log(both * rows / (rows_of(by_feature, i) * rows_of(by_label, l)));
        }
        best.push_back({gain, weight, l});
      }
      sums.clear();
      if (best.size() > max_labels) {  // ties to the lower label
        std::nth_element(best.begin(), best.begin() + max_labels, best.end(), [](const auto& a, const auto& b) {
          return a.gain > b.gain || (a.gain == b.gain && a.label < b.label);
        });
        best.resize(max_labels);
      }
      std::sort(best.begin(), best.end(), [](const auto& a, const auto& b) { return a.label < b.label; });
      const size_t before = part.ids.size();
      for (const Candidate& c : best) {
        if (own.contains(c.label)) part.add(static_cast<int32_t>(own.to_local(c.label)), c.weight);
      }
      part.counts.push_back(static_cast<int64_t>(part.ids.size() - before));
    }
  });
  LabelPriorLists lists;
  lists.begin.reserve(features + 1);
  concatenate(found, lists.begin, lists.label, lists.weight);
  for (size_t own_label = 0, l; (l = own.to_global(own_label)) < labels; ++own_label) {
    lists.share.push_back(share[l]);
    lists.rows.push_back(static_cast<int32_t>(rows_of(by_label, l)));
  }
  return lists;
}
}  // namespace dslide
