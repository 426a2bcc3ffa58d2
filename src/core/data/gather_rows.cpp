#include "data/gather_rows.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "runtime/thread_pool.hpp"

namespace dslide {
namespace {

// Fewer values than this are copied sooner than other threads are woken.
constexpr int64_t worth_threads = 1 << 15;

void copy_rows(const CsrView& from, std::span<const int64_t> ids, std::span<const int64_t> indptr,
               std::span<int32_t> indices, std::span<float> values, size_t begin, size_t end) {
  for (size_t i = begin; i < end; ++i) {
    const auto source = static_cast<size_t>(from.indptr[static_cast<size_t>(ids[i])]);
    const auto target = static_cast<size_t>(indptr[i]);
    const auto count = static_cast<size_t>(indptr[i + 1] - indptr[i]);
    if (i + 1 < end) {  // rows lie far apart: ask for the next one's first lines now
      const auto next = static_cast<size_t>(from.indptr[static_cast<size_t>(ids[i + 1])]);
      __builtin_prefetch(from.indices.data() + next);
      __builtin_prefetch(from.values.data() + next);
    }
    uint32_t largest = 0;  // an index below zero is huge here
    for (size_t k = 0; k < count; ++k) {
      const int32_t index = from.indices[source + k];
      largest = std::max(largest, static_cast<uint32_t>(index));
      indices[target + k] = index;
    }
    if (count > 0) std::memcpy(&values[target], &from.values[source], count * sizeof(float));
    if (count > 0 && largest >= from.columns) {
      throw std::runtime_error("row " + std::to_string(ids[i]) + " has an index that is not below " +
                               std::to_string(from.columns));
    }
  }
}

}  // namespace

void gather_bounds(const CsrView& from, std::span<const int64_t> ids, std::span<int64_t> indptr) {
  const auto rows = static_cast<int64_t>(from.indptr.size()) - 1;
  const auto nnz = static_cast<int64_t>(std::min(from.indices.size(), from.values.size()));
  indptr[0] = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    const int64_t row = ids[i];
    if (row < 0 || row >= rows) {
      throw std::out_of_range("there is no row " + std::to_string(row) + " among " + std::to_string(rows));
    }
    const int64_t begin = from.indptr[static_cast<size_t>(row)], end = from.indptr[static_cast<size_t>(row) + 1];
    if (begin < 0 || begin > end || end > nnz) {
      throw std::runtime_error("row " + std::to_string(row) + " has damaged bounds");
    }
    indptr[i + 1] = indptr[i] + (end - begin);
  }
}

void gather_rows(const CsrView& from, std::span<const int64_t> ids, std::span<const int64_t> indptr,
                 std::span<int32_t> indices, std::span<float> values) {
  if (indptr[ids.size()] < worth_threads) return copy_rows(from, ids, indptr, indices, values, 0, ids.size());
  run_parts(ids.size(),
            [&](size_t begin, size_t end, int) { copy_rows(from, ids, indptr, indices, values, begin, end); });
}

}  // namespace dslide
