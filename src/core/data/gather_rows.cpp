#include <algorithm>
#include <cstring>
#include "data/csr.hpp"
#include "runtime/checks.hpp"
#include "runtime/thread_pool.hpp"

namespace dslide {
namespace {
constexpr size_t MIN_PARALLEL = 1 << 15;  // values; for fewer, a copy takes less time than waking threads

// The offsets of the selected rows, checked, and memory for their elements.
CsrArrays allocate_rows(const Csr& from, int64_t nnz, std::span<const int64_t> ids) {
  const auto rows = static_cast<int64_t>(from.rows);
  CsrArrays out(ids.size());
  out.offsets[0] = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    const int64_t row = ids[i];
    if (row < 0 || row >= rows) throw std::out_of_range(text("there is no row ", row, " among ", rows));
    const int64_t begin = from.offsets[row], end = from.offsets[row + 1];
    if (begin < 0 || begin > end || end > nnz) throw std::runtime_error(text("row ", row, " has damaged bounds"));
    out.offsets[i + 1] = out.offsets[i] + (end - begin);
  }
  out.allocate(out.offsets[ids.size()]);
  return out;
}

void copy_rows(const Csr& from, int64_t columns, std::span<const int64_t> ids, const CsrArrays& out, Range rows) {
  for (size_t i = rows.begin; i < rows.end; ++i) {
    const int64_t source = from.offsets[ids[i]], target = out.offsets[i];
    const size_t count = out.offsets[i + 1] - target;
    if (i + 1 < rows.end) {  // rows are far apart: prefetch the first lines of the next one
      const int64_t next = from.offsets[ids[i + 1]];
      __builtin_prefetch(from.ids + next);
      __builtin_prefetch(from.values + next);
    }
    uint32_t largest = 0;  // a negative id is huge as unsigned
    for (size_t k = 0; k < count; ++k) {
      const int32_t id = from.ids[source + k];
      largest = std::max(largest, static_cast<uint32_t>(id));
      out.ids[target + k] = id;
    }
    if (count > 0) std::memcpy(out.values.get() + target, from.values + source, count * sizeof(float));
    if (count > 0 && largest >= columns) {
      throw std::runtime_error(text("row ", ids[i], " has an index that is not below ", columns));
    }
  }
}
}  // namespace

CsrArrays gather_rows(const Csr& from, size_t nnz, int64_t columns, std::span<const int64_t> ids) {
  CsrArrays out = allocate_rows(from, static_cast<int64_t>(nnz), ids);
  if (out.nnz < MIN_PARALLEL) {
    copy_rows(from, columns, ids, out, {0, ids.size()});
  } else {
    parallel_for(ids.size(), [&](size_t begin, size_t end, int) { copy_rows(from, columns, ids, out, {begin, end}); });
  }
  return out;
}
}  // namespace dslide
