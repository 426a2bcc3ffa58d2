// Candidates of approximate prediction: the labels that are scored for a row, out of lists that look-up gives.
#pragma once
#include <cstdint>
#include <span>
#include <vector>
#include "data/csr.hpp"
#include "layers/active_set.hpp"
#include "runtime/stripe.hpp"

namespace dslide {
// Neurons by row, ascending within a row.
struct CandidateLists {
  std::vector<int64_t> offsets;  // (rows + 1)
  std::vector<int32_t> neurons;
};

// An unsigned number that orders as the logit; of equal logits that of the lower neuron, by its number in the whole
// layer, is larger. Never 0; NaN is below all numbers.
uint64_t rank_key(float logit, size_t neuron);

// The least of the `want` largest keys, all of which differ; 0 if there are no more. `some`: scratch memory.
uint64_t least_of_best(std::span<const uint64_t> keys, size_t want, std::vector<uint64_t>& some);

// For each row the `want` neurons with the largest prior plus bias among those that the prior of all neurons scores,
// and in `keys` their rank keys. `stripe`: the layer's neurons that are here.
CandidateLists prior_candidates(const PriorLogits& prior, const float* bias, size_t want, Stripe stripe,
                                std::vector<uint64_t>& keys);

// For each row the neurons of list `list_of[row]` of `lists` and those of `more`, without those of `excluded`, each
// once. All lists ascend; `more` and `excluded` may be null views.
CandidateLists join_candidates(const Csr& lists, std::span<const int32_t> list_of, const Csr& more,
                               const Csr& excluded);
}  // namespace dslide
