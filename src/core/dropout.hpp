// Dropout: each value is set to 0 with chance p, else divided by (1 - p). Whether one is dropped depends on
// (seed, row, column) alone, so the backward pass repeats the forward one by calling the same function on gradients.
#pragma once
#include <cstddef>
#include <cstdint>

namespace dslide {

// x: rows x width, rows `stride` apart
void dropout(float* x, size_t rows, size_t width, size_t stride, float p, uint64_t seed);

// Sparse rows: values[offsets[i]] .. values[offsets[i + 1]] are in columns ids[...]
void dropout(float* values, const int64_t* offsets, const int32_t* ids, size_t rows, float p, uint64_t seed);

}  // namespace dslide
