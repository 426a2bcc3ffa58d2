// Remembers, in a table that stays in near caches, which neurons were the first to be met in their slots.
//
// A row meets a few thousand neurons, nearly all of them once. Those are done with when they have taken a slot; only
// the others, that find it taken, need counters.
#pragma once
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace dslide {

// Cuts a neuron's number in two: its lowest bits are its slot, the others a tag that tells it from others in the slot.
// Which neurons a row meets is up to chance, and so are their lowest bits.
struct SlotAndTag {
  int slot_bits = 1;

  explicit SlotAndTag(size_t neurons = 1) {
    const int bits = std::max(1, static_cast<int>(std::bit_width(neurons - 1)));
    slot_bits = std::min(bits, std::max(LEAST_SLOT_BITS, bits - MOST_TAG_BITS));
  }

  size_t slots() const { return size_t{1} << slot_bits; }
  size_t slot(int32_t neuron) const { return static_cast<uint32_t>(neuron) & (slots() - 1); }
  uint32_t tag(int32_t neuron) const { return (static_cast<uint32_t>(neuron) >> slot_bits) + 1; }  // not 0

 private:
  static constexpr int LEAST_SLOT_BITS = 15;  // 64 KB: few neurons find their slot taken by another
  static constexpr int MOST_TAG_BITS = 15;
};

class FirstMet {
 public:
  // Forgets all; the neurons to come are below `neurons`, which is at most 2^31.
  void reset(size_t neurons) {
    parts_ = SlotAndTag(neurons);
    tags_.assign(parts_.slots(), 0);
  }

  // Goes through `count` neurons and writes to `others` those that find their slot taken, by themselves or by another
  // one, which few do; returns the end of what was written.
  int32_t* meet(const int32_t* neurons, size_t count, int32_t* others) {
    const SlotAndTag of = parts_;
    uint16_t* tags = tags_.data();
    for (size_t i = 0; i < count; ++i) {
      const int32_t neuron = neurons[i];
      uint16_t& slot = tags[of.slot(neuron)];
      const uint32_t before = slot;
      slot = static_cast<uint16_t>(before ? before : of.tag(neuron));
      *others = neuron;
      others += before != 0;
    }
    return others;
  }

  // Whether the neuron was met, and was the first in its slot.
  bool holds(int32_t neuron) const { return tags_[parts_.slot(neuron)] == parts_.tag(neuron); }

 private:
  SlotAndTag parts_;
  std::vector<uint16_t> tags_ = std::vector<uint16_t>(2);  // by slot; 0: free
};

}  // namespace dslide
