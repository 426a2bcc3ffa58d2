// Text lines to sparse rows: `label,label:weight feature:value feature ...`, one row a line.
//
// Works on a block of complete lines in memory; reading, decompressing and cutting into blocks is the caller's, and so
// is turning an error into a sentence. Indices stay as they are written (nothing is subtracted for files counting
// from 1), since only the whole file tells.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace dslide {

// What indices may be as written: low <= index < end.
struct IndexLimits {
  int64_t low, end;
};

struct ParseOptions {
  IndexLimits features, labels;
  bool comments;       // `#` starts a comment; a line that is only a comment is no row
  size_t chunk_bytes;  // work is handed to threads in chunks of about this size
  int threads;
};

// The smallest and largest index that occurs, and the line (from 0, in the block) where it does first.
struct IndexSeen {
  int64_t min = INT64_MAX, max = -1;
  int64_t min_line = 0, max_line = 0;
};

// Rows of one matrix: indices of a row are increasing, duplicates are summed.
struct ParsedMatrix {
  std::unique_ptr<int64_t[]> indptr;   // (rows + 1)
  std::unique_ptr<int32_t[]> indices;  // (nnz)
  std::unique_ptr<float[]> values;     // (nnz)
  size_t nnz = 0;
  IndexSeen seen;
};

// Why a line can't be read. `not_finite` is also a value too large for a 32-bit float.
enum class Fault { none, label, label_range, label_weight, feature, feature_range, value, not_finite, sum_not_finite };

const char* name(Fault fault);

struct ParsedRows {
  ParsedMatrix x, y;
  size_t rows = 0, lines = 0;
  size_t blank_end = 0;  // rows at the end of the block whose lines are blank
  Fault fault = Fault::none;
  int64_t fault_line = 0;  // from 0, in the block
  std::string fault_text;  // the word at fault, cut if long
};

// `text` must be empty or end with a newline.
ParsedRows parse_rows(std::string_view text, const ParseOptions& options);

}  // namespace dslide
