// Approximate prediction on one rank, in one pass from a row's features and hidden vector to its best labels.
#pragma once
#include <span>
#include "layers/dense_layer.hpp"
#include "layers/label_prior.hpp"

namespace dslide {
// The labels that the label prior leads rows to.
struct PriorOfRows {
  const LabelPrior* prior = nullptr;  // null: there is none
  Csr x = {};                         // features of the rows
  const double* norms = nullptr;      // (rows), divided by the boost
  size_t want = 0;                    // labels with the largest prior plus bias that are scored for a row
};

// The k largest logits of each row of h, (rows x stride), among the neurons of list `list_of[row]` of `cells` and those
// of the prior, without those in its list in `excluded` (ascending; a null view: none); ids and scores, (rows x k), as
// of DenseLayer::topk. It is what prior_candidates, join_candidates and topk_of_lists find, which ranks exchange
// between.
void topk_of_cells(const DenseLayer& layer, const float* h, const Csr& cells, std::span<const int32_t> list_of,
                   const PriorOfRows& prior, const Csr& excluded, size_t k, const Calibration& calibration,
                   int32_t* ids, float* scores);
}  // namespace dslide
