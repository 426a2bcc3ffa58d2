// The best of given candidates; DenseLayer::topk finds the best of all neurons.
#pragma once
#include <cstddef>
#include <cstdint>

#include "active.hpp"

namespace dslide {

// The k highest scores of each row's list, best first, ties to the lower number: (rows x k) each. scores belong to
// lists.ids one by one. Where a list is shorter than k, the number is -1.
void topk_of_lists(const Lists& lists, const float* scores, size_t rows, size_t k, int32_t* best_ids,
                   float* best_scores);

}  // namespace dslide
