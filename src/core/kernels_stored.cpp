// The fast kernels on rows of weights and moments, stored as float or bf16.
#include "kernels_vector.hpp"

namespace dslide {
namespace DSLIDE_LEVEL {
namespace {

typedef uint32_t U __attribute__((vector_size(W * sizeof(uint32_t))));
typedef uint16_t H __attribute__((vector_size(W * sizeof(uint16_t))));

// What follows works on one number (float, with its bits as uint32_t) or a vector of them (V, with U).
template <class X>
struct BitsOf {
  typedef uint32_t type;
};
template <>
struct BitsOf<V> {
  typedef U type;
};
template <class X>
using Bits = typename BitsOf<X>::type;

template <class To, class From>
inline To same_bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

template <class X>
inline X get(const float* p) {
  X x;
  memcpy(&x, p, sizeof x);
  return x;
}
template <class X>
inline X get(const Bf16* p);
template <>
inline float get(const Bf16* p) {
  return same_bits<float>(static_cast<uint32_t>(p->bits) << 16);
}
template <>
inline V get(const Bf16* p) {
  H h;
  memcpy(&h, p, sizeof h);
  return same_bits<V>(__builtin_convertvector(h, U) << 16);
}

inline uint32_t zero_unless_below(uint32_t x, uint32_t size, int32_t bound) {
  return size < static_cast<uint32_t>(bound) ? x : 0;
}
inline U zero_unless_below(U x, U size, int32_t bound) {
  return same_bits<I>(size) < bound ? x : U{};  // compared as signed, which is one instruction: no size has a sign
}

inline void put_upper(Bf16* p, uint32_t bits) { p->bits = static_cast<uint16_t>(bits >> 16); }
inline void put_upper(Bf16* p, U bits) {
  const H h = __builtin_convertvector(bits >> 16, H);
  memcpy(p, &h, sizeof h);
}

// Stores numbers, rounded with the help of 16 random bits each if there is less room than they need. The bits are added
// below a bf16's last place, and what that carries over rounds up. From the largest finite bf16 on, nothing is added: the
// carry would make infinity of it, or of a NaN a number.
template <class X>
inline void put(float* p, X x, Bits<X>) {
  memcpy(p, &x, sizeof x);
}
template <class X>
inline void put(Bf16* p, X x, Bits<X> random) {
  const Bits<X> bits = same_bits<Bits<X>>(x);
  put_upper(p, bits + zero_unless_below(random, bits & 0x7fffffffu, 0x7f7f0000));
}

// The random bits of a column, from what COLUMN_SEED made of seed and column; 16 each for a weight and its moments.
template <class N>
struct Random {
  N all;
  explicit Random(N x) {
    x ^= x >> 16;
    x *= 0x7feb352du;
    all = x ^ (x >> 15);
  }
  N for_weight() const { return all >> 16; }
  N for_moment1() const { return all & 0xffffu; }
  N for_moment2() const { return (all * 0x846ca68bu) >> 16; }
};

// step(X(), i, random): the step on columns i to i + W as V, on single ones as float.
template <class Step>
inline void for_columns(size_t n, uint32_t seed, const Step& step) {
  U seeds;
  for (size_t i = 0; i < W; ++i) seeds[i] = seed + static_cast<uint32_t>(i) * COLUMN_SEED;
  size_t i = 0;
  for (; i + W <= n; i += W, seeds += static_cast<uint32_t>(W) * COLUMN_SEED) step(V{}, i, Random<U>(seeds));
  for (; i < n; ++i) step(0.0f, i, Random<uint32_t>(seed + static_cast<uint32_t>(i) * COLUMN_SEED));
}

inline float root(float x) { return sqrtf(x); }
inline V root(V x) { return vsqrt(x); }

template <class Weight, class Moment>
void adam_row(Weight* w, Moment* m, Moment* v, const float* g, size_t n, const AdamStep& step, uint32_t seed) {
  const AdamStep s = step;  // a copy, which the compiler knows that no store below changes
  for_columns(n, seed, [=](auto kind, size_t i, const auto& random) {
    using X = decltype(kind);
    const X gi = get<X>(g + i);
    const X mi = s.beta1 * get<X>(m + i) + (1 - s.beta1) * gi;
    const X vi = s.beta2 * get<X>(v + i) + (1 - s.beta2) * gi * gi;
    const X wi = get<X>(w + i) * s.keep - s.rate * (mi * s.correct1) / (root(vi * s.correct2) + s.epsilon);
    put<X>(w + i, wi, random.for_weight());
    put<X>(m + i, mi, random.for_moment1());
    put<X>(v + i, vi, random.for_moment2());
  });
}

template <class Weight, class Moment>
void adagrad_row(Weight* w, Moment* v, const float* g, size_t n, float rate, float epsilon, float keep,
                 uint32_t seed) {
  for_columns(n, seed, [=](auto kind, size_t i, const auto& random) {
    using X = decltype(kind);
    const X gi = get<X>(g + i), vi = get<X>(v + i) + gi * gi;
    put<X>(v + i, vi, random.for_moment2());
    put<X>(w + i, get<X>(w + i) * keep - rate * gi / (root(vi) + epsilon), random.for_weight());
  });
}

template <class Weight>
void sgd_row(Weight* w, const float* g, size_t n, float rate, float keep, uint32_t seed) {
  for_columns(n, seed, [=](auto kind, size_t i, const auto& random) {
    using X = decltype(kind);
    put<X>(w + i, get<X>(w + i) * keep - rate * get<X>(g + i), random.for_weight());
  });
}

// run(the numbers, as what they are stored as)
template <class Run>
inline void as_stored(const Numbers& x, const Run& run) {
  if (x.is_half) {
    run(static_cast<Bf16*>(x.data));
  } else {
    run(static_cast<float*>(x.data));
  }
}

void adam(Numbers w, Numbers m, Numbers v, const float* g, size_t n, const AdamStep& step, uint32_t seed) {
  as_stored(w, [&](auto* weights) {
    as_stored(m, [&](auto* moments) {
      adam_row(weights, moments, static_cast<decltype(moments)>(v.data), g, n, step, seed);
    });
  });
}

void adagrad(Numbers w, Numbers v, const float* g, size_t n, float rate, float epsilon, float keep, uint32_t seed) {
  as_stored(w, [&](auto* weights) {
    as_stored(v, [&](auto* moments) { adagrad_row(weights, moments, g, n, rate, epsilon, keep, seed); });
  });
}

void sgd(Numbers w, const float* g, size_t n, float rate, float keep, uint32_t seed) {
  as_stored(w, [&](auto* weights) { sgd_row(weights, g, n, rate, keep, seed); });
}

// COLUMNS vectors of the output stay in registers while all rows pass by.
template <int COLUMNS, class Stored>
inline void weighted_columns(float* out, const int32_t* ids, const float* values, size_t count, const Stored* base,
                             size_t stride) {
  V sum[COLUMNS];
#pragma GCC unroll 8
  for (int j = 0; j < COLUMNS; ++j) sum[j] = load(out + j * W);
  for (size_t i = 0; i < count; ++i) {
    const Stored* row = base + static_cast<size_t>(ids[i]) * stride;
    const V value = splat(values[i]);
#pragma GCC unroll 8
    for (int j = 0; j < COLUMNS; ++j) sum[j] += value * get<V>(row + j * W);
  }
#pragma GCC unroll 8
  for (int j = 0; j < COLUMNS; ++j) store(out + j * W, sum[j]);
}

template <class Stored>
void weighted_sum(float* out, size_t n, const int32_t* ids, const float* values, size_t count, const Stored* base,
                  size_t stride) {
  size_t j = 0;
  for (; j + 8 * W <= n; j += 8 * W) weighted_columns<8>(out + j, ids, values, count, base + j, stride);
  for (; j + W <= n; j += W) weighted_columns<1>(out + j, ids, values, count, base + j, stride);
  if (j < n) {
    for (size_t i = 0; i < count; ++i) {
      const Stored* row = base + static_cast<size_t>(ids[i]) * stride;
      for (size_t q = j; q < n; ++q) out[q] += values[i] * get<float>(row + q);
    }
  }
}

void widen(const Bf16* from, float* to, size_t n) {
  size_t i = 0;
  for (; i + W <= n; i += W) store(to + i, get<V>(from + i));
  for (; i < n; ++i) to[i] = get<float>(from + i);
}

}  // namespace

void add_stored(Kernels& table) {
  table.weighted_sum = weighted_sum<float>;
  table.weighted_sum_half = weighted_sum<Bf16>;
  table.widen = widen;
  table.adam = adam;
  table.adagrad = adagrad;
  table.sgd = sgd;
}

}  // namespace DSLIDE_LEVEL
}  // namespace dslide
