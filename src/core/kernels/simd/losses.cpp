// Loss kernels: exponentials, softmax and sigmoid.
#include "kernels/simd/vector.hpp"

namespace dslide::DSLIDE_LEVEL {
namespace {
constexpr float MAX_SUM = 1e26f;  // a sum of exponentials above this raises the reference

// exp(x) for x <= 88 with a relative error of about 2e-7; constant (the smallest normal floats) below -87.3. NaN stays
// NaN. Minimax polynomial of degree 5 on [-0.5, 0.5] of x / log 2.
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

// log(1 + u) for 0 <= u <= 1, as 2 atanh(u / (2 + u)).
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

float shifted_max(const float* z, const float* shift, size_t n) {
  V largest = splat(-__builtin_inff());
  size_t i = 0;
  for (; i + W <= n; i += W) largest = vmax(load(z + i) + load(shift + i), largest);
  if (i < n) largest = vmax(load_part(z + i, n - i, -__builtin_inff()) + load_part(shift + i, n - i), largest);
  return max_lanes(largest);
}

// Sum of exp(z[i] + shift[i] - reference), each term at most 1.6e38.
inline float sum_of_exponentials(const float* z, const float* shift, size_t n, float reference) {
  const auto exponential = [&](V x) { return vexp(vmin(splat(88.0f), x - reference)); };
  V total{};
  size_t i = 0;
  for (; i + W <= n; i += W) total += exponential(load(z + i) + load(shift + i));
  if (i < n) total += exponential(load_part(z + i, n - i, -__builtin_inff()) + load_part(shift + i, n - i));
  return sum_lanes(total);
}

void softmax_stats(size_t rows, size_t n, const float* z, size_t ldz, const float* shift, float* reference,
                   float* sum) {
  for (size_t row = 0; row < rows && n > 0; ++row, z += ldz) {
    float here = sum_of_exponentials(z, shift, n, reference[row]);
    if (!(here <= MAX_SUM)) {  // the first time and rarely afterwards
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

// `count` <= W columns; other lanes are not written.
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
  if (raised) {  // the first time and rarely afterwards
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
}  // namespace

void register_losses(Kernels& table) {
  table.shifted_max = shifted_max;
  table.softmax_stats = softmax_stats;
  table.softmax_gradient = softmax_gradient;
  table.exponentials = exponentials;
  table.sigmoid_gradient = sigmoid_gradient;
}
}  // namespace dslide::DSLIDE_LEVEL
