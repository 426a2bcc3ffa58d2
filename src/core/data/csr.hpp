// Compressed sparse rows (CSR), the form of all sparse data: features, labels, candidate lists, label priors.
#pragma once
#include <cstdint>
#include <memory>

namespace dslide {

// A view. Row i has the columns ids[offsets[i]] .. ids[offsets[i + 1] - 1] (scipy: indptr, indices, data).
struct Csr {
  size_t rows = 0;
  const int64_t* offsets = nullptr;  // (rows + 1); null: there is no matrix
  const int32_t* ids = nullptr;      // (nnz)
  const float* values = nullptr;     // (nnz); null: lists of ids without values

  explicit operator bool() const { return offsets != nullptr; }
  size_t nnz() const { return static_cast<size_t>(offsets[rows]); }
  const int32_t* begin(size_t row) const { return ids + offsets[row]; }
  const int32_t* end(size_t row) const { return ids + offsets[row + 1]; }
};

// A matrix that owns its memory, which is allocated uninitialised: first the offsets, then the elements.
struct CsrArrays {
  CsrArrays() = default;
  explicit CsrArrays(size_t rows_) : rows(rows_), offsets(new int64_t[rows + 1]) {}
  void allocate(size_t count) {
    nnz = count;
    ids.reset(new int32_t[count]);
    values.reset(new float[count]);
  }

  size_t rows = 0, nnz = 0;
  std::unique_ptr<int64_t[]> offsets;  // (rows + 1)
  std::unique_ptr<int32_t[]> ids;      // (nnz)
  std::unique_ptr<float[]> values;     // (nnz)
};

}  // namespace dslide
