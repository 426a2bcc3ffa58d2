// Dropout: each value is set to 0 with chance p, else divided by (1 - p). Whether one is dropped depends on
// (seed, row, column) alone, so the backward pass repeats the forward one by calling the same function on gradients.
#pragma once
#include <cstddef>
#include <cstdint>

#include "runtime/stripe.hpp"

namespace dslide {

// x: rows x width, rows `stride` apart; its first row is row `first_row` of the batch, and `columns_of` says which
// columns of the whole matrix it has
void dropout(float* x, size_t rows, size_t width, size_t stride, float p, uint64_t seed, size_t first_row,
             const Stripe& columns_of);

// Sparse rows: values[offsets[i]] .. values[offsets[i + 1]] are in columns ids[...]
void dropout(float* values, const int64_t* offsets, const int32_t* ids, size_t rows, float p, uint64_t seed);

}  // namespace dslide
