// Working memory that begins at a cache line: a vector that straddles two lines takes twice as long to load.
#pragma once
#include <cstddef>
#include <new>
#include <vector>

namespace dslide {

constexpr size_t CACHE_LINE = 64;  // bytes

template <class T>
struct AlignedAllocator {
  using value_type = T;
  AlignedAllocator() = default;
  template <class U>
  AlignedAllocator(const AlignedAllocator<U>&) {}
  T* allocate(size_t n) { return static_cast<T*>(::operator new(n * sizeof(T), std::align_val_t{CACHE_LINE})); }
  void deallocate(T* p, size_t) { ::operator delete(p, std::align_val_t{CACHE_LINE}); }
  bool operator==(const AlignedAllocator&) const { return true; }
};

using AlignedFloats = std::vector<float, AlignedAllocator<float>>;

}  // namespace dslide
