// Codecs of the wire formats: a row of floats to values of fewer bits and back. encode() returns the row's scale.
#pragma once
#include <algorithm>
#include <bit>
#include <limits>
#include "runtime/bf16.hpp"

namespace dslide {
inline constexpr uint32_t ABS_MASK = 0x7fffffff, INFINITY_BITS = 0x7f800000;

struct Float32Codec {
  using Value = uint32_t;
  static constexpr size_t scale_bytes = 0;
  static bool is_zero(Value v) { return (v & ABS_MASK) == 0; }

  static float encode(const float* x, size_t n, Value* values) {
    for (size_t i = 0; i < n; ++i) values[i] = std::bit_cast<Value>(x[i]);
    return 1;
  }
  static void decode(const Value* values, size_t n, float, float* x) {
    for (size_t i = 0; i < n; ++i) x[i] = std::bit_cast<float>(values[i]);
  }
};

struct Bf16Codec {
  using Value = uint16_t;
  static constexpr size_t scale_bytes = 0;
  static bool is_zero(Value v) { return (v & 0x7fff) == 0; }

  static float encode(const float* x, size_t n, Value* values) {
    for (size_t i = 0; i < n; ++i) {
      const auto bits = std::bit_cast<uint32_t>(x[i]);
      const auto quiet_nan = static_cast<Value>((bits | 0x400000) >> 16);
      values[i] = (bits & ABS_MASK) > INFINITY_BITS ? quiet_nan : round_to_bf16(x[i]).bits;
    }
    return 1;
  }
  static void decode(const Value* values, size_t n, float, float* x) {
    for (size_t i = 0; i < n; ++i) x[i] = widen(Bf16{values[i]});
  }
};

struct Int8Codec {
  using Value = int8_t;
  static constexpr size_t scale_bytes = sizeof(float);
  static bool is_zero(Value v) { return v == 0; }

  // Smaller rows become zero. So a scale is never so small that flushing denormals would change a result.
  static constexpr float MIN_LARGEST = 0x1p-118f;

  static float encode(const float* x, size_t n, Value* values) {
    uint32_t largest = 0;  // absolute value as bits, which order like the floats, with NaN above all
    for (size_t i = 0; i < n; ++i) largest = std::max(largest, std::bit_cast<uint32_t>(x[i]) & ABS_MASK);
    if (largest >= INFINITY_BITS) {
      std::fill_n(values, n, Value{1});
      return std::numeric_limits<float>::quiet_NaN();
    }
    if (std::bit_cast<float>(largest) < MIN_LARGEST) {
      std::fill_n(values, n, Value{0});
      return 0;
    }
    const float scale = std::bit_cast<float>(largest) / 127;
    constexpr float magic = 12582912;  // 1.5 * 2^23: adding it rounds to an integer in the low bits
    for (size_t i = 0; i < n; ++i) values[i] = static_cast<Value>(std::bit_cast<uint32_t>(x[i] / scale + magic) & 0xff);
    return scale;
  }
  static void decode(const Value* values, size_t n, float scale, float* x) {
    for (size_t i = 0; i < n; ++i) x[i] = static_cast<float>(values[i]) * scale;
  }
};
}  // namespace dslide
