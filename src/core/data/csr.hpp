// Compressed sparse rows (CSR), the form of all sparse data: features, labels, candidate lists, label priors.
#pragma once
#include <cstdint>
#include <memory>
#include <span>

namespace dslide {
// A view. Row i has the columns ids[offsets[i]] .. ids[offsets[i + 1] - 1] (scipy: indptr, indices, data).
struct Csr {
  size_t rows = 0;
  const int64_t* offsets = nullptr;  // (rows + 1); null: there is no matrix
  const int32_t* ids = nullptr;      // (nnz)
  const float* values = nullptr;     // (nnz); null: lists of ids without values

  explicit operator bool() const { return offsets != nullptr; }
  size_t nnz() const { return offsets[rows]; }
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

// Copies rows, for the batch of a training step: the rows `ids` of `from`, which may be a mapped file: its contents are
// not trusted. `nnz` is the length of its ids and values. Throws std::out_of_range for a row number that is out of
// range, std::runtime_error for invalid row offsets or an id that is not below `columns`.
CsrArrays gather_rows(const Csr& from, size_t nnz, int64_t columns, std::span<const int64_t> ids);
}  // namespace dslide
