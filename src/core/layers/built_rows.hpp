// Rows of a sparse matrix that several threads build.
#pragma once
#include <cstdint>
#include <vector>

namespace dslide {
// Consecutive rows of a sparse matrix, built by one thread.
struct BuiltRows {
  std::vector<int64_t> counts;  // by row
  std::vector<int32_t> ids;
  std::vector<float> values;

  void add(int32_t id, float value) {
    ids.push_back(id);
    values.push_back(value);
  }
};

// Concatenates the rows of all threads; frees each part once copied, to limit peak memory.
template <class Offsets, class Ids, class Values>
void concatenate(std::vector<BuiltRows>& parts, Offsets& begin, Ids& ids, Values& values) {
  begin.assign(1, 0);
  ids.clear();
  values.clear();
  for (BuiltRows& part : parts) {
    for (const int64_t count : part.counts) begin.push_back(begin.back() + count);
    ids.insert(ids.end(), part.ids.begin(), part.ids.end());
    values.insert(values.end(), part.values.begin(), part.values.end());
    part = {};
  }
}
}  // namespace dslide
