// Copies selected rows of a CSR matrix: the batch of a training step.
#pragma once
#include <span>
#include "data/csr.hpp"

namespace dslide {

// The rows `ids` of `from`, which may be a mapped file: its contents are not trusted. `nnz` is the length of its ids
// and values. Throws std::out_of_range for a row number that is out of range, std::runtime_error for invalid row
// offsets or an id that is not below `columns`.
CsrArrays gather_rows(const Csr& from, size_t nnz, int64_t columns, std::span<const int64_t> ids);

}  // namespace dslide
