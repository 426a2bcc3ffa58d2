// Direct connections from inputs of a network to its outputs, beside the hidden layers.
//
// A hidden layer of a few hundred units can't keep apart tens of thousands of inputs that each stand for a few of tens
// of thousands of labels. Links can: an input is linked to the labels it goes together with most in the training data,
// and adds value * weight to their logits. Weights are those of the labels' centroids: the sum of the rows that have
// the label, scaled to length 1. They are counted, not trained; the network learns what they leave to explain.
//
// In training a row must not meet itself: its own share of its labels' centroids is taken off. Else links would know
// the labels of all rows they were counted on, and nothing would be left to learn.
#pragma once
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "layers/active_set.hpp"
#include "layers/sparse_layer.hpp"
#include "runtime/aligned.hpp"
#include "runtime/stripe.hpp"

namespace dslide {

// Links by input: those of input i are begin[i] .. begin[i + 1], by ascending label.
struct LinkLists {
  Aligned<int64_t> begin;  // inputs + 1
  Aligned<int32_t> label;
  Aligned<float> weight;
  Aligned<float> share;  // by label: what the sum of its rows is multiplied with; 0 for one without rows
};

// The Euclidean length of each row; 1 for one that has none.
std::vector<double> row_lengths(const int64_t* offsets, const float* values, size_t rows);

// Of rows of inputs, scaled to length 1, and the labels they have. A link's weight is the input's part of the sum of
// the label's rows, divided by the length of that sum to the `power`: with 1 that of the centroid, with less frequent
// labels count more. An input is linked to the `most` labels for which that is largest, ties to the lower label; with
// `skip_same` never to the label of its own number. Of these links only those to `own` labels are given, by their
// numbers among them.
LinkLists count_links(const SparseBatch& x, size_t inputs, const Lists& y, size_t labels, size_t rows, size_t most,
                      double power, bool skip_same, Stripe own);

class Links {
 public:
  // Views: begin (inputs + 1), neuron and weight by link, share (neurons). All weights are multiplied by `scale`.
  Links(const int64_t* begin, const int32_t* neuron, const float* weight, size_t inputs, const float* share,
        size_t neurons, float scale);
  size_t inputs() const { return inputs_; }
  size_t neurons() const { return neurons_; }

  // Sets active.added to what the links of a row's inputs add, values being divided by the row's length. `own`, if its
  // offsets are not null, has the labels of each row, from which its share is taken off; `keep` is the share of inputs
  // that dropout kept (and divided by), lengths being those before it.
  void add(const SparseBatch& x, const double* lengths, const Lists& own, float keep, ActiveSet& active);

 private:
  const int64_t* begin_;
  const int32_t* neuron_;
  const float* weight_;
  size_t inputs_;
  const float* share_;
  size_t neurons_;
  float scale_;
  std::mutex in_use_;                // of what follows
  std::vector<uint64_t> is_active_;  // a bit for each neuron: whether the active set at hand has it; 0 between calls
  std::vector<int32_t> position_;    // by neuron: where it has it
};

}  // namespace dslide
