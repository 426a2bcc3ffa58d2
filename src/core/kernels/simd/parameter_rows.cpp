// The fast kernels on rows of weights and moments, stored as float or bf16.
#include "kernels/simd/vector.hpp"

namespace dslide {
namespace DSLIDE_LEVEL {
namespace {

typedef uint16_t H __attribute__((vector_size(2 * W * sizeof(uint16_t))));

inline float get(const float* p) { return *p; }
inline float get(const Bf16* p) { return same_bits<float>(static_cast<uint32_t>(p->bits) << 16); }

// The numbers f(0), f(1), ...: a constant, so that shuffling by it is one instruction or two.
template <class F>
constexpr I indices(F f) {
#if defined(__AVX512F__)
  return I{f(0), f(1), f(2), f(3), f(4), f(5), f(6), f(7), f(8), f(9), f(10), f(11), f(12), f(13), f(14), f(15)};
#elif defined(__AVX2__)
  return I{f(0), f(1), f(2), f(3), f(4), f(5), f(6), f(7)};
#else
  return I{f(0), f(1), f(2), f(3)};
#endif
}
template <class F>
constexpr H half_indices(F f) {
  const auto g = [f](int i) { return static_cast<uint16_t>(f(i)); };
#if defined(__AVX512F__)
  return H{g(0),  g(1),  g(2),  g(3),  g(4),  g(5),  g(6),  g(7),  g(8),  g(9),  g(10),
           g(11), g(12), g(13), g(14), g(15), g(16), g(17), g(18), g(19), g(20), g(21),
           g(22), g(23), g(24), g(25), g(26), g(27), g(28), g(29), g(30), g(31)};
#elif defined(__AVX2__)
  return H{g(0), g(1), g(2), g(3), g(4), g(5), g(6), g(7), g(8), g(9), g(10), g(11), g(12), g(13), g(14), g(15)};
#else
  return H{g(0), g(1), g(2), g(3), g(4), g(5), g(6), g(7)};
#endif
}

// 2 W neighbouring numbers. In groups of eight, the first four are in `low` and the others in `high`: vector
// instructions take bf16 apart, and put it together, within pieces of 16 bytes.
struct Pair {
  V low, high;
};
constexpr int N = static_cast<int>(W);
constexpr I LOW = indices([](int i) { return i / 4 * 8 + i % 4; });  // columns
constexpr I HIGH = indices([](int i) { return i / 4 * 8 + i % 4 + 4; });
constexpr int place(int column) { return column / 8 * 4 + column % 4 + (column % 8 < 4 ? 0 : N); }  // in low, high
constexpr I FIRST = indices([](int i) { return place(i); });
constexpr I SECOND = indices([](int i) { return place(i + N); });
// 16-bit halves of floats: zeros alternating with bf16, from each group's column `first` on
constexpr int halves(int i, int first) { return i / 8 * 8 + i % 8 / 2 + first + i % 2 * 2 * N; }
constexpr H WIDEN_LOW = half_indices([](int i) { return halves(i, 0); });
constexpr H WIDEN_HIGH = half_indices([](int i) { return halves(i, 4); });
constexpr H UPPER = half_indices([](int i) { return 2 * place(i) + 1; });  // of low and high, by column

inline Pair get_pair(const Bf16* p) {
  H numbers;
  memcpy(&numbers, p, sizeof numbers);
  return {same_bits<V>(shuffled(H{}, numbers, WIDEN_LOW)), same_bits<V>(shuffled(H{}, numbers, WIDEN_HIGH))};
}
inline Pair get_pair(const float* p) {
  const V a = load(p), b = load(p + W);
  return {shuffled(a, b, LOW), shuffled(a, b, HIGH)};
}
inline void put_pair(float* p, const Pair& x) {
  store(p, shuffled(x.low, x.high, FIRST));
  store(p + W, shuffled(x.low, x.high, SECOND));
}

// Rounding: 16 random bits are added below a bf16's last place, and what that carries over rounds up. From the largest
// finite bf16 on, nothing is added: the carry would make infinity of it.
constexpr int32_t LARGEST = 0x7f7f0000;
inline uint32_t rounded(float x, uint32_t random) {
  const auto bits = same_bits<uint32_t>(x);
  return bits + ((bits & 0x7fffffffu) < static_cast<uint32_t>(LARGEST) ? random : 0);
}
inline U rounded(V x, U random) {
  const U bits = same_bits<U>(x);
  return bits + (same_bits<I>(bits & 0x7fffffffu) < LARGEST ? random : U{});
}

inline void put(float* p, float x, uint32_t) { *p = x; }
inline void put(Bf16* p, float x, uint32_t random) { p->bits = static_cast<uint16_t>(rounded(x, random) >> 16); }
inline void put_pair(float* p, const Pair& x, U, U) { put_pair(p, x); }
inline void put_pair(Bf16* p, const Pair& x, U random_low, U random_high) {
  const U low = rounded(x.low, random_low), high = rounded(x.high, random_high);
  const H both = shuffled(same_bits<H>(low), same_bits<H>(high), UPPER);
  memcpy(p, &both, sizeof both);
}

// In place of a pointer to moments that an optimizer hasn't.
struct Nothing {
  Nothing operator+(size_t) const { return {}; }
};
inline V load(Nothing) { return V{}; }
inline void store(Nothing, V) {}
inline Pair get_pair(Nothing) { return {V{}, V{}}; }
inline void put_pair(Nothing, const Pair&, U, U) {}
inline float get(Nothing) { return 0; }
inline void put(Nothing, float, uint32_t) {}

template <class A, class B>
constexpr bool SAME = false;
template <class A>
constexpr bool SAME<A, A> = true;

// Random numbers of columns, and of those 2 W further on: counted in 16 bits, the upper half of each lane stays zero.
template <class Columns>
inline Columns random_of(uint32_t seed, Columns columns) {
  return (columns * COLUMN_SEED + seed) & 0xffffu;
}
inline U random_further_on(U random) {
  const U further = U{} + (static_cast<uint32_t>(2 * W) * COLUMN_SEED & 0xffffu);
  return same_bits<U>(same_bits<H>(random) + same_bits<H>(further));
}

// step(w, m, v, g), on single numbers or vectors of them, for all columns of a row.
template <class Weight, class First, class Second, class Step>
inline void step_row(Weight w, First m, Second v, const float* g, size_t n, uint32_t seed, const Step& step) {
  size_t i = 0;
  if constexpr (!SAME<Weight, Bf16*> && !SAME<First, Bf16*> && !SAME<Second, Bf16*>) {
    for (; i + W <= n; i += W) {
      V wi = load(w + i), mi = load(m + i), vi = load(v + i);
      step(wi, mi, vi, load(g + i));
      store(w + i, wi);
      store(m + i, mi);
      store(v + i, vi);
    }
  } else {
    U low = random_of(seed, same_bits<U>(LOW)), high = random_of(seed, same_bits<U>(HIGH));
    for (; i + 2 * W <= n; i += 2 * W, low = random_further_on(low), high = random_further_on(high)) {
      Pair wi = get_pair(w + i), mi = get_pair(m + i), vi = get_pair(v + i);
      const Pair gi = get_pair(g + i);
      step(wi.low, mi.low, vi.low, gi.low);
      step(wi.high, mi.high, vi.high, gi.high);
      put_pair(w + i, wi, low, high);
      put_pair(m + i, mi, low, high);
      put_pair(v + i, vi, low, high);
    }
  }
  for (; i < n; ++i) {
    const uint32_t random = random_of(seed, static_cast<uint32_t>(i));
    float wi = get(w + i), mi = get(m + i), vi = get(v + i);
    step(wi, mi, vi, g[i]);
    put(w + i, wi, random);
    put(m + i, mi, random);
    put(v + i, vi, random);
  }
}

inline float root(float x) { return sqrtf(x); }
inline V root(V x) { return vsqrt(x); }

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
  const auto on_numbers = [s = step](auto& wi, auto& mi, auto& vi, const auto& gi) {
    mi = s.beta1 * mi + (1 - s.beta1) * gi;
    vi = s.beta2 * vi + (1 - s.beta2) * gi * gi;
    wi = wi * s.keep - s.rate * (mi * s.correct1) / (root(vi * s.correct2) + s.epsilon);
  };
  as_stored(w, [&](auto* weights) {
    as_stored(m, [&](auto* moments) {
      step_row(weights, moments, static_cast<decltype(moments)>(v.data), g, n, seed, on_numbers);
    });
  });
}

void adagrad(Numbers w, Numbers v, const float* g, size_t n, float rate, float epsilon, float keep, uint32_t seed) {
  const auto on_numbers = [=](auto& wi, auto&, auto& vi, const auto& gi) {
    vi += gi * gi;
    wi = wi * keep - rate * gi / (root(vi) + epsilon);
  };
  as_stored(w, [&](auto* weights) {
    as_stored(v, [&](auto* moments) { step_row(weights, Nothing{}, moments, g, n, seed, on_numbers); });
  });
}

void sgd(Numbers w, const float* g, size_t n, float rate, float keep, uint32_t seed) {
  const auto on_numbers = [=](auto& wi, auto&, auto&, const auto& gi) { wi = wi * keep - rate * gi; };
  as_stored(w, [&](auto* weights) { step_row(weights, Nothing{}, Nothing{}, g, n, seed, on_numbers); });
}

constexpr size_t SOON = 16;  // rows before its turn that a row is asked for

// Asks for so many numbers of a row, to lie in the second-level cache: a core can wait for far more lines on their way
// there than for lines on their way to the nearest.
template <class Stored>
inline void ask_for(const Stored* row, size_t numbers) {
  const char* const at = reinterpret_cast<const char*>(row);
  for (size_t line = 0; line < numbers * sizeof(Stored); line += 64) __builtin_prefetch(at + line, 0, 2);
}

// COLUMNS vectors of the output stay in registers while all rows pass by.
template <int COLUMNS>
inline void weighted_columns(float* out, const int32_t* ids, const float* values, size_t count, const float* base,
                             size_t stride) {
  V sum[COLUMNS];
#pragma GCC unroll 8
  for (int j = 0; j < COLUMNS; ++j) sum[j] = load(out + j * W);
  for (size_t i = 0; i < count; ++i) {
    if (i + SOON < count) ask_for(base + static_cast<size_t>(ids[i + SOON]) * stride, COLUMNS * W);
    const float* row = base + static_cast<size_t>(ids[i]) * stride;
    const V value = splat(values[i]);
#pragma GCC unroll 8
    for (int j = 0; j < COLUMNS; ++j) sum[j] += value * load(row + j * W);
  }
#pragma GCC unroll 8
  for (int j = 0; j < COLUMNS; ++j) store(out + j * W, sum[j]);
}
template <int COLUMNS>
inline void weighted_columns(float* out, const int32_t* ids, const float* values, size_t count, const Bf16* base,
                             size_t stride) {
  Pair sum[COLUMNS / 2];
#pragma GCC unroll 4
  for (int j = 0; j < COLUMNS / 2; ++j) sum[j] = get_pair(out + 2 * j * W);
  for (size_t i = 0; i < count; ++i) {
    if (i + SOON < count) ask_for(base + static_cast<size_t>(ids[i + SOON]) * stride, COLUMNS * W);
    const Bf16* row = base + static_cast<size_t>(ids[i]) * stride;
    const V value = splat(values[i]);
#pragma GCC unroll 4
    for (int j = 0; j < COLUMNS / 2; ++j) {
      const Pair numbers = get_pair(row + 2 * j * W);
      sum[j].low += value * numbers.low;
      sum[j].high += value * numbers.high;
    }
  }
#pragma GCC unroll 4
  for (int j = 0; j < COLUMNS / 2; ++j) put_pair(out + 2 * j * W, sum[j]);
}

template <class Stored>
void weighted_sum(float* out, size_t n, const int32_t* ids, const float* values, size_t count, const Stored* base,
                  size_t stride) {
  constexpr size_t LEAST = SAME<Stored, float> ? 1 : 2;  // vectors at a time
  size_t j = 0;
  for (; j + 8 * W <= n; j += 8 * W) weighted_columns<8>(out + j, ids, values, count, base + j, stride);
  for (; j + LEAST * W <= n; j += LEAST * W) {
    weighted_columns<LEAST>(out + j, ids, values, count, base + j, stride);
  }
  if (j < n) {
    for (size_t i = 0; i < count; ++i) {
      const Stored* row = base + static_cast<size_t>(ids[i]) * stride;
      for (size_t q = j; q < n; ++q) out[q] += values[i] * get(row + q);
    }
  }
}

void widen(const Bf16* from, float* to, size_t n) {
  for (size_t i = 0; i < n; ++i) to[i] = get(from + i);  // becomes vector instructions
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
