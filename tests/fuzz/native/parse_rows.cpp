// Any bytes as lines of text. Whatever they are: parsed in one piece or in small ones, by one thread or two, the result
// is the same, ids ascend and are within their limits, and values are finite.
#include "data/parse_rows.hpp"
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>

using namespace dslide;

namespace {
void check(bool holds) {
  if (!holds) abort();
}

void check_matrix(const ParsedMatrix& m, const ParsedMatrix& other, size_t rows, const IndexLimits& limits) {
  const CsrArrays &a = m.csr, &b = other.csr;
  check(a.rows == rows && b.rows == rows && a.nnz == b.nnz);
  check(a.offsets[0] == 0 && a.offsets[rows] == int64_t(a.nnz));
  check(!memcmp(a.offsets.get(), b.offsets.get(), 8 * (rows + 1)));
  check(!a.nnz || (!memcmp(a.ids.get(), b.ids.get(), 4 * a.nnz) && !memcmp(a.values.get(), b.values.get(), 4 * a.nnz)));
  check(m.seen.min == other.seen.min && m.seen.max == other.seen.max);
  check(m.seen.min_line == other.seen.min_line && m.seen.max_line == other.seen.max_line);
  for (size_t row = 0; row < rows; ++row) {
    check(a.offsets[row] <= a.offsets[row + 1]);
    for (int64_t i = a.offsets[row]; i < a.offsets[row + 1]; ++i) {
      check(limits.low <= a.ids[i] && a.ids[i] < limits.end && std::isfinite(a.values[i]));
      check(i == a.offsets[row] || a.ids[i - 1] < a.ids[i]);
    }
  }
}
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const uint8_t how = data[0];
  // a copy of exactly this size: the address sanitizer sees the first byte that is read beyond it
  const std::string text = std::string(reinterpret_cast<const char*>(data) + 1, size - 1) + "\n";
  const IndexLimits features{how & 1, how & 2 ? 10 : (1ll << 31) - 1}, labels{how & 1, how & 4 ? 3 : (1ll << 31) - 1};
  ParseOptions options{features, labels, (how & 8) != 0, size_t{1} << 18, 1};
  const ParsedRows whole = parse_rows(text, options);
  options.chunk_bytes = 1 + how / 16;
  options.threads = 2;
  const ParsedRows parts = parse_rows(text, options);
  check(whole.fault == parts.fault);
  if (whole.fault != Fault::none) {
    check(whole.fault_line == parts.fault_line && whole.fault_text == parts.fault_text);
    return 0;
  }
  check(whole.rows == parts.rows && whole.lines == parts.lines && whole.blank_end == parts.blank_end);
  check_matrix(whole.x, parts.x, whole.rows, features);
  check_matrix(whole.y, parts.y, whole.rows, labels);
  return 0;
}
