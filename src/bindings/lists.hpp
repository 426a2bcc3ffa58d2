// Stripes, CSR lists and sparse rows as arguments, checked.
#pragma once
#include <algorithm>
#include <stdexcept>

#include "bindings.hpp"
#include "layers/active_set.hpp"
#include "layers/sparse_layer.hpp"

namespace dslide {

inline void require(bool condition, const char* what) {
  if (!condition) throw std::invalid_argument(what);
}

inline Stripe stripe(size_t first, size_t step) {
  require(first < step, "a stripe's first must be below its step");
  return {first, step};
}

// How many rows there are, of offsets that begin at 0, never fall and end with the number of `elements`.
inline size_t check_offsets(const In<int64_t, 1>& offsets, size_t elements) {
  require(offsets.shape(0) > 0, "offsets must have one element more than there are rows");
  const size_t rows = offsets.shape(0) - 1;
  require(offsets(0) == 0 && static_cast<size_t>(offsets(rows)) == elements, "offsets don't span the ids");
  for (size_t i = 0; i < rows; ++i) require(offsets(i) <= offsets(i + 1), "offsets fall");
  return rows;
}

// CSR lists whose offsets begin at 0, never fall and end within `ids`, and whose ids are below `bound`.
inline Lists lists(const In<int64_t, 1>& offsets, const In<int32_t, 1>& ids, size_t rows, size_t bound) {
  require(check_offsets(offsets, ids.shape(0)) == rows, "offsets must have one element more than there are rows");
  const int32_t* id = ids.data();
  uint32_t largest = 0;  // a number below zero is huge here; no branch, so that the compiler makes vectors of it
  for (size_t e = 0; e < ids.shape(0); ++e) largest = std::max(largest, static_cast<uint32_t>(id[e]));
  require(ids.shape(0) == 0 || largest < std::min<size_t>(bound, 0x80000000u), "an id is out of range");
  return {offsets.data(), id};
}

inline SparseBatch batch(const In<int64_t, 1>& offsets, const In<int32_t, 1>& ids, const In<float, 1>& values,
                         size_t rows, size_t bound) {
  require(ids.shape(0) == values.shape(0), "as many values as ids are needed");
  const Lists l = lists(offsets, ids, rows, bound);
  return {l.offsets, l.ids, values.data()};
}

}  // namespace dslide
