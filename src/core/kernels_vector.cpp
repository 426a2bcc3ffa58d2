// The fast kernels on plain floats.
#include <math.h>
#if defined(__x86_64__)
#include <immintrin.h>  // always inlined: see kernels_vector.hpp
#endif

#include "kernels_vector.hpp"

namespace dslide {
namespace DSLIDE_LEVEL {
namespace {

constexpr size_t LINE = 16;  // floats in a cache line

#if defined(__AVX512F__)
constexpr int TILE_ROWS = 6;  // a gemm tile of 6 rows x 4 vectors takes 24 of 32 registers
#else
constexpr int TILE_ROWS = 3;  // 3 rows x 4 vectors take 12 of 16 registers, 3 + 1 are left for the factors
#endif

// The larger or smaller, b if either is NaN: what these instructions give. (GCC makes two of a > b ? a : b.)
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

constexpr float FAR_ABOVE = 1e26f;  // a sum of exponentials from which on what they are relative to is raised

// All lanes joined by `join`, which is given vectors: halves against halves, until one lane is left.
template <class Join>
inline float join_lanes(V v, const Join& join) {
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

// The first `n` < W floats at p, the rest `other`.
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

// exp of x up to 88, to about 2e-7 relative; below -87.3 it stays what it is there, the smallest normal floats. NaN stays
// NaN. The polynomial is the best of degree 5 on the half-unit around 0 of x / log 2 (least largest relative error).
inline V vexp(V x) {
  x = vmax(splat(-87.3f), x);
  const V magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer in the low bits
  const V shifted = x * 1.44269504f + magic;
  const V n = shifted - magic;
  const V r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  V p = splat(0.00831252523f);
  p = p * r + 0.0418901145f;
  p = p * r + 0.166671142f;
  p = p * r + 0.499992311f;
  p = p * r * r + r + 1.0f;
  const I power = (reinterpret_cast<I>(shifted) << 23) + reinterpret_cast<I>(p);
  return reinterpret_cast<V>(power);
}

// log(1 + u) for 0 <= u <= 1, as twice the inverse hyperbolic tangent of u / (2 + u).
inline V vlog1p_unit(V u) {
  const V s = u / (u + 2.0f), q = s * s;
  V p = splat(1.0f / 15);
  p = p * q + 1.0f / 13;
  p = p * q + 1.0f / 11;
  p = p * q + 1.0f / 9;
  p = p * q + 1.0f / 7;
  p = p * q + 1.0f / 5;
  p = p * q + 1.0f / 3;
  p = p * q + 1.0f;
  return 2.0f * s * p;
}

// ROWS x (VECTORS * W) of C, held in registers over the whole of k. Of A and B the smaller side is held as well while
// the other passes by. Four steps of k at a time: with one, counting and branching take a sixth of the time. Whether to
// accumulate is known to the compiler: deciding it here would put every sum into memory and back before the loop.
template <int ROWS, int VECTORS, bool ACCUMULATE>
inline void tile(size_t k, const float* a, size_t a_row, size_t a_col, const float* b, size_t ldb, float* c,
                 size_t ldc) {
  V sum[ROWS][VECTORS];
#pragma GCC unroll 8
  for (int i = 0; i < ROWS; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < VECTORS; ++j) sum[i][j] = ACCUMULATE ? load(c + i * ldc + j * W) : V{};
  }
#pragma GCC unroll 4
  for (size_t p = 0; p < k; ++p) {
    if constexpr (ROWS < VECTORS) {
      V left[ROWS];
#pragma GCC unroll 8
      for (int i = 0; i < ROWS; ++i) left[i] = splat(a[i * a_row + p * a_col]);
#pragma GCC unroll 8
      for (int j = 0; j < VECTORS; ++j) {
        const V right = load(b + p * ldb + j * W);
#pragma GCC unroll 8
        for (int i = 0; i < ROWS; ++i) sum[i][j] += left[i] * right;
      }
    } else {
      V right[VECTORS];
#pragma GCC unroll 8
      for (int j = 0; j < VECTORS; ++j) right[j] = load(b + p * ldb + j * W);
#pragma GCC unroll 8
      for (int i = 0; i < ROWS; ++i) {
        const V left = splat(a[i * a_row + p * a_col]);
#pragma GCC unroll 8
        for (int j = 0; j < VECTORS; ++j) sum[i][j] += left * right[j];
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < ROWS; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < VECTORS; ++j) store(c + i * ldc + j * W, sum[i][j]);
  }
}

// Asks for a line of each of the next few pieces. A request for a page not used lately holds up what comes behind it until
// the page is found; those of several pieces are found at once.
inline void fetch_some(Ahead* ahead) {
  if (!ahead) return;
  constexpr ptrdiff_t TOGETHER = 16;
  const Piece* const last = ahead->end - ahead->next > TOGETHER ? ahead->next + TOGETHER : ahead->end;
  const size_t line = ahead->line++;
  bool more = false;
  for (const Piece* piece = ahead->next; piece != last; ++piece) {
    if (line >= piece->lines) continue;
    __builtin_prefetch(piece->at + line * LINE * sizeof(float), 0, 2);  // into a farther cache: the product needs this one
    more |= line + 1 < piece->lines;
  }
  if (more) return;
  ahead->next = last;
  ahead->line = 0;
}

// All m rows of a panel of VECTORS * W columns, ROWS at a time.
template <int ROWS, int VECTORS, bool ACCUMULATE>
void panel(size_t m, size_t k, const float* a, size_t a_row, size_t a_col, const float* b, size_t ldb, float* c,
           size_t ldc, Ahead* ahead) {
  size_t i = 0;
  for (; i + ROWS <= m && (m - i != ROWS + 1 || ROWS == 1); i += ROWS) {  // two small tiles rather than a single row
    fetch_some(ahead);
    tile<ROWS, VECTORS, ACCUMULATE>(k, a + i * a_row, a_row, a_col, b, ldb, c + i * ldc, ldc);
  }
  if constexpr (ROWS > 1) {
    if (i < m) {
      panel<(ROWS + 1) / 2, VECTORS, ACCUMULATE>(m - i, k, a + i * a_row, a_row, a_col, b, ldb, c + i * ldc, ldc, ahead);
    }
  }
}

template <bool ACCUMULATE>
void product(size_t m, size_t n, size_t k, const float* a, size_t a_row, size_t a_col, const float* b, size_t ldb,
             float* c, size_t ldc, Ahead* ahead) {
  size_t j = 0;
  for (; j + 4 * W <= n; j += 4 * W) {
    panel<TILE_ROWS, 4, ACCUMULATE>(m, k, a, a_row, a_col, b + j, ldb, c + j, ldc, ahead);
  }
  for (; j + W <= n; j += W) panel<6, 1, ACCUMULATE>(m, k, a, a_row, a_col, b + j, ldb, c + j, ldc, ahead);
  for (; j < n; ++j) {
    for (size_t i = 0; i < m; ++i) {
      float sum = ACCUMULATE ? c[i * ldc + j] : 0.0f;
      for (size_t p = 0; p < k; ++p) sum += a[i * a_row + p * a_col] * b[p * ldb + j];
      c[i * ldc + j] = sum;
    }
  }
}

void gemm(size_t m, size_t n, size_t k, const float* a, size_t a_row, size_t a_col, const float* b, size_t ldb,
          float* c, size_t ldc, bool accumulate, Ahead* ahead) {
  (accumulate ? product<true> : product<false>)(m, n, k, a, a_row, a_col, b, ldb, c, ldc, ahead);
}

void pack(const float* const* rows, size_t count, size_t width, size_t n, float* out, size_t ld) {
  typedef float Four __attribute__((vector_size(16)));
  typedef int32_t Places __attribute__((vector_size(16)));
  static const float zeros[LINE] = {};
  for (size_t p = 0; p < n; p += LINE) {  // a cache line of each row at a time
    const size_t line = n - p < LINE ? n - p : LINE;
    for (size_t c = 0; c < width; c += 4) {
      const float* row[4];
      for (size_t i = 0; i < 4; ++i) row[i] = c + i < count ? rows[c + i] + p : zeros;
      for (size_t q = 0; q < line; q += 4) {  // four floats of four rows change places
        Four a[4];
        for (size_t i = 0; i < 4; ++i) memcpy(&a[i], row[i] + q, sizeof(Four));
        const Four low01 = shuffled(a[0], a[1], Places{0, 4, 1, 5}), low23 = shuffled(a[2], a[3], Places{0, 4, 1, 5});
        const Four high01 = shuffled(a[0], a[1], Places{2, 6, 3, 7}), high23 = shuffled(a[2], a[3], Places{2, 6, 3, 7});
        const Four changed[4] = {
            shuffled(low01, low23, Places{0, 1, 4, 5}), shuffled(low01, low23, Places{2, 3, 6, 7}),
            shuffled(high01, high23, Places{0, 1, 4, 5}), shuffled(high01, high23, Places{2, 3, 6, 7})};
        for (size_t i = 0; i < 4; ++i) memcpy(out + (p + q + i) * ld + c, &changed[i], sizeof(Four));
      }
    }
  }
}

float dot(const float* a, const float* b, size_t n) {
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
  for (; i < n; ++i) tail += a[i] * b[i];
  return sum_lanes((s0 + s1) + (s2 + s3)) + tail;
}

void axpy(float a, const float* x, float* y, size_t n) {
  size_t i = 0;
  for (; i + W <= n; i += W) store(y + i, load(y + i) + a * load(x + i));
  for (; i < n; ++i) y[i] += a * x[i];
}

void add_choices(const float* tiles, const uint8_t* choices, size_t tables, float* sums) {
  typedef float Tile __attribute__((vector_size(32)));  // as one vector, or two
  Tile sum[8];
  memcpy(sum, sums, sizeof sum);
  const char* at = reinterpret_cast<const char*>(tiles);
  for (size_t t = 0; t < tables; ++t, at += 16 * sizeof(Tile), choices += 8) {
#pragma GCC unroll 8
    for (int p = 0; p < 8; ++p) {
      Tile tile;
      memcpy(&tile, at + 8 * static_cast<size_t>(choices[p]), sizeof tile);  // 8: what an address may be scaled by
      sum[p] += tile;
    }
  }
  memcpy(sums, sum, sizeof sum);
}

float shifted_max(const float* z, const float* shift, size_t n) {
  V largest = splat(-__builtin_inff());
  size_t i = 0;
  for (; i + W <= n; i += W) largest = vmax(load(z + i) + load(shift + i), largest);
  if (i < n) largest = vmax(load_part(z + i, n - i, -__builtin_inff()) + load_part(shift + i, n - i), largest);
  return max_lanes(largest);
}

// The sum of exp(z[i] + shift[i] - reference), at most 1.6e38 for each.
inline float sum_of_exponentials(const float* z, const float* shift, size_t n, float reference) {
  const auto exponential = [&](V x) { return vexp(vmin(splat(88.0f), x - reference)); };
  V total{};
  size_t i = 0;
  for (; i + W <= n; i += W) total += exponential(load(z + i) + load(shift + i));
  if (i < n) total += exponential(load_part(z + i, n - i, -__builtin_inff()) + load_part(shift + i, n - i));
  return sum_lanes(total);
}

void softmax_stats(size_t rows, size_t n, const float* z, size_t ldz, const float* shift, float* reference, float* sum) {
  for (size_t row = 0; row < rows && n > 0; ++row, z += ldz) {
    float here = sum_of_exponentials(z, shift, n, reference[row]);
    if (!(here <= FAR_ABOVE)) {  // the first time, and hardly ever again: there the largest is looked for
      const float top = shifted_max(z, shift, n), old = reference[row];
      if (top > old) {
        sum[row] = sum[row] > 0 ? sum[row] * expf(old - top) : 0.0f;
        reference[row] = top;
        here = sum_of_exponentials(z, shift, n, top);
      }
    }
    sum[row] += here;
  }
}

void softmax_gradient(size_t rows, size_t n, const float* z, size_t ldz, const float* shift, const float* log_norm,
                      float scale, float* dz, size_t lddz) {
  const float log_scale = logf(scale);
  for (size_t row = 0; row < rows; ++row, z += ldz, dz += lddz) {
    const float norm = log_norm[row] - log_scale;
    size_t i = 0;
    for (; i + W <= n; i += W) store(dz + i, vexp(load(z + i) + load(shift + i) - norm));
    if (i < n) store_part(dz + i, vexp(load_part(z + i, n - i) + load_part(shift + i, n - i) - norm), n - i);
  }
}

// `count` columns of a vector's width, the others of it left alone.
inline bool exponential_columns(size_t rows, size_t count, float* z, size_t ldz, const float* shift, float* reference,
                                float* sum) {
  const auto get = [count](const float* p) { return count == W ? load(p) : load_part(p, count); };
  const auto put = [count](float* p, V v) {
    if (count == W) {
      store(p, v);
    } else {
      store_part(p, v, count);
    }
  };
  V top = splat(-__builtin_inff());
  for (size_t i = 0; i < rows; ++i) top = vmax(get(z + i * ldz) + shift[i], top);
  V from = get(reference), total = get(sum), here{};
  const I raise = top > from + HEADROOM;
  const bool raised = max_lanes(raise ? splat(1) : V{}) > 0;
  if (raised) {  // the first time, and hardly ever again
    const V now = raise ? top : from;
    total = raise ? total * vexp(from - now) : total;
    from = now;
    put(reference, from);
  }
  for (size_t i = 0; i < rows; ++i) {
    const V e = vexp(get(z + i * ldz) + shift[i] - from);
    here += e;
    put(z + i * ldz, e);
  }
  put(sum, total + here);
  return raised;
}

bool exponentials(size_t rows, size_t n, float* z, size_t ldz, const float* shift, float* reference, float* sum) {
  bool raised = false;
  size_t j = 0;
  if (rows == 0) return false;
  for (; j + W <= n; j += W) raised |= exponential_columns(rows, W, z + j, ldz, shift, reference + j, sum + j);
  if (j < n) raised |= exponential_columns(rows, n - j, z + j, ldz, shift, reference + j, sum + j);
  return raised;
}

// COLUMNS vectors of the sums stay in registers while all rows pass by.
template <int COLUMNS>
inline void sum_columns(size_t rows, const float* z, size_t ldz, float* sums) {
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

// One vector of sigmoid_gradient: adds to the loss, returns the gradient.
inline V sigmoid_vector(V x, V weight, float scale, V* loss) {
  const V size = vmax(x, -x), e = vexp(-size);  // e = exp(-|x|), in (0, 1]
  *loss += weight * (vmax(V{}, x) + vlog1p_unit(e));
  const V big = 1.0f / (1.0f + e);  // sigmoid(|x|)
  return scale * weight * (x < V{} ? e * big : big);
}

float sigmoid_gradient(float* z, const float* shift, const float* weight, size_t n, float scale) {
  V loss{};
  size_t i = 0;
  for (; i + W <= n; i += W) {
    store(z + i, sigmoid_vector(load(z + i) + load(shift + i), load(weight + i), scale, &loss));
  }
  if (i < n) {
    const size_t rest = n - i;
    const V x = load_part(z + i, rest) + load_part(shift + i, rest);
    store_part(z + i, sigmoid_vector(x, load_part(weight + i, rest), scale, &loss), rest);
  }
  return sum_lanes(loss);
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

// Filled in when asked for, not at load time.
const Kernels& table() {
  static Kernels t;
  t = Kernels{};
  t.lanes = W;
  t.gemm = gemm;
  t.pack = pack;
  t.dot = dot;
  t.axpy = axpy;
  t.add_choices = add_choices;
  t.shifted_max = shifted_max;
  t.softmax_stats = softmax_stats;
  t.softmax_gradient = softmax_gradient;
  t.exponentials = exponentials;
  t.column_sums = column_sums;
  t.sigmoid_gradient = sigmoid_gradient;
  t.multiply_add = multiply_add;
  add_stored(t);
  return t;
}

}  // namespace DSLIDE_LEVEL
}  // namespace dslide
