// Random negatives: neurons that are active by chance, and the weights that make sums over them unbiased.
#pragma once
#include <cstdint>
#include <vector>
#include "runtime/stripe.hpp"

namespace dslide {
struct RandomNegatives {
  size_t count = 0;  // neurons drawn uniformly, with replacement, for the batch (shared set) or for each row
  uint64_t seed = 0;
  bool correct = true;                 // false: all weights are 1, as in the SLIDE paper
  size_t neurons = 0;                  // of the whole layer, from which is drawn
  Stripe own = {};                     // neurons of this rank; others are skipped
  const float* probability = nullptr;  // (own neurons): each is chosen with its own probability, instead of `count`
};

// Neurons of this rank, ascending, and their log-weights: log(1 / inclusion probability), or 0 without correction.
struct ChosenNegatives {
  std::vector<int32_t> ids;
  std::vector<float> log_weight;
};

// `own_neurons` are those of this rank. What is chosen depends on the seed and a neuron's number in the whole layer
// only, not on the number of ranks or threads.
ChosenNegatives choose(const RandomNegatives& negatives, uint64_t seed, size_t own_neurons);

// Sorts numbers that are not negative and removes repetitions.
void sort_unique(std::vector<int32_t>& values);
}  // namespace dslide
