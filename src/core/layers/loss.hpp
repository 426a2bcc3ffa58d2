// Losses on logits stored in the slots of an active set.
//
// softmax: cross-entropy between the row's targets (summing to 1 over its labels) and the softmax over all neurons,
//   whose normaliser is estimated from the active neurons with their sampling weights.
// sigmoid: a binary classification per neuron; a label is weighted by its target, others by their sampling weight.
#pragma once
#include "layers/active_set.hpp"

namespace dslide {
// The batch's labels: lists.values are the targets; found[e] is where the active set has label e (ActiveSet::find), or
// -1: such a label is skipped.
struct Labels {
  Csr lists;
  const int64_t* found;
};

// Normalises the values of each row to a sum of 1.
void row_shares(const Csr& weights, float* shares);

// Accumulates each row's sum of exp(logit - reference) and raises its reference where needed (kernels.hpp); both
// (rows). Initially references are -infinity and sums 0.
void softmax_stats(const ActiveSet& active, const float* z, float* reference, float* sum);

// Overwrites logits with scale * gradients; returns the loss summed over rows (not scaled). log_norm: (rows),
// logarithms of the normalisers.
double softmax_gradient(const ActiveSet& active, float* z, const Labels& labels, const float* log_norm, float scale);
double sigmoid_gradient(const ActiveSet& active, float* z, const Labels& labels, float scale);

// Softmax loss of one label; `logit` includes the bias.
inline double softmax_label_loss(float target, float logit, float log_norm) {
  return double{target} * (double{log_norm} - logit);
}
// The kernels treat every slot as a negative. For a label: what to add to turn a negative of weight `weight` into a
// positive of weight `target`.
struct Correction {
  double loss;
  float gradient;
};
Correction sigmoid_label(float target, float weight, float logit);
}  // namespace dslide
