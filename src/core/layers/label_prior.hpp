// Label prior: direct connections from the input features to the output logits, beside the hidden layers.
//
// A hidden layer of a few hundred units cannot separate tens of thousands of features that each indicate a few of tens
// of thousands of labels. So each feature is linked to the labels it co-occurs with most in the training data, and adds
// value * weight to their logits. A weight is the feature's component of the label's centroid: the sum of the rows that
// have the label, scaled to unit norm. Weights are counted, not trained; the network learns the residual.
//
// In training, a row's own contribution is subtracted from its labels' centroids. Otherwise the prior would reveal the
// labels of the rows it was counted on, and nothing would be left to learn.
#pragma once
#include <mutex>
#include <vector>
#include "data/csr.hpp"
#include "layers/active_set.hpp"
#include "runtime/memory.hpp"
#include "runtime/stripe.hpp"

namespace dslide {
// Links by feature: those of feature i are begin[i] .. begin[i + 1], by ascending label.
struct LabelPriorLists {
  Aligned<int64_t> begin;  // (features + 1)
  Aligned<int32_t> label;
  Aligned<float> weight;
  Aligned<float> share;  // by label: factor on the sum of its rows; 0 for a label without rows
};

// The L2 norm of each row of x; 1 for a zero row.
std::vector<double> row_norms(const Csr& x);

// Counts the prior of rows x (rows x features, scaled to unit norm) with labels y. A link's weight is the feature's
// component of the sum of the label's rows, divided by the norm of that sum to the `power`: 1 gives the centroid, less
// favours frequent labels. A feature is linked to the `max_labels` labels with the largest weights, ties to the lower
// label; with `skip_same` never to the label with its own number. Returns only links to `own` labels, by local number.
LabelPriorLists count_label_prior(const Csr& x, size_t features, const Csr& y, size_t labels, size_t max_labels,
                                  double power, bool skip_same, Stripe own);

class LabelPrior {
 public:
  // Views: weights (features x neurons), share (neurons). All weights are multiplied by `scale`.
  LabelPrior(const Csr& weights, const float* share, size_t neurons, float scale);
  size_t features() const { return weights_.rows; }
  size_t neurons() const { return neurons_; }

  // Sets active.prior to the sums over the row's features, with values divided by the row's norm in `norms`. `own`,
  // unless it is a null view, has the labels of each row, for which the row's contribution is subtracted. `keep` is the
  // share of features kept by dropout (which divided by it); `norms` are those before dropout.
  void add(const Csr& x, const double* norms, const Csr& own, float keep, ActiveSet& active);

 private:
  Csr weights_;
  const float* share_;
  size_t neurons_;
  float scale_;
  std::mutex in_use_;                // guards what follows
  std::vector<uint64_t> is_active_;  // a bit for each neuron: whether it is active; 0 between calls
  std::vector<int32_t> position_;    // by active neuron: position in active.ids
};
}  // namespace dslide
