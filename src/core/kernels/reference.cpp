// Slow, simple versions of every kernel, with long sums in double precision: the oracle for the SIMD kernels.
#include <bit>
#include <cmath>
#include <limits>
#include "kernels/kernels.hpp"

namespace dslide::reference {
namespace {
double product_of(float a, float b) { return double{a} * b; }
double product_of(Bf16Pair a, Bf16Pair b) {
  const auto half = [](uint32_t bits) { return double{std::bit_cast<float>(bits << 16)}; };
  return half(a.bits) * half(b.bits) + half(a.bits >> 16) * half(b.bits >> 16);
}

template <class Number> void gemm(size_t m, size_t n, size_t k, const Number* a, size_t a_row, size_t a_col,
                                  const Number* b, size_t ldb, float* c, size_t ldc, bool accumulate, PrefetchQueue*) {
  for (size_t i = 0; i < m; ++i) {
    for (size_t j = 0; j < n; ++j) {
      double sum = accumulate ? c[i * ldc + j] : 0.0;
      for (size_t p = 0; p < k; ++p) sum += product_of(a[i * a_row + p * a_col], b[p * ldb + j]);
      c[i * ldc + j] = static_cast<float>(sum);
    }
  }
}

template <class Number> float dot(const Number* a, const Number* b, size_t n) {
  double sum = 0;
  for (size_t i = 0; i < n; ++i) sum += product_of(a[i], b[i]);
  return static_cast<float>(sum);
}

float dot_int8(const float* a, const int8_t* b, size_t n) {
  double sum = 0;
  for (size_t i = 0; i < n; ++i) sum += double{a[i]} * b[i];
  return static_cast<float>(sum);
}

void widen_int8(const int8_t* from, float scale, float* to, size_t n) {
  for (size_t i = 0; i < n; ++i) to[i] = scale * static_cast<float>(from[i]);
}

Bf16Pair pair_of(float low, float high) {
  return {uint32_t{round_to_bf16(low).bits} | uint32_t{round_to_bf16(high).bits} << 16};
}

void pair_up(const float* low, const float* high, size_t n, Bf16Pair* out) {
  for (size_t i = 0; i < n; ++i) out[i] = pair_of(low[i], high[i]);
}

void pair_neighbours(const float* x, size_t n, Bf16Pair* out) {
  for (size_t i = 0; i < n; i += 2) out[i / 2] = pair_of(x[i], i + 1 < n ? x[i + 1] : 0.0f);
}

void pack(const float* const* rows, size_t count, size_t width, size_t n, float* out, size_t ld) {
  for (size_t p = 0; p < n; ++p) {
    for (size_t c = 0; c < width; ++c) out[p * ld + c] = c < count ? rows[c][p] : 0.0f;
  }
}

void axpy(float a, const float* x, float* y, size_t n) {
  for (size_t i = 0; i < n; ++i) y[i] += a * x[i];
}

void signed_sums(const float* x, size_t groups, float* tiles) {
  for (size_t g = 0; g < groups; ++g) {
    for (size_t c = 0; c < 16; ++c) {
      for (size_t row = 0; row < 8; ++row) {
        float sum = 0;
        for (size_t i = 0; i < 4; ++i) {
          const float number = x[(g * 4 + i) * 8 + row];
          sum += c >> i & 1 ? number : -number;
        }
        tiles[(g * 16 + c) * 8 + row] = sum;
      }
    }
  }
}

void positive_bits(const float* tiles, size_t count, uint64_t* words) {
  for (size_t row = 0; row < 8; ++row) {
    words[row] = 0;
    for (size_t j = 0; j < count; ++j) words[row] |= uint64_t{tiles[j * 8 + row] > 0} << j;
  }
}

void add_choices(const float* tiles, const uint8_t* choices, size_t tables, float* sums) {
  for (size_t t = 0; t < tables; ++t) {
    for (size_t p = 0; p < 8; ++p) {
      const float* tile = tiles + t * 16 * 8 + choices[t * 8 + p] / 4 * 8;
      for (size_t i = 0; i < 8; ++i) sums[p * 8 + i] += tile[i];
    }
  }
}

float shifted_max(const float* z, const float* shift, size_t n) {
  float largest = -std::numeric_limits<float>::infinity();
  for (size_t i = 0; i < n; ++i) largest = std::fmax(largest, z[i] + shift[i]);
  return largest;
}

void softmax_stats(size_t rows, size_t n, const float* z, size_t ldz, const float* shift, float* reference,
                   float* sum) {
  for (size_t row = 0; row < rows && n > 0; ++row, z += ldz) {
    const float old = reference[row], now = std::max(old, shifted_max(z, shift, n));
    double total = sum[row] > 0 ? sum[row] * std::exp(double{old} - now) : 0;
    for (size_t i = 0; i < n; ++i) total += std::exp(double{z[i]} + shift[i] - now);
    reference[row] = now;
    sum[row] = static_cast<float>(total);
  }
}

void softmax_gradient(size_t rows, size_t n, const float* z, size_t ldz, const float* shift, const float* log_norm,
                      float scale, float* dz, size_t lddz) {
  for (size_t row = 0; row < rows; ++row, z += ldz, dz += lddz) {
    for (size_t i = 0; i < n; ++i) {
      dz[i] = static_cast<float>(scale * std::exp(double{z[i]} + shift[i] - log_norm[row]));
    }
  }
}

bool exponentials(size_t rows, size_t n, float* z, size_t ldz, const float* shift, float* reference, float* sum) {
  bool raised = false;
  for (size_t j = 0; j < n && rows > 0; ++j) {
    float top = -std::numeric_limits<float>::infinity();
    for (size_t i = 0; i < rows; ++i) top = std::fmax(top, z[i * ldz + j] + shift[i]);
    double total = sum[j];
    if (top > reference[j] + HEADROOM) {
      total *= std::exp(double{reference[j]} - top);
      reference[j] = top;
      raised = true;
    }
    for (size_t i = 0; i < rows; ++i) {
      const double e = std::exp(double{z[i * ldz + j]} + shift[i] - reference[j]);
      total += e;
      z[i * ldz + j] = static_cast<float>(e);
    }
    sum[j] = static_cast<float>(total);
  }
  return raised;
}

void column_sums(size_t rows, size_t n, const float* z, size_t ldz, float* sums) {
  for (size_t j = 0; j < n; ++j) {
    double sum = sums[j];
    for (size_t row = 0; row < rows; ++row) sum += z[row * ldz + j];
    sums[j] = static_cast<float>(sum);
  }
}

float sigmoid_gradient(float* z, const float* shift, const float* weight, size_t n, float scale) {
  double loss = 0;
  for (size_t i = 0; i < n; ++i) {
    const double x = double{z[i]} + shift[i];
    loss += weight[i] * (std::fmax(x, 0.0) + std::log1p(std::exp(-std::fabs(x))));
    z[i] = static_cast<float>(scale * weight[i] / (1 + std::exp(-x)));
  }
  return static_cast<float>(loss);
}

void multiply_add(size_t rounds, float factor, float addend, float* sums) {
  for (size_t round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < CHAINS; ++i) sums[i] = sums[i] * factor + addend;
  }
}

float read(float x) { return x; }
float read(Bf16 x) { return dslide::widen(x); }

template <class Stored> void weighted_sum(float* out, size_t n, const int32_t* ids, const float* values, size_t count,
                                          size_t, const Stored* base, size_t stride) {
  for (size_t j = 0; j < n; ++j) {
    double sum = out[j];
    for (size_t i = 0; i < count; ++i) sum += double{values[i]} * read(base[ids[i] * stride + j]);
    out[j] = static_cast<float>(sum);
  }
}

void widen(const Bf16* from, float* to, size_t n) {
  for (size_t i = 0; i < n; ++i) to[i] = dslide::widen(from[i]);
}

// 16 random bits for a column.
uint32_t random_bits(uint32_t seed, size_t column) {
  return (seed + static_cast<uint32_t>(column) * COLUMN_SEED) & 0xffff;
}

// Stores x. As bf16: rounds away from zero if the dropped 16 bits plus the random number reach 2^16.
void put(const StoredArray& to, size_t i, float x, uint32_t random) {
  if (!to.is_bf16) {
    to.as_float()[i] = x;
    return;
  }
  const auto bits = std::bit_cast<uint32_t>(x);
  const bool can_grow = std::fabs(x) < 0x1.FEp127f;  // below the largest finite bf16; false for NaN
  const bool up = can_grow && (bits & 0xffff) + random > 0xffff;
  to.as_bf16()[i] = {static_cast<uint16_t>((bits >> 16) + (up ? 1 : 0))};
}

void adam(StoredArray w, StoredArray m, StoredArray v, const float* g, size_t n, const AdamStep& s, uint32_t seed) {
  for (size_t i = 0; i < n; ++i) {
    const float first = s.beta1 * m[i] + (1 - s.beta1) * g[i];
    const float second = s.beta2 * v[i] + (1 - s.beta2) * g[i] * g[i];
    const float mean = first * s.correct1, root = std::sqrt(second * s.correct2);
    const uint32_t random = random_bits(seed, i);
    put(w, i, w[i] * s.keep - s.rate * mean / (root + s.epsilon), random);
    put(m, i, first, random);
    put(v, i, second, random);
  }
}

void adagrad(StoredArray w, StoredArray v, const float* g, size_t n, float rate, float epsilon, float keep,
             uint32_t seed) {
  for (size_t i = 0; i < n; ++i) {
    const float second = v[i] + g[i] * g[i];
    const uint32_t random = random_bits(seed, i);
    put(w, i, w[i] * keep - rate * g[i] / (std::sqrt(second) + epsilon), random);
    put(v, i, second, random);
  }
}

void sgd(StoredArray w, const float* g, size_t n, float rate, float keep, uint32_t seed) {
  for (size_t i = 0; i < n; ++i) put(w, i, w[i] * keep - rate * g[i], random_bits(seed, i));
}
}  // namespace

const Kernels& table() {
  // clang-format off: it would take a line for each
  static const Kernels t = {
      "reference", 1, gemm<float>, gemm<Bf16Pair>, dot<Bf16Pair>, pair_up, pair_neighbours, pack, dot<float>, dot_int8, widen_int8, axpy,
      signed_sums, positive_bits, add_choices, shifted_max, softmax_stats, softmax_gradient, exponentials, column_sums,
      sigmoid_gradient, multiply_add, weighted_sum<float>, weighted_sum<Bf16>, widen, adam, adagrad, sgd};
  // clang-format on
  return t;
}
}  // namespace dslide::reference
