// Label prior: direct connections from the input features to the output logits, beside the hidden layers.
//
// A hidden layer of a few hundred units cannot separate tens of thousands of features that each indicate a few of tens
// of thousands of labels. So each feature is linked to the labels it tells most about in the training data, and adds
// value * weight to their logits. A weight has two parts:
//   counted: the feature's component of the label's centroid (the sum of the rows that have the label, scaled to unit
//     norm), times a scale that is learned. Labels with about as many rows share a scale.
//   trained: begins at 0, and is trained by stochastic gradient descent, as a linear classifier's weights are.
//
// In training, a row's own contribution is subtracted from its labels' centroids. Otherwise the prior would reveal the
// labels of the rows it was counted on, and nothing would be left to learn: neither the scales nor the network.
#pragma once
#include <algorithm>
#include <array>
#include <bit>
#include <mutex>
#include <span>
#include <vector>
#include "data/csr.hpp"
#include "layers/active_set.hpp"
#include "layers/input_groups.hpp"
#include "layers/neuron_sums.hpp"
#include "runtime/memory.hpp"
#include "runtime/scratch_pool.hpp"
#include "runtime/stripe.hpp"

namespace dslide {
constexpr size_t PRIOR_SCALES = 32;
constexpr size_t SCORE_LINE = 16;  // neurons
// Whose scale a label with so many rows has: up to 3, 4 to 7, 8 to 15, ... A label with one row has nothing left in
// training, once that row's contribution is subtracted: it shares the scale of those with 2 or 3, and has no say in it.
inline size_t prior_bucket(int32_t rows) { return std::bit_width(static_cast<uint32_t>(std::max(rows, 2))); }
inline bool counts_for_scale(int32_t rows) { return rows > 1; }
using ScaleGradient = std::array<double, PRIOR_SCALES>;

// Links by feature: those of feature i are begin[i] .. begin[i + 1], by ascending label.
struct LabelPriorLists {
  Aligned<int64_t> begin;  // (features + 1)
  Aligned<int32_t> label;
  Aligned<float> weight;  // counted
  Aligned<float> share;   // by label: factor on the sum of its rows; 0 for a label without rows
  Aligned<int32_t> rows;  // by label: how many rows have it
};

// The L2 norm of each row of x; 1 for a zero row.
std::vector<double> row_norms(const Csr& x);

// Counts the prior of rows x (rows x features, scaled to unit norm) with labels y. A link's weight is the feature's
// component of the sum of the label's rows, divided by the norm of that sum to the `power`: 1 gives the centroid, less
// favours frequent labels. A feature is linked to `max_labels` labels, ties to the lower label: those with the largest
// weights, or with `by_gain` those it tells most about, with the largest n log(n N / (f l)): the gain in log-likelihood
// over independence, if n of N rows have both, f the feature and l the label. With `skip_same` never to the label with
// its own number. Returns only links to `own` labels, by local number.
LabelPriorLists count_label_prior(const Csr& x, size_t features, const Csr& y, size_t labels, size_t max_labels,
                                  double power, bool by_gain, bool skip_same, Stripe own);

// Views of a prior's arrays.
struct PriorArrays {
  Csr counted;          // (features x neurons)
  const float* share;   // (neurons)
  const int32_t* rows;  // (neurons)
  float* trained;       // by link
  bool is_trained;      // or there are no trained weights
  const float* scale;   // (PRIOR_SCALES)
  size_t neurons;
};

class LabelPrior {
 public:
  explicit LabelPrior(const PriorArrays& arrays);
  size_t features() const { return arrays_.counted.rows; }
  size_t neurons() const { return arrays_.neurons; }
  bool is_trained() const { return arrays_.is_trained; }

  // Sets active.prior to the sums over the row's features, with values divided by the row's norm in `norms`; features
  // of value 0 count for nothing, here and below. `own`, unless it is a null view, has the labels of each row, for
  // which the row's contribution is subtracted. `keep` is the share of features kept by dropout (which divided by it);
  // `norms` are those before dropout. `groups`, those of x, may be null, here and below.
  void add(const Csr& x, const double* norms, const Csr& own, float keep, ActiveSet& active,
           const GroupedInputs* groups);

  // The same for all neurons in prediction, by neuron in ascending order. Several threads may call it at once.
  PriorLogits logits(const Csr& x, const double* norms) const;

  // The same for one row, those to which its features add anything: `sum` of each slot of `sums`, which must be empty.
  void logits_of_row(const Csr& x, size_t row, double norm, NeuronSums& sums) const;

  // For each row the `count` neurons with the largest prior plus bias, of those to which its features add anything, and
  // except those in `own`: ids and keys, (rows x
  // count), best first; id -1 and key 0 where there are fewer. A larger key is a larger sum, to 13 bits; neurons of the
  // same sum are ordered at random by their number in the whole layer, whose stripe is `stripe`.
  void best(const Csr& x, const double* norms, const Csr& own, const float* bias, size_t count, Stripe stripe,
            int32_t* ids, uint32_t* keys, const GroupedInputs* groups);

  // One step on the trained weights, from the gradients in active.prior; returns the gradients of the scales. `rate`:
  // step size for the sum of the rows' gradients. No step moves a logit by more than about MOST_ROWS times what one row
  // could, or batches in which nearly all rows have the same label and the same features would diverge.
  ScaleGradient learn(const Csr& x, const double* norms, float rate, const ActiveSet& active,
                      const GroupedInputs* groups);

 private:
  void find_active(const ActiveSet& active);
  void forget_active(const ActiveSet& active);
  bool is_active(size_t neuron) const { return (is_active_[neuron / 64] >> neuron % 64 & 1) != 0; }
  float weighted(size_t neuron, float counted, float trained) const {
    return arrays_.scale[prior_bucket(arrays_.rows[neuron])] * counted + trained;
  }

  // What a row's links add up to, by neuron or by position in an active set.
  struct Sum {
    float counted = 0.0f, trained = 0.0f;
  };
  // Sums of which most are empty. The walk over links has no branches; reading and clearing visits what was added only.
  struct alignas(2 * CACHE_LINE) Sums {
    Aligned<Sum> sum;
    std::vector<uint64_t> added;   // a bit for each sum: whether anything was added
    std::vector<uint8_t> has_any;  // by word of `added`
    void resize(size_t n);
    void add(size_t i, float counted, float trained) {
      sum[i].counted += counted;
      sum[i].trained += trained;
      added[i / 64] |= uint64_t{1} << i % 64;
      has_any[i / 64] = 1;
    }
    void clear(size_t i) {
      sum[i] = {};
      added[i / 64] &= ~(uint64_t{1} << i % 64);
    }
    // use(i, sum) for the sums that are not empty, in ascending order; they become empty.
    template <class Use> void drain(const Use& use);
  };
  // The links of a batch's features that lead to active neurons, in the order of a group's inputs.
  struct alignas(2 * CACHE_LINE) ActiveLinks {
    struct Weights {
      int32_t position;  // in active.ids
      float counted, trained;
    };
    std::vector<size_t> begin;  // by input of the group; (inputs + 1)
    std::vector<int64_t> link;
    std::vector<Weights> weights;
  };
  // Links of a batch's features with both parts of their weights as one, in the order of a group's inputs.
  struct alignas(2 * CACHE_LINE) WeightedLinks {
    struct Link {
      int32_t neuron;
      float weight;
    };
    std::vector<size_t> begin;  // by input of the group; (inputs + 1)
    Aligned<Link> links;
  };
  // What a row's weighted links add up to, by neuron, and which lines of SCORE_LINE neurons have any.
  struct alignas(2 * CACHE_LINE) Scores {
    Aligned<float> sum;
    Aligned<uint64_t> touched;  // a byte for each line
  };
  void best_of_part(const Csr& x, const double* norms, const Csr& own, const float* bias, size_t count, Stripe stripe,
                    int32_t* ids, uint32_t* keys, const GroupedInputs* groups);
  void weigh_links(const Csr& x, const GroupedInputs* groups);
  void weigh_links_of(const InputGroups& group, WeightedLinks& found) const;
  void add_scores(const Csr& x, size_t row, double norm, Scores& scores) const;
  template <class Best> void drain_scores(Scores& scores, const float* bias, Stripe stripe, Best best) const;
  void use_groups(const Csr& x, const GroupedInputs* groups);
  void find_links(const Csr& x, const ActiveSet& active, const GroupedInputs* groups);
  void find_links_of(const InputGroups& group, ActiveLinks& found) const;
  std::span<const ActiveLinks::Weights> active_links_of(const Csr& x, int64_t element) const;
  void subtract_own(const Csr& x, size_t row, double norm, const Csr& own, float keep, bool all, Sums& sums) const;
  // use(link, neuron, value) for all links of the features of a row, whose value is not 0, divided by its norm.
  template <class Use> void each_link(const Csr& x, size_t row, size_t last, double norm, const Use& use) const;

  PriorArrays arrays_;
  mutable ScratchPool<Sums> free_sums_;    // of logits()
  std::mutex in_use_;                      // guards what follows
  std::vector<uint64_t> is_active_;        // a bit for each neuron: whether it is active; 0 between calls
  std::vector<int32_t> position_;          // by active neuron: position in active.ids
  AlignedFloats gradient_;                 // (rows x active): gradients of logits that the prior adds to
  const GroupedInputs* groups_ = nullptr;  // of the batch of this call: given, or
  GroupedInputs own_groups_;               // made here
  std::vector<ActiveLinks> active_links_;  // one per part of the groups, kept between calls, as what follows
  std::vector<WeightedLinks> weighted_links_;
  std::vector<uint8_t> bucket_of_;  // by link: whose scale its label has
  std::vector<Scores> scores_;
  uint64_t batch_ = 0;  // number of the batch of the active links, which its active set has too
  std::vector<Sums> sums_;
};
}  // namespace dslide
