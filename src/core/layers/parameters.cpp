#include "layers/parameters.hpp"
#include <cmath>
#include "runtime/checks.hpp"
#include "runtime/rng.hpp"
#include "runtime/thread_pool.hpp"

namespace dslide {
Optimizer::Optimizer(Kind kind, float beta1, float beta2, float epsilon, float weight_decay)
    : kind_(kind), beta1_(beta1), beta2_(beta2), epsilon_(epsilon), weight_decay_(weight_decay) {
  double power1 = 1, power2 = 1;
  do {
    power1 *= beta1;
    power2 *= beta2;
    correct1_.push_back(static_cast<float>(1 / (1 - power1)));
    correct2_.push_back(static_cast<float>(1 / (1 - power2)));
  } while ((power1 > 1e-9 || power2 > 1e-9) && correct1_.size() < (1u << 20));
}

AdamStep Optimizer::adam_step(uint32_t clock) const {
  const size_t t = clock < correct1_.size() ? clock : correct1_.size() - 1;
  return {rate, beta1_, beta2_, epsilon_, correct1_[t], correct2_[t], keep()};
}

namespace {
// Whether the squared norm is finite: then no weight or moment becomes infinite.
bool has_finite_norm(const float* gradient, size_t n) { return std::isfinite(kernels().dot(gradient, gradient, n)); }

void step(StoredArray w, StoredArray m, StoredArray v, const float* g, size_t n, uint32_t clock,
          const Optimizer& optimizer, uint32_t seed) {
  const Kernels& kernel = kernels();
  switch (optimizer.kind()) {
    case Optimizer::Kind::adam: return kernel.adam(w, m, v, g, n, optimizer.adam_step(clock), seed);
    case Optimizer::Kind::adagrad:
      return kernel.adagrad(w, v, g, n, optimizer.rate, optimizer.epsilon(), optimizer.keep(), seed);
    case Optimizer::Kind::sgd: return kernel.sgd(w, g, n, optimizer.rate, optimizer.keep(), seed);
  }
}

// Seed of a row's stochastic rounding; 0 if nothing is rounded.
uint32_t rounding_seed(const Parameters& p, size_t row) {
  if (!p.value.is_bf16 && !p.moment1.is_bf16 && !p.moment2.is_bf16) return 0;
  return static_cast<uint32_t>(mix(uint64_t{p.clock[row]} << 32 | row));
}

// The cache lines of `count` numbers, as if aligned: then no line of a padded row is missed.
CacheLines cache_lines(const StoredArray& x, size_t count) {
  return {static_cast<const char*>(x.data), (count * x.item_bytes() + CACHE_LINE - 1) / CACHE_LINE};
}
}  // namespace

const float* Parameters::row(size_t i, float* scratch) const {
  if (int8) {
    kernels().widen_int8(int8 + i * value_pitch, scale[i], scratch, stride);
    return scratch;
  }
  const StoredArray from = value_of(i);
  if (!from.is_bf16) return from.as_float();
  kernels().widen(from.as_bf16(), scratch, stride);
  return scratch;
}

float Parameters::dot(size_t i, const float* x, float* scratch) const {
  if (int8) return scale[i] * kernels().dot_int8(x, int8 + i * value_pitch, stride);
  return kernels().dot(x, row(i, scratch), stride);
}

void Parameters::add_rows(const int32_t* ids, const float* values, size_t count, size_t known, float* out) const {
  if (int8) {
    AlignedFloats widened(stride);
    for (size_t e = 0; e < count; ++e) kernels().axpy(values[e], row(ids[e], widened.data()), out, width);
  } else if (value.is_bf16) {
    kernels().weighted_sum_bf16(out, width, ids, values, count, known, value.as_bf16(), value_pitch);
  } else {
    kernels().weighted_sum(out, width, ids, values, count, known, value.as_float(), value_pitch);
  }
}

void Parameters::add_value(size_t i, std::vector<CacheLines>& ranges) const {
  ranges.push_back(cache_lines(value_of(i), width));
}

void Parameters::add_moments(size_t i, std::vector<CacheLines>& ranges) const {
  if (moment1) ranges.push_back(cache_lines(moment1_of(i), width));
  if (moment2) ranges.push_back(cache_lines(moment2_of(i), width));
}

void Parameters::add_clock(size_t i, std::vector<CacheLines>& ranges) const {
  ranges.push_back({reinterpret_cast<const char*>(clock + i), 1});
}

void Parameters::prefetch_row(size_t i) const {
  prefetch(cache_lines(value_of(i), width));
  if (moment1) prefetch(cache_lines(moment1_of(i), width));
  if (moment2) prefetch(cache_lines(moment2_of(i), width));
  __builtin_prefetch(clock + i, 0, 2);
}

bool Parameters::update(size_t i, const float* gradient, const Optimizer& optimizer) const {
  if (!has_finite_norm(gradient, width)) return false;
  step(value_of(i), moment1_of(i), moment2_of(i), gradient, width, clock[i], optimizer, rounding_seed(*this, i));
  ++clock[i];
  return true;
}

bool Parameters::update_columns(size_t i, const int32_t* columns, size_t count, const float* gradient,
                                const Optimizer& optimizer) const {
  if (!has_finite_norm(gradient, count)) return false;
  const uint32_t seed = rounding_seed(*this, i);
  for (size_t j = 0; j < count; ++j) {
    const size_t column = columns[j];
    step(value_of(i).from(column), moment1_of(i).from(column), moment2_of(i).from(column), gradient + j, 1, clock[i],
         optimizer, seed + static_cast<uint32_t>(columns[j]) * COLUMN_SEED);
  }
  ++clock[i];
  return true;
}

void check_bias(const Parameters& bias, size_t neurons) {
  require(bias.rows == neurons && bias.width == 1 && bias.stride == 1 && !bias.value.is_bf16 && !bias.int8,
          "bias must be neurons x 1 floats");
}

void initialise(const StoredArray& value, size_t rows, size_t width, size_t stride, size_t pitch, float scale,
                uint64_t seed, const Stripe& rows_of, const Stripe& columns_of) {
  const float reach = scale * std::sqrt(3.0f);
  parallel_each(rows, [&](size_t i) {
    const uint64_t row_seed = mix(seed, rows_of.to_global(i));
    const StoredArray row = value.from(i * pitch);
    for (size_t j = 0; j < stride; ++j) {
      const float number = reach * (2 * unit_float(mix(row_seed ^ columns_of.to_global(j))) - 1);
      row.set(j, j < width ? number : 0);
    }
  });
}
}  // namespace dslide
