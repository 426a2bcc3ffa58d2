// Kernels on rows of weights and moments, stored as float or bf16: optimizer steps and weighted sums.
#include "kernels/simd/vector.hpp"

namespace dslide::DSLIDE_LEVEL {
namespace {
typedef uint16_t H __attribute__((vector_size(2 * W * sizeof(uint16_t))));

inline float get(const float* p) { return *p; }
inline float get(const Bf16* p) { return same_bits<float>(static_cast<uint32_t>(p->bits) << 16); }

// A constant vector of f(0), f(1), ...: shuffles by it are one or two instructions.
template <class F> constexpr I indices(F f) {
#if defined(__AVX512F__)
  return I{f(0), f(1), f(2), f(3), f(4), f(5), f(6), f(7), f(8), f(9), f(10), f(11), f(12), f(13), f(14), f(15)};
#elif defined(__AVX2__)
  return I{f(0), f(1), f(2), f(3), f(4), f(5), f(6), f(7)};
#else
  return I{f(0), f(1), f(2), f(3)};
#endif
}
template <class F> constexpr H half_indices(F f) {
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

// 2 W neighbouring numbers. Of each group of eight, the first four are in `low`, the others in `high`: vector
// instructions unpack and pack 16-bit numbers within 16-byte lanes.
struct VectorPair {
  V low, high;
};
constexpr int N = static_cast<int>(W);
constexpr I LOW = indices([](int i) { return i / 4 * 8 + i % 4; });  // columns
constexpr I HIGH = indices([](int i) { return i / 4 * 8 + i % 4 + 4; });
constexpr int place(int column) { return column / 8 * 4 + column % 4 + (column % 8 < 4 ? 0 : N); }  // in low, high
constexpr I FIRST = indices([](int i) { return place(i); });
constexpr I SECOND = indices([](int i) { return place(i + N); });
// 16-bit halves of floats: zeros interleaved with bf16, from each group's column `first` on
constexpr int halves(int i, int first) { return i / 8 * 8 + i % 8 / 2 + first + i % 2 * 2 * N; }
constexpr H WIDEN_LOW = half_indices([](int i) { return halves(i, 0); });
constexpr H WIDEN_HIGH = half_indices([](int i) { return halves(i, 4); });
constexpr H UPPER = half_indices([](int i) { return 2 * place(i) + 1; });  // of low and high, by column

inline VectorPair load_pair(const Bf16* p) {
  H numbers;
  memcpy(&numbers, p, sizeof numbers);
  return {same_bits<V>(shuffled(H{}, numbers, WIDEN_LOW)), same_bits<V>(shuffled(H{}, numbers, WIDEN_HIGH))};
}
inline VectorPair load_pair(const float* p) {
  const V a = load(p), b = load(p + W);
  return {shuffled(a, b, LOW), shuffled(a, b, HIGH)};
}
inline void store_pair(float* p, const VectorPair& x) {
  store(p, shuffled(x.low, x.high, FIRST));
  store(p + W, shuffled(x.low, x.high, SECOND));
}

// Stochastic rounding: adds 16 random bits below a bf16's last bit; the carry rounds up. NoMoment is added from the
// largest finite bf16 on: the carry would make it infinite.
constexpr int32_t MAX_FINITE = 0x7f7f0000;
inline uint32_t rounded(float x, uint32_t random) {
  const auto bits = same_bits<uint32_t>(x);
  return bits + ((bits & 0x7fffffffu) < static_cast<uint32_t>(MAX_FINITE) ? random : 0);
}
inline U rounded(V x, U random) {
  const U bits = same_bits<U>(x);
  return bits + (same_bits<I>(bits & 0x7fffffffu) < MAX_FINITE ? random : U{});
}

inline void put(float* p, float x, uint32_t) { *p = x; }
inline void put(Bf16* p, float x, uint32_t random) { p->bits = static_cast<uint16_t>(rounded(x, random) >> 16); }
inline void store_pair(float* p, const VectorPair& x, U, U) { store_pair(p, x); }
inline void store_pair(Bf16* p, const VectorPair& x, U random_low, U random_high) {
  const U low = rounded(x.low, random_low), high = rounded(x.high, random_high);
  const H both = shuffled(same_bits<H>(low), same_bits<H>(high), UPPER);
  memcpy(p, &both, sizeof both);
}

// Stands for the pointer to moments that an optimizer does not have.
struct NoMoment {
  NoMoment operator+(size_t) const { return {}; }
};
inline V load(NoMoment) { return V{}; }
inline void store(NoMoment, V) {}
inline VectorPair load_pair(NoMoment) { return {V{}, V{}}; }
inline void store_pair(NoMoment, const VectorPair&, U, U) {}
inline float get(NoMoment) { return 0; }
inline void put(NoMoment, float, uint32_t) {}

template <class A, class B> constexpr bool SAME = false;
template <class A> constexpr bool SAME<A, A> = true;

// Random numbers of columns, and those 2 W columns further: in 16 bits, the upper half of each lane stays zero.
template <class Columns> inline Columns random_of(uint32_t seed, Columns columns) {
  return (columns * COLUMN_SEED + seed) & 0xffffu;
}
inline U advance_random(U random) {
  const U further = U{} + (static_cast<uint32_t>(2 * W) * COLUMN_SEED & 0xffffu);
  return same_bits<U>(same_bits<H>(random) + same_bits<H>(further));
}

// Applies step(w, m, v, g), on single numbers or vectors, to all columns of a row.
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
    for (; i + 2 * W <= n; i += 2 * W, low = advance_random(low), high = advance_random(high)) {
      VectorPair wi = load_pair(w + i), mi = load_pair(m + i), vi = load_pair(v + i);
      const VectorPair gi = load_pair(g + i);
      step(wi.low, mi.low, vi.low, gi.low);
      step(wi.high, mi.high, vi.high, gi.high);
      store_pair(w + i, wi, low, high);
      store_pair(m + i, mi, low, high);
      store_pair(v + i, vi, low, high);
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

// Calls run(pointer of the stored type).
template <class Run> inline void as_stored(const StoredArray& x, const Run& run) {
  if (x.is_bf16) {
    run(static_cast<Bf16*>(x.data));
  } else {
    run(static_cast<float*>(x.data));
  }
}

void adam(StoredArray w, StoredArray m, StoredArray v, const float* g, size_t n, const AdamStep& step, uint32_t seed) {
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

void adagrad(StoredArray w, StoredArray v, const float* g, size_t n, float rate, float epsilon, float keep,
             uint32_t seed) {
  const auto on_numbers = [=](auto& wi, auto&, auto& vi, const auto& gi) {
    vi += gi * gi;
    wi = wi * keep - rate * gi / (root(vi) + epsilon);
  };
  as_stored(w, [&](auto* weights) {
    as_stored(v, [&](auto* moments) { step_row(weights, NoMoment{}, moments, g, n, seed, on_numbers); });
  });
}

void sgd(StoredArray w, const float* g, size_t n, float rate, float keep, uint32_t seed) {
  const auto on_numbers = [=](auto& wi, auto&, auto&, const auto& gi) { wi = wi * keep - rate * gi; };
  as_stored(w, [&](auto* weights) { step_row(weights, NoMoment{}, NoMoment{}, g, n, seed, on_numbers); });
}

constexpr size_t PREFETCH_VECTORS = 128;  // prefetch distance, in vectors of rows: narrow rows take less time each

// Prefetches the first `numbers` elements of a row into L2: a core has far more outstanding misses to L2 than to L1.
template <class Stored> inline void prefetch(const Stored* row, size_t numbers) {
  const char* const at = reinterpret_cast<const char*>(row);
  for (size_t line = 0; line < numbers * sizeof(Stored); line += 64) __builtin_prefetch(at + line, 0, 2);
}

// COLUMNS vectors of the output stay in registers over all rows.
template <int COLUMNS> inline void weighted_columns(float* out, const int32_t* ids, const float* values, size_t count,
                                                    size_t known, const float* base, size_t stride) {
  constexpr size_t DISTANCE = PREFETCH_VECTORS / COLUMNS;  // in rows
  V sum[COLUMNS];
#pragma GCC unroll 8
  for (int j = 0; j < COLUMNS; ++j) sum[j] = load(out + j * W);
  for (size_t i = 0; i < count; ++i) {
    if (i + DISTANCE < known) prefetch(base + static_cast<size_t>(ids[i + DISTANCE]) * stride, COLUMNS * W);
    const float* row = base + static_cast<size_t>(ids[i]) * stride;
    const V value = splat(values[i]);
#pragma GCC unroll 8
    for (int j = 0; j < COLUMNS; ++j) sum[j] += value * load(row + j * W);
  }
#pragma GCC unroll 8
  for (int j = 0; j < COLUMNS; ++j) store(out + j * W, sum[j]);
}
template <int COLUMNS> inline void weighted_columns(float* out, const int32_t* ids, const float* values, size_t count,
                                                    size_t known, const Bf16* base, size_t stride) {
  constexpr size_t DISTANCE = PREFETCH_VECTORS / COLUMNS;  // in rows
  VectorPair sum[COLUMNS / 2];
#pragma GCC unroll 4
  for (int j = 0; j < COLUMNS / 2; ++j) sum[j] = load_pair(out + 2 * j * W);
  for (size_t i = 0; i < count; ++i) {
    if (i + DISTANCE < known) prefetch(base + static_cast<size_t>(ids[i + DISTANCE]) * stride, COLUMNS * W);
    const Bf16* row = base + static_cast<size_t>(ids[i]) * stride;
    const V value = splat(values[i]);
#pragma GCC unroll 4
    for (int j = 0; j < COLUMNS / 2; ++j) {
      const VectorPair numbers = load_pair(row + 2 * j * W);
      sum[j].low += value * numbers.low;
      sum[j].high += value * numbers.high;
    }
  }
#pragma GCC unroll 4
  for (int j = 0; j < COLUMNS / 2; ++j) store_pair(out + 2 * j * W, sum[j]);
}

template <class Stored> void weighted_sum(float* out, size_t n, const int32_t* ids, const float* values, size_t count,
                                          size_t known, const Stored* base, size_t stride) {
  constexpr size_t STEP = SAME<Stored, float> ? 1 : 2;  // vectors per step
  size_t j = 0;
  // As few walks over the rows as possible: each brings their cache lines from memory.
  for (; j + 8 * W <= n; j += 8 * W) weighted_columns<8>(out + j, ids, values, count, known, base + j, stride);
  for (; j + 4 * W <= n; j += 4 * W) weighted_columns<4>(out + j, ids, values, count, known, base + j, stride);
  for (; j + 2 * W <= n; j += 2 * W) weighted_columns<2>(out + j, ids, values, count, known, base + j, stride);
  for (; j + STEP * W <= n; j += STEP * W) {
    weighted_columns<STEP>(out + j, ids, values, count, known, base + j, stride);
  }
  if (j < n) {
    for (size_t i = 0; i < count; ++i) {
      const Stored* row = base + static_cast<size_t>(ids[i]) * stride;
      for (size_t q = j; q < n; ++q) out[q] += values[i] * get(row + q);
    }
  }
}

void widen(const Bf16* from, float* to, size_t n) {
  for (size_t i = 0; i < n; ++i) to[i] = get(from + i);  // vectorised by the compiler
}
}  // namespace

void register_parameter_rows(Kernels& table) {
  table.weighted_sum = weighted_sum<float>;
  table.weighted_sum_bf16 = weighted_sum<Bf16>;
  table.widen = widen;
  table.adam = adam;
  table.adagrad = adagrad;
  table.sgd = sgd;
}
}  // namespace dslide::DSLIDE_LEVEL
