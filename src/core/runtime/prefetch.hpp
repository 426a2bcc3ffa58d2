// Software prefetch into the L2 cache. L2 and not L1: a core has far more outstanding misses to L2 than to L1.
//
// SIMD kernels use only the types of this file, no functions: see kernels/simd/vector.hpp.
#pragma once
#include "runtime/aligned.hpp"

namespace dslide {

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
