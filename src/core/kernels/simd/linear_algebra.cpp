// Linear algebra on floats: matrix products, dot products and sums.
#include "kernels/simd/gemm.hpp"

namespace dslide::DSLIDE_LEVEL {
namespace {
struct Floats {  // element type for gemm.hpp
  using Number = float;
  using Vector = V;
  static V load_vector(const float* p) { return load(p); }
  static V broadcast(const float* p) { return splat(*p); }
  static V multiply_add(V left, V right, V sum) { return sum + left * right; }
  static float multiply_add(float left, float right, float sum) { return sum + left * right; }
};

constexpr size_t LINE = 16;  // floats in a cache line

void gemm(size_t m, size_t n, size_t k, const float* a, size_t a_row, size_t a_col, const float* b, size_t ldb,
          float* c, size_t ldc, bool accumulate, PrefetchQueue* queue) {
  (accumulate ? product<Floats, true> : product<Floats, false>)(m, n, k, a, a_row, a_col, b, ldb, c, ldc, queue);
}

void pack(const float* const* rows, size_t count, size_t width, size_t n, float* out, size_t ld) {
  typedef float Four __attribute__((vector_size(16)));
  typedef int32_t Places __attribute__((vector_size(16)));
  static const float zeros[LINE] = {};
  for (size_t p = 0; p < n; p += LINE) {  // one cache line of each row at a time
    const size_t line = n - p < LINE ? n - p : LINE;
    for (size_t c = 0; c < width; c += 4) {
      const float* row[4];
      for (size_t i = 0; i < 4; ++i) row[i] = c + i < count ? rows[c + i] + p : zeros;
      for (size_t q = 0; q < line; q += 4) {  // transpose 4 x 4 floats
        Four a[4];
        for (size_t i = 0; i < 4; ++i) memcpy(&a[i], row[i] + q, sizeof(Four));
        const Four low01 = shuffled(a[0], a[1], Places{0, 4, 1, 5}), low23 = shuffled(a[2], a[3], Places{0, 4, 1, 5});
        const Four high01 = shuffled(a[0], a[1], Places{2, 6, 3, 7}), high23 = shuffled(a[2], a[3], Places{2, 6, 3, 7});
        const Four transposed[4] = {
            shuffled(low01, low23, Places{0, 1, 4, 5}), shuffled(low01, low23, Places{2, 3, 6, 7}),
            shuffled(high01, high23, Places{0, 1, 4, 5}), shuffled(high01, high23, Places{2, 3, 6, 7})};
        for (size_t i = 0; i < 4; ++i) memcpy(out + (p + q + i) * ld + c, &transposed[i], sizeof(Four));
      }
    }
  }
}

template <class Number> inline float dot_with(const float* a, const Number* b, size_t n) {
  V s0{}, s1{}, s2{}, s3{};
  size_t i = 0;
  for (; i + 4 * W <= n; i += 4 * W) {
    s0 += load(a + i) * load(b + i);
    s1 += load(a + i + W) * load(b + i + W);
    s2 += load(a + i + 2 * W) * load(b + i + 2 * W);
    s3 += load(a + i + 3 * W) * load(b + i + 3 * W);
  }
  for (; i + W <= n; i += W) s0 += load(a + i) * load(b + i);
  float tail = 0;
  for (; i < n; ++i) tail += a[i] * static_cast<float>(b[i]);
  return sum_lanes((s0 + s1) + (s2 + s3)) + tail;
}
float dot(const float* a, const float* b, size_t n) { return dot_with(a, b, n); }
float dot_int8(const float* a, const int8_t* b, size_t n) { return dot_with(a, b, n); }

void widen_int8(const int8_t* from, float scale, float* to, size_t n) {
  size_t i = 0;
  for (; i + W <= n; i += W) store(to + i, scale * load(from + i));
  for (; i < n; ++i) to[i] = scale * static_cast<float>(from[i]);
}

void axpy(float a, const float* x, float* y, size_t n) {
  size_t i = 0;
  for (; i + W <= n; i += W) store(y + i, load(y + i) + a * load(x + i));
  for (; i < n; ++i) y[i] += a * x[i];
}

// COLUMNS vectors of sums stay in registers over all rows.
template <int COLUMNS> inline void sum_columns(size_t rows, const float* z, size_t ldz, float* sums) {
  V sum[COLUMNS];
#pragma GCC unroll 8
  for (int j = 0; j < COLUMNS; ++j) sum[j] = load(sums + j * W);
  for (size_t row = 0; row < rows; ++row, z += ldz) {
#pragma GCC unroll 8
    for (int j = 0; j < COLUMNS; ++j) sum[j] += load(z + j * W);
  }
#pragma GCC unroll 8
  for (int j = 0; j < COLUMNS; ++j) store(sums + j * W, sum[j]);
}

void column_sums(size_t rows, size_t n, const float* z, size_t ldz, float* sums) {
  size_t j = 0;
  for (; j + 4 * W <= n; j += 4 * W) sum_columns<4>(rows, z + j, ldz, sums + j);
  for (; j + W <= n; j += W) sum_columns<1>(rows, z + j, ldz, sums + j);
  for (; j < n; ++j) {
    for (size_t row = 0; row < rows; ++row) sums[j] += z[row * ldz + j];
  }
}

void multiply_add(size_t rounds, float factor, float addend, float* sums) {
  const V by = splat(factor), plus = splat(addend);
  V sum[CHAINS];
#pragma GCC unroll 12
  for (size_t i = 0; i < CHAINS; ++i) sum[i] = load(sums + i * W);
#pragma GCC unroll 4
  for (size_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
    for (size_t i = 0; i < CHAINS; ++i) sum[i] = sum[i] * by + plus;
  }
#pragma GCC unroll 12
  for (size_t i = 0; i < CHAINS; ++i) store(sums + i * W, sum[i]);
}
}  // namespace

// Filled on first use: there must be no static initialisers.
const Kernels& table() {
  static Kernels t;
  t = Kernels{};
  t.lanes = W;
  t.gemm = gemm;
  t.pack = pack;
  t.dot = dot;
  t.dot_int8 = dot_int8;
  t.widen_int8 = widen_int8;
  t.axpy = axpy;
  t.column_sums = column_sums;
  t.multiply_add = multiply_add;
  register_bf16_pairs(t);
  register_parameter_rows(t);
  register_losses(t);
  register_simhash(t);
  return t;
}
}  // namespace dslide::DSLIDE_LEVEL
