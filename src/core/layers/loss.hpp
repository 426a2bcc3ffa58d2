// Losses on logits that are laid out in the slots of an active set, and the labels they are held against.
//
// softmax: cross-entropy between the row's targets (summing to 1 over its labels) and the softmax over all neurons,
//   whose normaliser is estimated from the active ones with their weights.
// sigmoid: for every neuron an independent yes or no; a label's "yes" counts with its target as weight, an active
//   neuron's "no" with its sampling weight.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "layers/active_set.hpp"

namespace dslide {

// The batch's labels: row i has lists.ids[e] with weight targets[e], e from offsets[i]; found[e] is where the active
// set has it (ActiveSet::find). A label that is not found is left out.
struct Labels {
  Lists lists;
  const float* targets;
  const int64_t* found;
};

// Weights in proportion within a row: shares[e] = weights[e] over the sum of the row's.
void row_shares(const int64_t* offsets, size_t rows, const float* weights, float* shares);

// Adds the exponentials of the row's logits to its sum of exp(logit - reference), and raises the reference where need
// be (kernels.hpp); (rows) each. To begin with, the references are -infinity and the sums 0.
void softmax_stats(const ActiveSet& active, const float* z, float* reference, float* sum);

// Logits become scale * gradients; returns the loss summed over rows (not scaled). log_norm: (rows), the logarithm of
// the normaliser.
double softmax_gradient(const ActiveSet& active, float* z, const Labels& labels, const float* log_norm, float scale);
double sigmoid_gradient(const ActiveSet& active, float* z, const Labels& labels, float scale);

// Softmax losses of one label: the logit is what the label's neuron got, bias included.
inline double softmax_label_loss(float target, float logit, float log_norm) {
  return double{target} * (double{log_norm} - logit);
}
// A label's slot was treated as a "no" of weight `weight`: what to add so that it is a "yes" of weight `target`.
struct Correction {
  double loss;
  float gradient;
};
Correction sigmoid_label(float target, float weight, float logit);

}  // namespace dslide
