#include "data/parse_rows.hpp"
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>
#include "data/parse_decimal.hpp"
#include "runtime/thread_pool.hpp"

namespace dslide {
namespace {
bool is_space(char c) { return c == ' ' || c == '\t'; }

// At the end of a line's content; every line ends with a newline, so `p + 1` exists behind a carriage return.
bool at_line_end(const char* p) { return *p == '\n' || (*p == '\r' && p[1] == '\n'); }

// Buffer for one matrix of a chunk. An entry takes at least two bytes of text ("7 "), so the capacity is known in
// advance; memory that is not written is never paged in.
struct RowBuilder {
  explicit RowBuilder(size_t bytes) : ids(new int32_t[bytes / 2 + 1]), values(new float[bytes / 2 + 1]) {}

  void add(int64_t index, float value) {
    increasing = increasing && index > last;
    last = index;
    ids[nnz] = static_cast<int32_t>(index);
    values[nnz++] = value;
  }

  // Sorts the row if needed and sums duplicates; false if a sum is not finite.
  bool end_row(int64_t line) {
    if (!increasing && !sort_row()) return false;
    if (nnz > row_begin) {
      seen.add({ids[row_begin], ids[nnz - 1], line, line});
    }
    ends.push_back(static_cast<int64_t>(nnz));
    row_begin = nnz;
    last = -1;
    increasing = true;
    return true;
  }

  bool sort_row() {
    pairs.clear();
    for (size_t i = row_begin; i < nnz; ++i) pairs.emplace_back(ids[i], values[i]);
    std::stable_sort(pairs.begin(), pairs.end(), [](auto& a, auto& b) { return a.first < b.first; });
    nnz = row_begin;
    for (const auto& [index, value] : pairs) {
      if (nnz > row_begin && ids[nnz - 1] == index) {
        values[nnz - 1] += value;
        if (!std::isfinite(values[nnz - 1])) return false;
      } else {
        ids[nnz] = index;
        values[nnz++] = value;
      }
    }
    return true;
  }

  std::unique_ptr<int32_t[]> ids;
  std::unique_ptr<float[]> values;
  std::vector<int64_t> ends;  // by row
  std::vector<std::pair<int32_t, float>> pairs;
  size_t nnz = 0, row_begin = 0;
  int64_t last = -1;
  bool increasing = true;
  IndexSeen seen;
};

class TextChunk {
 public:
  explicit TextChunk(std::string_view text) : x(text.size()), y(text.size()), text_(text) {}

  void parse(const ParseOptions& options) {
    const char* p = text_.data();
    for (const char* const end = p + text_.size(); p < end && fault == Fault::none; ++lines) {
      p = parse_line(p, options);
    }
  }

  RowBuilder x, y;
  int64_t lines = 0;  // complete lines; after a fault, the last one counted has it
  size_t blank_end = 0;
  Fault fault = Fault::none;
  std::string fault_text;

 private:
  // Returns the beginning of the next line.
  const char* parse_line(const char* const line, const ParseOptions& options) {
    const char* p = line;
    if (!is_space(*p) && !at_line_end(p) && !(options.comments && *p == '#')) {
      for (;; ++p) {
        p = parse_label(p, options.labels);
        if (fault != Fault::none) return p;
        if (*p != ',') break;
      }
    }
    bool words = p > line;
    for (;; words = true) {
      while (is_space(*p)) ++p;
      if (at_line_end(p) || (options.comments && *p == '#')) break;
      p = parse_feature(p, options.features);
      if (fault != Fault::none) return p;
    }
    const bool comment = *p == '#';
    if (comment) p = static_cast<const char*>(std::memchr(p, '\n', text_.data() + text_.size() - p));
    if (words || !comment) {
      if (!x.end_row(lines) || !y.end_row(lines)) return fail(Fault::sum_not_finite, line);
      blank_end = words ? 0 : blank_end + 1;
    }
    return p + (*p == '\r' ? 2 : 1);
  }

  const char* parse_label(const char* const begin, const IndexLimits& limits) {
    const char* p = begin;
    int64_t index;
    if (!scan_index(p, index)) return fail(Fault::label, begin, ',');
    float weight = 1;
    if (*p == ':') {
      const Fault bad = scan_value(++p, weight);
      if (bad != Fault::none) return fail(bad, begin, ',');
    }
    if (*p != ',' && !is_space(*p) && !at_line_end(p)) return fail(Fault::label, begin, ',');
    if (index < limits.low || index >= limits.end) return fail(Fault::label_range, begin, ',');
    if (weight < 0) return fail(Fault::label_weight, begin, ',');
    if (weight > 0) y.add(index, weight);
    return p;
  }

  const char* parse_feature(const char* const begin, const IndexLimits& limits) {
    const char* p = begin;
    int64_t index;
    if (!scan_index(p, index)) return fail(Fault::feature, begin);
    float value = 1;
    if (*p == ':') {
      const Fault bad = scan_value(++p, value);
      if (bad != Fault::none) return fail(bad, begin);
      if (!is_space(*p) && !at_line_end(p)) return fail(Fault::value, begin);
    } else if (!is_space(*p) && !at_line_end(p)) {
      return fail(Fault::feature, begin);
    }
    if (index < limits.low || index >= limits.end) return fail(Fault::feature_range, begin);
    x.add(index, value);
    return p;
  }

  // An integer, possibly negative (to report it as out of range and not as malformed).
  static bool scan_index(const char*& p, int64_t& out) {
    const bool negative = *p == '-';
    p += negative;
    const char* const begin = p;
    uint64_t number = 0;
    for (; is_digit(*p); ++p) number = number * 10 + static_cast<uint64_t>(*p - '0');
    // Overflows beyond 19 digits; 18 digits are already out of any range.
    out = p - begin <= 18 ? static_cast<int64_t>(number) : std::numeric_limits<int64_t>::max();
    if (negative) out = -std::max<int64_t>(out, 1);
    return p > begin;
  }

  static Fault scan_value(const char*& p, float& out) {
    const char* const begin = p;
    switch (scan_float(p, out)) {
      case ParseResult::ok: return Fault::none;
      case ParseResult::too_large: return Fault::not_finite;
      case ParseResult::malformed: break;
    }
    const char* word = begin + (*begin == '-' || *begin == '+');
    const auto spells = [word](const char* lower) {  // reads no further than the newline
      return (word[0] | 0x20) == lower[0] && (word[1] | 0x20) == lower[1] && (word[2] | 0x20) == lower[2];
    };
    return spells("nan") || spells("inf") ? Fault::not_finite : Fault::value;
  }

  const char* fail(Fault kind, const char* begin, char stop = '\n') {
    const char* end = begin;
    while (!is_space(*end) && !at_line_end(end) && *end != stop && end - begin < 60) ++end;
    fault = kind;
    fault_text.assign(begin, end);
    return begin;
  }

  std::string_view text_;
};

// Splits into pieces of about `size` bytes, at line ends.
std::vector<std::string_view> cut(std::string_view text, size_t size) {
  std::vector<std::string_view> pieces;
  while (!text.empty()) {
    const size_t target = std::max<size_t>(size, 1);
    const size_t length = target >= text.size() ? text.size() : text.find('\n', target - 1) + 1;
    pieces.push_back(text.substr(0, length));
    text.remove_prefix(length);
  }
  return pieces;
}

// Concatenates one matrix of all chunks (`first_line`: that of each chunk in the block).
ParsedMatrix join(std::vector<TextChunk>& chunks, RowBuilder TextChunk::* which, const std::vector<int64_t>& first_line,
                  int threads) {
  std::vector<size_t> first_row, first_value;
  size_t rows = 0, nnz = 0;
  IndexSeen seen;
  for (size_t i = 0; i < chunks.size(); ++i) {
    const RowBuilder& chunk = chunks[i].*which;
    first_row.push_back(rows);
    first_value.push_back(nnz);
    rows += chunk.ends.size();
    nnz += chunk.nnz;
    seen.add(chunk.seen, first_line[i]);
  }
  CsrArrays csr(rows);
  csr.allocate(nnz);
  csr.offsets[0] = 0;
  parallel_for(chunks.size(), 1, threads, [&](size_t begin, size_t end, int) {
    for (size_t i = begin; i < end; ++i) {
      const RowBuilder& chunk = chunks[i].*which;
      const auto offset = static_cast<int64_t>(first_value[i]);
      int64_t* ends = csr.offsets.get() + first_row[i] + 1;
      for (size_t row = 0; row < chunk.ends.size(); ++row) ends[row] = chunk.ends[row] + offset;
      std::copy_n(chunk.ids.get(), chunk.nnz, csr.ids.get() + offset);
      std::copy_n(chunk.values.get(), chunk.nnz, csr.values.get() + offset);
    }
  });
  return {std::move(csr), seen};
}
}  // namespace

const char* name(Fault fault) {
  constexpr const char* names[] = {"none",          "label", "label_range", "label_weight",  "feature",
                                   "feature_range", "value", "not_finite",  "sum_not_finite"};
  return names[static_cast<size_t>(fault)];
}

ParsedRows parse_rows(std::string_view text, const ParseOptions& options) {
  std::vector<TextChunk> chunks;
  for (const std::string_view piece : cut(text, options.chunk_bytes)) chunks.emplace_back(piece);
  parallel_for(chunks.size(), 1, options.threads, [&](size_t begin, size_t end, int) {
    for (size_t i = begin; i < end; ++i) chunks[i].parse(options);
  });

  ParsedRows out;
  std::vector<int64_t> first_line;
  int64_t lines = 0;
  for (TextChunk& chunk : chunks) {
    if (chunk.fault != Fault::none) {
      out.fault = chunk.fault;
      out.fault_line = lines + chunk.lines - 1;
      out.fault_text = std::move(chunk.fault_text);
      return out;
    }
    const size_t rows = chunk.x.ends.size();
    first_line.push_back(lines);
    lines += chunk.lines;
    out.rows += rows;
    out.blank_end = chunk.blank_end + (chunk.blank_end == rows ? out.blank_end : 0);
  }
  out.lines = lines;
  out.x = join(chunks, &TextChunk::x, first_line, options.threads);
  out.y = join(chunks, &TextChunk::y, first_line, options.threads);
  return out;
}
}  // namespace dslide
