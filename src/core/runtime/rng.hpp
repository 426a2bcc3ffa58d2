// Counter-based random numbers: each value is a pure function of (seed, purpose).
//
// There is no generator state. So results do not depend on the order in which threads draw or on how neurons are
// distributed over ranks, and a resumed run needs no saved state.
#pragma once
#include <cstdint>

namespace dslide {
// Finaliser of splitmix64: a bijection of 64-bit words in which every output bit depends on every input bit.
inline uint64_t mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

inline uint64_t mix(uint64_t a, uint64_t b) { return mix(mix(a) ^ b); }
inline uint64_t mix(uint64_t a, uint64_t b, uint64_t c) { return mix(mix(a, b) ^ c); }

// Uniform in [0, 1) with 24 random bits.
inline float unit_float(uint64_t random) { return static_cast<float>(random >> 40) * 0x1p-24f; }

// Uniform in [0, n) for n < 2^32, without the bias or cost of a modulo.
inline uint32_t below(uint64_t random, uint32_t n) { return static_cast<uint32_t>(((random >> 32) * n) >> 32); }
}  // namespace dslide
