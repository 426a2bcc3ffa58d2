// Counts how often each of a few neurons was met. What it takes depends on how many are met, not on how many there are,
// so it stays in the nearest caches.
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace dslide {

class Counters {
 public:
  struct Entry {
    int32_t neuron = -1;  // -1: free
    uint32_t count = 0;
  };

  // Forgets all neurons, and makes room for so many different ones.
  void reset(size_t most) {
    if (2 * most > entries_.size()) {
      entries_.assign(std::bit_ceil(2 * most), Entry{});
      shift_ = 64 - std::countr_zero(entries_.size());
    } else {
      for (const uint32_t slot : used_) entries_[slot] = Entry{};
    }
    used_.clear();
  }

  // Counts a neuron once more; gives its count.
  uint32_t add(int32_t neuron) {
    const size_t slot = slot_of(neuron);
    if (entries_[slot].neuron < 0) {
      entries_[slot].neuron = neuron;
      used_.push_back(static_cast<uint32_t>(slot));
    }
    return ++entries_[slot].count;
  }

  bool has(int32_t neuron) const { return entries_[slot_of(neuron)].neuron == neuron; }

  size_t size() const { return used_.size(); }                            // different neurons
  const Entry& operator[](size_t i) const { return entries_[used_[i]]; }  // the i-th met first

 private:
  // Where the neuron is, or else the free slot where it belongs.
  size_t slot_of(int32_t neuron) const {
    size_t slot = static_cast<uint32_t>(neuron) * 0x9E3779B97F4A7C15ull >> shift_;
    while (entries_[slot].neuron != neuron && entries_[slot].neuron >= 0) slot = (slot + 1) & (entries_.size() - 1);
    return slot;
  }

  std::vector<Entry> entries_ = std::vector<Entry>(2);  // by hash; at least half of them free
  int shift_ = 63;
  std::vector<uint32_t> used_;
};

}  // namespace dslide
