// Memory that is fast to reach. It begins at a cache line: a vector that straddles two lines takes twice as long to
// load. And large arrays ask the system for huge pages, since finding the page of a random address costs more than the
// access itself; where there are none, nothing is lost.
#pragma once
#include <cstddef>
#include <new>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace dslide {

constexpr size_t CACHE_LINE = 64;       // bytes
constexpr size_t HUGE_PAGE = 2u << 20;  // bytes; also the size from which an array counts as large

template <class T>
struct AlignedAllocator {
  using value_type = T;
  AlignedAllocator() = default;
  template <class U>
  AlignedAllocator(const AlignedAllocator<U>&) {}

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

template <class T>
using Aligned = std::vector<T, AlignedAllocator<T>>;
using AlignedFloats = Aligned<float>;

}  // namespace dslide
