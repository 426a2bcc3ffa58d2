// Counts occurrences of neurons in an open-addressing hash table. Its size depends on how many different neurons occur,
// not on the size of the layer, so it stays in L1/L2.
#pragma once
#include <bit>
#include <cstdint>
#include <vector>

namespace dslide {
class Counters {
 public:
  struct Entry {
    int32_t neuron = -1;  // -1: free
    uint32_t count = 0;
  };

  // Clears all counts and reserves capacity for `capacity` different neurons.
  void reset(size_t capacity) {
    if (2 * capacity > entries_.size()) {
      entries_.assign(std::bit_ceil(2 * capacity), Entry{});
      shift_ = 64 - std::countr_zero(entries_.size());
    } else {
      for (const uint32_t slot : used_) entries_[slot] = Entry{};
    }
    used_.clear();
  }

  // Increments a neuron's count and returns it.
  uint32_t add(int32_t neuron) {
    const size_t slot = slot_of(neuron);
    if (entries_[slot].neuron < 0) {
      entries_[slot].neuron = neuron;
      used_.push_back(static_cast<uint32_t>(slot));
    }
    return ++entries_[slot].count;
  }

  bool contains(int32_t neuron) const { return entries_[slot_of(neuron)].neuron == neuron; }

  size_t size() const { return used_.size(); }                            // different neurons
  const Entry& operator[](size_t i) const { return entries_[used_[i]]; }  // in order of first occurrence

 private:
  // The neuron's slot, or the free slot for it.
  size_t slot_of(int32_t neuron) const {
    size_t slot = static_cast<uint32_t>(neuron) * 0x9E3779B97F4A7C15ull >> shift_;
    while (entries_[slot].neuron != neuron && entries_[slot].neuron >= 0) slot = (slot + 1) & (entries_.size() - 1);
    return slot;
  }

  std::vector<Entry> entries_ = std::vector<Entry>(2);  // by hash; at least half of them free
  int shift_ = 63;
  std::vector<uint32_t> used_;  // slots
};
}  // namespace dslide
