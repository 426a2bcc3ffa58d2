// Dropout: each value is set to 0 with probability p, else divided by (1 - p). The decision is a function of
// (seed, row, column), so the backward pass applies the same function to gradients.
#pragma once
#include "data/csr.hpp"
#include "runtime/rng.hpp"
#include "runtime/stripe.hpp"
#include "runtime/thread_pool.hpp"

namespace dslide {
inline float dropout_factor(uint64_t row_seed, size_t column, float p, float scale) {
  return unit_float(mix(row_seed ^ column)) < p ? 0.0f : scale;
}

// x: (rows x width), leading dimension `stride`. Its first row is row `first_row` of the batch; `columns_of` are its
// columns in the whole matrix.
inline void dropout(float* x, size_t rows, size_t width, size_t stride, float p, uint64_t seed, size_t first_row,
                    const Stripe& columns_of) {
  const float scale = 1 / (1 - p);
  parallel_each(rows, [&](size_t i) {
    const uint64_t row_seed = mix(seed, first_row + i);
    for (size_t j = 0; j < width; ++j) x[i * stride + j] *= dropout_factor(row_seed, columns_of.to_global(j), p, scale);
  });
}

// values: those of the elements of the sparse rows x, whose own values are not used.
inline void dropout(float* values, const Csr& x, float p, uint64_t seed) {
  const float scale = 1 / (1 - p);
  parallel_each(x.rows, [&](size_t i) {
    const uint64_t row_seed = mix(seed, i);
    for (int64_t e = x.offsets[i]; e < x.offsets[i + 1]; ++e) values[e] *= dropout_factor(row_seed, x.ids[e], p, scale);
  });
}
}  // namespace dslide
