// Sorting by counting: several times faster than comparing for the thousands of numbers that a batch has.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace dslide {

// Sorts by key(item), a 32-bit number of at most `largest`, stably; `other` is working memory.
template <class T, class Key>
void radix_sort(std::vector<T>& items, std::vector<T>& other, uint32_t largest, const Key& key) {
  constexpr int BITS = 11;  // of the key at a time
  constexpr size_t VALUES = size_t{1} << BITS;
  other.resize(items.size());
  for (int shift = 0; shift < 32 && (largest >> shift) != 0; shift += BITS) {
    size_t begin[VALUES + 1] = {};
    for (const T& item : items) ++begin[((key(item) >> shift) & (VALUES - 1)) + 1];
    for (size_t i = 0; i < VALUES; ++i) begin[i + 1] += begin[i];
    for (const T& item : items) other[begin[(key(item) >> shift) & (VALUES - 1)]++] = item;
    items.swap(other);
  }
}

}  // namespace dslide
