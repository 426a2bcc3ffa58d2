// Numbers that are kept in memory as float or, to save half of it, as bf16. All arithmetic is done in float: numbers
// are widened when they are read and rounded when they are written.
//
// The vector kernels use no function of this file, for the reason that kernels_vector.hpp gives.
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>

namespace dslide {

// The upper half of a float: its range, with 8 significant bits.
struct Bf16 {
  uint16_t bits;
};

// Two bf16 side by side, the first in the lower half.
struct BfPair {
  uint32_t bits;
};

inline float widen(Bf16 x) { return std::bit_cast<float>(uint32_t{x.bits} << 16); }

// The nearest bf16 of a finite number, of two as near the even one.
inline Bf16 nearest(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  return {static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16)};
}

// A view of numbers stored in one of the two ways; null if there are none.
struct Numbers {
  void* data = nullptr;
  bool is_half = false;  // bf16

  explicit operator bool() const { return data != nullptr; }
  float* floats() const { return static_cast<float*>(data); }  // only if they are
  Bf16* halves() const { return static_cast<Bf16*>(data); }    // only if they are

  float operator[](size_t i) const { return is_half ? widen(halves()[i]) : floats()[i]; }
  void set_nearest(size_t i, float x) const {
    if (is_half) {
      halves()[i] = nearest(x);
    } else {
      floats()[i] = x;
    }
  }
  size_t bytes_each() const { return is_half ? sizeof(Bf16) : sizeof(float); }

  // Those from the i-th on; none of none.
  Numbers from(size_t i) const { return {data ? static_cast<char*>(data) + i * bytes_each() : nullptr, is_half}; }
};

}  // namespace dslide
