// Separates first occurrences of neurons from possible repeats, with a direct-mapped table small enough for L1/L2.
//
// A row retrieves a few thousand neurons, nearly all of them once. Those are handled by taking a slot; only neurons
// that find their slot occupied need exact counters.
#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

namespace dslide {
// Splits a neuron's number: its lowest bits are the slot, the others a tag that identifies it in the slot. The lowest
// bits are as good as a hash, because the neurons that a row retrieves are random.
struct SlotAndTag {
  int slot_bits = 1;

  explicit SlotAndTag(size_t neurons = 1) {
    const int bits = std::max(1, static_cast<int>(std::bit_width(neurons - 1)));
    slot_bits = std::min(bits, std::max(MIN_SLOT_BITS, bits - MAX_TAG_BITS));
  }

  size_t slots() const { return size_t{1} << slot_bits; }
  size_t slot(int32_t neuron) const { return static_cast<uint32_t>(neuron) & (slots() - 1); }
  uint32_t tag(int32_t neuron) const { return (static_cast<uint32_t>(neuron) >> slot_bits) + 1; }  // not 0

 private:
  static constexpr int MIN_SLOT_BITS = 15;  // 64 KB: few collisions
  static constexpr int MAX_TAG_BITS = 15;
};

class SeenFilter {
 public:
  // Clears the filter, for neurons below `neurons`, which is at most 2^31.
  void reset(size_t neurons) {
    split_ = SlotAndTag(neurons);
    tags_.assign(split_.slots(), 0);
  }

  // Inserts `count` neurons. Writes those whose slot was occupied, by themselves or by another neuron, to `repeats`;
  // returns the end of what was written.
  int32_t* insert(const int32_t* neurons, size_t count, int32_t* repeats) {
    const SlotAndTag split = split_;
    uint16_t* tags = tags_.data();
    for (size_t i = 0; i < count; ++i) {
      const int32_t neuron = neurons[i];
      uint16_t& slot = tags[split.slot(neuron)];
      const uint32_t before = slot;
      slot = static_cast<uint16_t>(before ? before : split.tag(neuron));
      *repeats = neuron;
      repeats += before != 0;
    }
    return repeats;
  }

  // Whether the neuron was inserted and owns its slot.
  bool owns_slot(int32_t neuron) const { return tags_[split_.slot(neuron)] == split_.tag(neuron); }

 private:
  SlotAndTag split_;
  std::vector<uint16_t> tags_ = std::vector<uint16_t>(2);  // by slot; 0: free
};
}  // namespace dslide
