// Radix sort: several times faster than a comparison sort for the thousands of keys in a batch.
#pragma once
#include <cstdint>
#include <vector>

namespace dslide {
// Stable sort by key(item), a 32-bit number of at most `largest`. `scratch` is working memory.
template <class T, class Key>
void radix_sort(std::vector<T>& items, std::vector<T>& scratch, uint32_t largest, const Key& key) {
  constexpr int BITS = 11;  // of the key per pass
  constexpr size_t VALUES = size_t{1} << BITS;
  scratch.resize(items.size());
  for (int shift = 0; shift < 32 && (largest >> shift) != 0; shift += BITS) {
    size_t begin[VALUES + 1] = {};
    for (const T& item : items) ++begin[((key(item) >> shift) & (VALUES - 1)) + 1];
    for (size_t i = 0; i < VALUES; ++i) begin[i + 1] += begin[i];
    for (const T& item : items) scratch[begin[(key(item) >> shift) & (VALUES - 1)]++] = item;
    items.swap(scratch);
  }
}
}  // namespace dslide
