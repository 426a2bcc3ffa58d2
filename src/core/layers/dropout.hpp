// Dropout: each value is set to 0 with probability p, else divided by (1 - p). The decision is a function of
// (seed, row, column), so the backward pass applies the same function to gradients.
#pragma once
#include "data/csr.hpp"
#include "runtime/stripe.hpp"

namespace dslide {

// x: (rows x width), leading dimension `stride`. Its first row is row `first_row` of the batch; `columns_of` are its
// columns in the whole matrix.
void dropout(float* x, size_t rows, size_t width, size_t stride, float p, uint64_t seed, size_t first_row,
             const Stripe& columns_of);

// values: those of the elements of the sparse rows x, whose own values are not used.
void dropout(float* values, const Csr& x, float p, uint64_t seed);

}  // namespace dslide
