// Slow, obvious versions of every kernel, in double precision where sums are long: what the fast ones must equal.
#include <cmath>
#include <limits>

#include "kernels.hpp"

namespace dslide {
namespace reference {
namespace {

void gemm(size_t m, size_t n, size_t k, const float* a, size_t a_row, size_t a_col, const float* b, size_t ldb,
          float* c, size_t ldc, bool accumulate, Lines*) {
  for (size_t i = 0; i < m; ++i) {
    for (size_t j = 0; j < n; ++j) {
      double sum = accumulate ? c[i * ldc + j] : 0.0;
      for (size_t p = 0; p < k; ++p) sum += double{a[i * a_row + p * a_col]} * b[p * ldb + j];
      c[i * ldc + j] = static_cast<float>(sum);
    }
  }
}

float dot(const float* a, const float* b, size_t n) {
  double sum = 0;
  for (size_t i = 0; i < n; ++i) sum += double{a[i]} * b[i];
  return static_cast<float>(sum);
}

void axpy(float a, const float* x, float* y, size_t n) {
  for (size_t i = 0; i < n; ++i) y[i] += a * x[i];
}

void weighted_sum(float* out, size_t n, const int32_t* ids, const float* values, size_t count, const float* base,
                  size_t stride) {
  for (size_t j = 0; j < n; ++j) {
    double sum = out[j];
    for (size_t i = 0; i < count; ++i) sum += double{values[i]} * base[static_cast<size_t>(ids[i]) * stride + j];
    out[j] = static_cast<float>(sum);
  }
}

float shifted_max(const float* z, const float* shift, size_t n) {
  float largest = -std::numeric_limits<float>::infinity();
  for (size_t i = 0; i < n; ++i) largest = std::fmax(largest, z[i] + shift[i]);
  return largest;
}

void softmax_stats(size_t rows, size_t n, const float* z, size_t ldz, const float* shift, float* maximum, float* sum) {
  for (size_t row = 0; row < rows && n > 0; ++row, z += ldz) {
    const float old = maximum[row], now = std::max(old, shifted_max(z, shift, n));
    double total = sum[row] > 0 ? sum[row] * std::exp(double{old} - now) : 0;
    for (size_t i = 0; i < n; ++i) total += std::exp(double{z[i]} + shift[i] - now);
    maximum[row] = now;
    sum[row] = static_cast<float>(total);
  }
}

void softmax_gradient(size_t rows, size_t n, float* z, size_t ldz, const float* shift, const float* log_norm,
                      float scale) {
  for (size_t row = 0; row < rows; ++row, z += ldz) {
    for (size_t i = 0; i < n; ++i) {
      z[i] = static_cast<float>(scale * std::exp(double{z[i]} + shift[i] - log_norm[row]));
    }
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

void adam(float* w, float* m, float* v, const float* g, size_t n, const AdamStep& s) {
  for (size_t i = 0; i < n; ++i) {
    m[i] = s.beta1 * m[i] + (1 - s.beta1) * g[i];
    v[i] = s.beta2 * v[i] + (1 - s.beta2) * g[i] * g[i];
    const float mean = m[i] * s.correct1, root = std::sqrt(v[i] * s.correct2);
    w[i] = w[i] * s.keep - s.rate * mean / (root + s.epsilon);
  }
}

void adagrad(float* w, float* v, const float* g, size_t n, float rate, float epsilon, float keep) {
  for (size_t i = 0; i < n; ++i) {
    v[i] += g[i] * g[i];
    w[i] = w[i] * keep - rate * g[i] / (std::sqrt(v[i]) + epsilon);
  }
}

void sgd(float* w, const float* g, size_t n, float rate, float keep) {
  for (size_t i = 0; i < n; ++i) w[i] = w[i] * keep - rate * g[i];
}

void multiply_add(size_t rounds, float factor, float addend, float* sums) {
  for (size_t round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < CHAINS; ++i) sums[i] = sums[i] * factor + addend;
  }
}

}  // namespace

const Kernels& table() {
  static const Kernels t{"reference",   1,   gemm,    dot,  axpy,   weighted_sum,     shifted_max,
                         softmax_stats, softmax_gradient, sigmoid_gradient, adam, adagrad, sgd,
                         multiply_add};
  return t;
}

}  // namespace reference
}  // namespace dslide
