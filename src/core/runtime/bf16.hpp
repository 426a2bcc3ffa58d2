// bf16, and arrays stored as float32 or as bf16 to halve their memory. All arithmetic is in float32: values are widened
// on load and rounded on store.
//
// SIMD kernels use only the types of this file, no functions: see kernels/simd/vector.hpp.
#pragma once
#include <bit>
#include <cstdint>

namespace dslide {
// The upper half of a float32: the same range, 8 significant bits.
struct Bf16 {
  uint16_t bits;
};

// Two adjacent bf16, the first in the lower half.
struct Bf16Pair {
  uint32_t bits;
};

inline float widen(Bf16 x) { return std::bit_cast<float>(uint32_t{x.bits} << 16); }

// Rounds a finite number to nearest even.
inline Bf16 round_to_bf16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  return {static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16)};
}

// A view of an array stored as float32 or bf16; null if there is none.
struct StoredArray {
  void* data = nullptr;
  bool is_bf16 = false;

  explicit operator bool() const { return data != nullptr; }
  float* as_float() const { return static_cast<float*>(data); }  // only if !is_bf16
  Bf16* as_bf16() const { return static_cast<Bf16*>(data); }     // only if is_bf16

  float operator[](size_t i) const { return is_bf16 ? widen(as_bf16()[i]) : as_float()[i]; }
  void set(size_t i, float x) const {
    if (is_bf16) {
      as_bf16()[i] = round_to_bf16(x);
    } else {
      as_float()[i] = x;
    }
  }
  size_t item_bytes() const { return is_bf16 ? sizeof(Bf16) : sizeof(float); }

  // The elements from the i-th on; null stays null.
  StoredArray from(size_t i) const { return {data ? static_cast<char*>(data) + i * item_bytes() : nullptr, is_bf16}; }
};
}  // namespace dslide
