// Sums for a few of many neurons.
#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>
#include "runtime/memory.hpp"

namespace dslide {
// A hash table whose size follows from how much is added, not from how many neurons there are, so that it stays in the
// L2 cache. Neighbours get neighbouring slots.
class NeuronSums {
 public:
  struct Slot {
    int32_t neuron = NONE;
    float sum = 0, second = 0;
    bool is_chosen = false;
  };

  // Before up to `most` additions; the table must be empty.
  void reserve(size_t most) {
    const size_t size = std::bit_ceil(most + most / 3 + 1);
    if (slots_.size() < size) slots_.assign(size, {});
    if (used_.size() < most + 1) used_.resize(most + 1);
    mask_ = size - 1;
  }
  // Adds of(j), two numbers, for each of `count` neurons. Whether a neuron is new can't be predicted, so that there is
  // no branch for it.
  template <class Of> void add(const int32_t* neurons, size_t count, const Of& of) {
    Slot* const slots = slots_.data();
    uint32_t* next = used_.data() + count_;
    for (size_t j = 0; j < count; ++j) {
      const size_t at = place(neurons[j]);
      Slot& slot = slots[at];
      *next = static_cast<uint32_t>(at);
      next += slot.neuron == NONE;
      const auto [sum, second] = of(j);
      slot = {neurons[j], slot.sum + sum, slot.second + second, false};
    }
    count_ = static_cast<size_t>(next - used_.data());
  }
  // The slot of a neuron; null if nothing was added for it.
  Slot* find(int32_t neuron) {
    Slot& slot = slots_[place(neuron)];
    return slot.neuron == NONE ? nullptr : &slot;
  }
  size_t size() const { return count_; }
  // In the order in which neurons came.
  Slot& operator[](size_t i) { return slots_[used_[i]]; }
  void clear() {
    for (size_t i = 0; i < count_; ++i) slots_[used_[i]] = {};
    count_ = 0;
  }

 private:
  static constexpr int32_t NONE = -1;

  size_t place(int32_t neuron) const {
    size_t at = static_cast<size_t>(neuron) & mask_;
    while ((slots_[at].neuron != neuron) & (slots_[at].neuron != NONE)) at = (at + 1) & mask_;
    return at;
  }

  Aligned<Slot> slots_ = Aligned<Slot>(1);
  std::vector<uint32_t> used_ = std::vector<uint32_t>(1);  // slots, and room for one more
  size_t mask_ = 0, count_ = 0;
};
}  // namespace dslide
