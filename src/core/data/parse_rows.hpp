// Text to sparse rows: `label,label:weight feature:value feature ...`, one row per line.
//
// Works on a block of complete lines in memory. The caller reads, decompresses and splits into blocks, and formats
// error messages. Indices are returned as written (1-based files are not shifted): only the whole file shows the base.
#pragma once
#include <string>
#include <string_view>
#include "data/csr.hpp"

namespace dslide {
// Allowed indices, as written: low <= index < end.
struct IndexLimits {
  int64_t low, end;
};

struct ParseOptions {
  IndexLimits features, labels;
  bool comments;       // `#` starts a comment; a line with only a comment is not a row
  size_t chunk_bytes;  // approximate size of the unit of work
  int threads;
};

// The smallest and largest index, and the line (0-based, in the block) of its first occurrence.
struct IndexSeen {
  int64_t min = INT64_MAX, max = -1;
  int64_t min_line = 0, max_line = 0;

  // Adds later indices; `first_line` is added to their lines.
  void add(const IndexSeen& later, int64_t first_line = 0) {
    if (later.min < min) min = later.min, min_line = first_line + later.min_line;
    if (later.max > max) max = later.max, max_line = first_line + later.max_line;
  }
};

// One matrix: ids ascend within a row, duplicates are summed.
struct ParsedMatrix {
  CsrArrays csr;
  IndexSeen seen;
};

// Why a line is invalid. `not_finite` includes values too large for float32.
enum class Fault { none, label, label_range, label_weight, feature, feature_range, value, not_finite, sum_not_finite };

const char* name(Fault fault);

struct ParsedRows {
  ParsedMatrix x, y;
  size_t rows = 0, lines = 0;
  size_t blank_end = 0;  // trailing rows of the block whose lines are blank
  Fault fault = Fault::none;
  int64_t fault_line = 0;  // 0-based, in the block
  std::string fault_text;  // the invalid word, truncated if long
};

// `text` must be empty or end with a newline.
ParsedRows parse_rows(std::string_view text, const ParseOptions& options);
}  // namespace dslide
