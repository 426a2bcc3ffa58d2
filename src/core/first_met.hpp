// Remembers, in a table that stays in the nearest cache, which neurons were the first to be met in their slots.
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

// Cuts a number that is different for every neuron in two: its slot, and a tag that tells it from others in the slot.
struct FirstMetHash {
  int bits = 1, tag_bits = 0;

  explicit FirstMetHash(size_t neurons = 1) : bits(std::max(1, static_cast<int>(std::bit_width(neurons - 1)))) {
    tag_bits = bits - std::min(bits, std::max(LEAST_SLOT_BITS, bits - MOST_TAG_BITS));
  }

  size_t slots() const { return size_t{1} << (bits - tag_bits); }
  size_t slot(int32_t neuron) const { return number(neuron) >> tag_bits; }
  uint32_t tag(int32_t neuron) const { return (number(neuron) & ((uint32_t{1} << tag_bits) - 1)) + 1; }  // not 0

 private:
  static constexpr int LEAST_SLOT_BITS = 13;  // 16 KB
  static constexpr int MOST_TAG_BITS = 15;

  // Multiplying by an odd number only changes the order of the neurons below 2^bits.
  uint32_t number(int32_t neuron) const {
    return static_cast<uint32_t>(neuron) * 0x9E3779B1u & ((uint32_t{1} << bits) - 1);
  }
};

class FirstMet {
 public:
  // Forgets all; the neurons to come are below `neurons`, which is at most 2^31.
  void reset(size_t neurons) {
    hash_ = FirstMetHash(neurons);
    tags_.assign(hash_.slots(), 0);
  }

  // Goes through `count` neurons and writes to `others` those that find their slot taken, by themselves or by another
  // one; returns the end of what was written. No branches: they could not be foretold.
  int32_t* meet(const int32_t* neurons, size_t count, int32_t* others) {
    const FirstMetHash hash = hash_;
    uint16_t* tags = tags_.data();
    for (size_t i = 0; i < count; ++i) {
      const int32_t neuron = neurons[i];
      uint16_t& slot = tags[hash.slot(neuron)];
      const uint32_t before = slot, taken = before != 0;
      slot = static_cast<uint16_t>(before | (hash.tag(neuron) & (taken - 1)));
      *others = neuron;
      others += taken;
    }
    return others;
  }

  // Whether the neuron was met, and was the first in its slot.
  bool holds(int32_t neuron) const { return tags_[hash_.slot(neuron)] == hash_.tag(neuron); }

 private:
  FirstMetHash hash_;
  std::vector<uint16_t> tags_ = std::vector<uint16_t>(2);  // by slot; 0: free
};

}  // namespace dslide
