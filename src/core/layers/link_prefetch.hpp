// Prefetches for a walk over the links of a batch's features, which are at random places in memory. How far ahead of
// the walk is counted in links: on one rank of many a feature has few, and a few features are too short a time.
#pragma once
#include <vector>
#include "data/csr.hpp"
#include "runtime/memory.hpp"

namespace dslide {
class LinkPrefetch {
 public:
  // `most`: links that are prefetched and not visited yet, at least.
  LinkPrefetch(const Csr& links, const std::vector<int32_t>& inputs, int64_t most)
      : links_(links), inputs_(inputs), most_(most) {}

  // The links of the next input are visited now; calls fetch(first link, count) for inputs that come soon.
  template <class Fetch> void advance(const Fetch& fetch) {
    for (; next_ < inputs_.size() && ahead_ < most_; ++next_) {
      const int64_t first = links_.offsets[inputs_[next_]], count = links_.offsets[inputs_[next_] + 1] - first;
      if (count > 0) fetch(first, count);
      ahead_ += count;
    }
    ahead_ -= links_.offsets[inputs_[visited_] + 1] - links_.offsets[inputs_[visited_]];
    ++visited_;
  }

 private:
  const Csr& links_;
  const std::vector<int32_t>& inputs_;
  int64_t most_, ahead_ = 0;
  size_t next_ = 0, visited_ = 0;
};

// Into L2: all cache lines of `count` numbers.
template <class T> void prefetch_numbers(const T* numbers, int64_t count) {
  const auto* const end = reinterpret_cast<const char*>(numbers + count);
  const auto first = reinterpret_cast<uintptr_t>(numbers) / CACHE_LINE * CACHE_LINE;
  for (const auto* line = reinterpret_cast<const char*>(first); line < end; line += CACHE_LINE) {
    __builtin_prefetch(line, 0, 2);
  }
}
}  // namespace dslide
