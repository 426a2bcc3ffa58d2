// Chosen rows of a sparse matrix, copied together: what a training step reads of its batch.
#pragma once
#include <cstdint>
#include <span>

namespace dslide {

// A CSR matrix in someone else's memory, perhaps a mapped file: nothing about its contents is trusted.
struct CsrView {
  std::span<const int64_t> indptr;   // (rows + 1)
  std::span<const int32_t> indices;  // (nnz)
  std::span<const float> values;     // (nnz)
  int64_t columns;
};

// Writes the bounds of the gathered rows into `indptr` (ids.size() + 1); the last is the number of values. Throws
// std::out_of_range for a row that there is not, std::runtime_error for row bounds that are damaged.
void gather_bounds(const CsrView& from, std::span<const int64_t> ids, std::span<int64_t> indptr);

// Copies the rows. Throws std::runtime_error if an index is not below `columns`.
void gather_rows(const CsrView& from, std::span<const int64_t> ids, std::span<const int64_t> indptr,
                 std::span<int32_t> indices, std::span<float> values);

}  // namespace dslide
