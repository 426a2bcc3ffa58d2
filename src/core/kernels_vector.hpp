// What the fast kernels share: a vector type whose width follows from the level a file is compiled for. Kernels are
// written once over it.
//
// Only plain types and functions with internal linkage in here and in the files of kernels: an inline function of a
// library header, compiled there with AVX-512, could be picked by the linker for the whole program and end it on an
// older CPU. For the same reason nothing is initialised at load time.
#pragma once
#include <math.h>
#include <string.h>

#include "kernels.hpp"

namespace dslide {
namespace DSLIDE_LEVEL {

// Sets the kernels of kernels_stored.cpp.
void add_stored(Kernels& table);

namespace {

#if defined(__AVX512F__)
constexpr size_t W = 16;  // floats in a vector
#elif defined(__AVX2__)
constexpr size_t W = 8;
#else
constexpr size_t W = 4;
#endif

typedef float V __attribute__((vector_size(W * sizeof(float))));
typedef int32_t I __attribute__((vector_size(W * sizeof(int32_t))));

inline V load(const float* p) {
  V v;
  memcpy(&v, p, sizeof v);
  return v;
}
inline void store(float* p, V v) { memcpy(p, &v, sizeof v); }
inline V splat(float x) { return x - V{}; }  // not x + V{}: adding 0 changes -0, so the compiler could not drop it

// Lane i is lane from[i] of a, or of a and b one after the other.
#if defined(__clang__)
template <class X, class Lanes>
inline X shuffled(X a, X b, Lanes from) {
  constexpr size_t count = sizeof(X) / sizeof(a[0]);
  X out;
  for (size_t i = 0; i < count; ++i) {
    const auto lane = static_cast<size_t>(from[i]);
    out[i] = lane < count ? a[lane] : b[lane - count];
  }
  return out;
}
template <class X, class Lanes>
inline X shuffled(X a, Lanes from) {
  return shuffled(a, a, from);
}
#else
template <class X, class Lanes>
inline X shuffled(X a, X b, Lanes from) {
  return __builtin_shuffle(a, b, from);
}
template <class X, class Lanes>
inline X shuffled(X a, Lanes from) {
  return __builtin_shuffle(a, from);
}
#endif

inline V vsqrt(V v) {
  float x[W];
  store(x, v);
  for (size_t i = 0; i < W; ++i) x[i] = sqrtf(x[i]);  // becomes one vector instruction
  return load(x);
}

}  // namespace
}  // namespace DSLIDE_LEVEL
}  // namespace dslide
