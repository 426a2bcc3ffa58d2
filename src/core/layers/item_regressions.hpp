// Regressions of items on other items of the same users: linear classifiers for interactions. For an item j they
// minimise, over weights w of other items,
//   |w|^2 / 2 + cost * sum_u (r_uj - sum_i w_i r_ui)^2 / sqrt(n_u)
// where r_ui is 1 if user u has item i, else 0, and n_u is how many items the user has. Only the items that would each
// reduce the error most alone have weights (after SLIM, Ning and Karypis 2011, and EASE, Steck 2019).
#pragma once
#include "layers/linear_classifiers.hpp"

namespace dslide {
struct RegressionOptions {
  float cost;
  size_t items;    // with weights in a regression, at most
  size_t entries;  // (user, item) pairs that a regression uses, about, at most: with more, a sample of the users
};

// `users` lists the items of each user, `numbers` the items that are regressed on others. Biases are 0. Results don't
// depend on how items are distributed over ranks or threads.
LinearWeights regress_items(const Csr& users, size_t items, const int32_t* numbers, size_t count,
                            const RegressionOptions& options);
}  // namespace dslide
