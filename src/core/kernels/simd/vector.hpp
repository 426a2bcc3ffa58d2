// Vector types and helpers of the SIMD kernels. The vector width follows from the level a file is compiled for.
//
// Only plain types and functions with internal linkage here and in the kernels: the linker could pick an AVX-512 copy
// of a library header's inline function for the whole program, which then crashes on an older CPU. For the same reason
// there are no static initialisers.
#pragma once
#include <math.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>  // always inlined
#endif

#include "kernels/kernels.hpp"

namespace dslide::DSLIDE_LEVEL {
// Register the kernels of bf16_pairs.cpp, parameter_rows.cpp, losses.cpp and simhash.cpp.
void register_bf16_pairs(Kernels& table);
void register_parameter_rows(Kernels& table);
void register_losses(Kernels& table);
void register_simhash(Kernels& table);

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
typedef uint32_t U __attribute__((vector_size(W * sizeof(uint32_t))));

template <class To, class From> inline To same_bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

inline V load(const float* p) {
  V v;
  memcpy(&v, p, sizeof v);
  return v;
}
// W int8 as floats. (GCC converts them in many small steps.)
inline V load(const int8_t* p) {
#if defined(__AVX512F__)
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm512_maskz_cvtepi32_ps(0xffff, _mm512_maskz_cvtepi8_epi32(0xffff, bytes));
#elif defined(__AVX2__)
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
#else
  V v;
  for (size_t i = 0; i < W; ++i) v[i] = p[i];
  return v;
#endif
}
inline void store(float* p, V v) { memcpy(p, &v, sizeof v); }
inline V splat(float x) { return x - V{}; }  // not x + V{}: adding 0 changes -0, so the compiler could not remove it

// Lane i of the result is lane from[i] of a, or of the concatenation of a and b.
#if defined(__clang__)
template <class X, class Lanes> inline X shuffled(X a, X b, Lanes from) {
  constexpr size_t count = sizeof(X) / sizeof(a[0]);
  X out;
  for (size_t i = 0; i < count; ++i) {
    const size_t lane = from[i];
    out[i] = lane < count ? a[lane] : b[lane - count];
  }
  return out;
}
template <class X, class Lanes> inline X shuffled(X a, Lanes from) { return shuffled(a, a, from); }
#else
template <class X, class Lanes> inline X shuffled(X a, X b, Lanes from) { return __builtin_shuffle(a, b, from); }
template <class X, class Lanes> inline X shuffled(X a, Lanes from) { return __builtin_shuffle(a, from); }
#endif

// Maximum and minimum; b if either is NaN, as the instructions do. (GCC makes two instructions of a > b ? a : b.)
#if defined(__AVX512F__)
inline V vmax(V a, V b) { return _mm512_maskz_max_ps(0xffff, a, b); }
inline V vmin(V a, V b) { return _mm512_maskz_min_ps(0xffff, a, b); }
#elif defined(__AVX2__)
inline V vmax(V a, V b) { return _mm256_max_ps(a, b); }
inline V vmin(V a, V b) { return _mm256_min_ps(a, b); }
#elif defined(__SSE2__)
inline V vmax(V a, V b) { return _mm_max_ps(a, b); }
inline V vmin(V a, V b) { return _mm_min_ps(a, b); }
#else
inline V vmax(V a, V b) { return a > b ? a : b; }
inline V vmin(V a, V b) { return a < b ? a : b; }
#endif

// Reduces all lanes with `join`, which takes vectors: halves against halves until one lane is left.
template <class Join> inline float join_lanes(V v, const Join& join) {
  I lane;
  for (size_t i = 0; i < W; ++i) lane[i] = static_cast<int32_t>(i);
#pragma GCC unroll 4
  for (size_t half = W / 2; half > 0; half /= 2) v = join(v, shuffled(v, lane ^ static_cast<int32_t>(half)));
  return v[0];
}
inline float sum_lanes(V v) {
  return join_lanes(v, [](V a, V b) { return a + b; });
}
inline float max_lanes(V v) {
  return join_lanes(v, [](V a, V b) { return vmax(a, b); });
}

// The first `n` < W floats at p, other lanes `other`.
inline V load_part(const float* p, size_t n, float other = 0) {
  float x[W];
  for (size_t i = 0; i < W; ++i) x[i] = i < n ? p[i] : other;
  return load(x);
}
inline void store_part(float* p, V v, size_t n) {
  float x[W];
  store(x, v);
  for (size_t i = 0; i < n; ++i) p[i] = x[i];
}

inline V vsqrt(V v) {
  float x[W];
  store(x, v);
  for (size_t i = 0; i < W; ++i) x[i] = sqrtf(x[i]);  // compiles to one vector instruction
  return load(x);
}
}  // namespace
}  // namespace dslide::DSLIDE_LEVEL
