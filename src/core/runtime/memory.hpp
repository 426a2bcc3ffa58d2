// Aligned memory. Arrays start at a cache line, because a vector load that straddles two lines takes twice as long.
// Large arrays request huge pages, because a TLB miss on a random address costs more than the access itself.
// Prefetches go into L2 and not L1: a core has far more outstanding misses to L2 than to L1.
//
// SIMD kernels use only the types of this file, no functions: see kernels/simd/vector.hpp.
#pragma once
#include <new>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace dslide {
constexpr size_t CACHE_LINE = 64;       // bytes
constexpr size_t HUGE_PAGE = 2u << 20;  // bytes; arrays of this size or more request huge pages

template <class T> struct AlignedAllocator {
  using value_type = T;
  AlignedAllocator() = default;
  template <class U> AlignedAllocator(const AlignedAllocator<U>&) {}

  static std::align_val_t alignment(size_t n) {
    return std::align_val_t{n * sizeof(T) < HUGE_PAGE ? CACHE_LINE : HUGE_PAGE};
  }
  T* allocate(size_t n) {
    T* p = static_cast<T*>(::operator new(n * sizeof(T), alignment(n)));
#if defined(__linux__)
    if (n * sizeof(T) >= HUGE_PAGE) madvise(p, n * sizeof(T) / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE);
#endif
    return p;
  }
  void deallocate(T* p, size_t n) { ::operator delete(p, alignment(n)); }
  bool operator==(const AlignedAllocator&) const { return true; }
};

template <class T> using Aligned = std::vector<T, AlignedAllocator<T>>;
using AlignedFloats = Aligned<float>;

// Leading dimension (in floats) of scratch matrices whose rows have `width` floats, a multiple of 16: an odd number of
// cache lines. With a power of two, a column's elements map to a few cache sets and evict each other, which costs
// matrix products a tenth of their speed.
constexpr size_t padded_stride(size_t width) { return (width / 16 | 1) * 16; }

struct CacheLines {
  const char* at;  // any address in the first line
  size_t lines;    // at least 1
};

// Memory that is needed soon. A matrix product prefetches a few lines of it at a time, so that the loads overlap with
// arithmetic; a plain loop of prefetches would stall.
struct PrefetchQueue {
  const CacheLines* next;  // taken several at a time, which works best if neighbours have equal lengths
  const CacheLines* end;
  size_t line = 0;  // lines of the current ones that were prefetched
};

inline void prefetch(const CacheLines& range) {
  for (size_t i = 0; i < range.lines; ++i) __builtin_prefetch(range.at + i * CACHE_LINE, 0, 2);
}
}  // namespace dslide
