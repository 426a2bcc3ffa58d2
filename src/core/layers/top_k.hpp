// The best neurons of a row by score.
#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

namespace dslide {
struct Scored {
  float score;
  int32_t id;
  // Better first; ties to the lower neuron.
  bool operator<(const Scored& other) const { return score > other.score || (score == other.score && id < other.id); }
};

// The k best so far, as a heap with the worst on top.
class TopK {
 public:
  void offer(Scored c, size_t k) {
    if (c.score != c.score) c.score = -std::numeric_limits<float>::infinity();  // NaN has no order
    if (heap_.size() < k) {
      heap_.push_back(c);
      std::push_heap(heap_.begin(), heap_.end());
    } else if (k > 0 && c < heap_.front()) {
      std::pop_heap(heap_.begin(), heap_.end());
      heap_.back() = c;
      std::push_heap(heap_.begin(), heap_.end());
    }
  }
  // The score that a new candidate must reach.
  float threshold(size_t k) const {
    return heap_.size() < k || k == 0 ? -std::numeric_limits<float>::infinity() : heap_.front().score;
  }
  const std::vector<Scored>& all() const { return heap_; }
  void clear() { heap_.clear(); }

 private:
  std::vector<Scored> heap_;
};

// Best first into one row of the results.
inline void write_row(std::vector<Scored>& found, size_t k, int32_t* ids, float* scores) {
  std::sort(found.begin(), found.end());
  for (size_t j = 0; j < k; ++j) {
    const bool is_there = j < found.size();
    ids[j] = is_there ? found[j].id : -1;
    scores[j] = is_there ? found[j].score : -std::numeric_limits<float>::infinity();
  }
}
}  // namespace dslide
