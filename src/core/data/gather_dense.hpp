// Rows of a matrix for the batch of a training step, as floats.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

namespace dslide {
enum class Stored { float16, float32, float64 };

// A row-major matrix that may be a mapped file.
struct StoredMatrix {
  const void* data;
  Stored type;
  size_t rows, columns;
};

// Row i of `out` (leading dimension ld, at least the columns) becomes row ids[i] of the matrix, and 0 from there on.
// Throws std::out_of_range for a row number that is out of range.
void gather_dense(const StoredMatrix& from, std::span<const int64_t> ids, float* out, size_t ld);
}  // namespace dslide
