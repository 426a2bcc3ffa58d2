#include "parameters.hpp"

#include <cmath>
#include <stdexcept>

#include "aligned.hpp"
#include "pool.hpp"
#include "rng.hpp"

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

// Whether all of it is finite and can be squared, so that no weight or moment becomes infinite.
bool usable(const float* gradient, size_t n) { return std::isfinite(kernels().dot(gradient, gradient, n)); }

void step(float* w, float* m, float* v, const float* g, size_t n, uint32_t clock, const Optimizer& optimizer) {
  const Kernels& kernel = kernels();
  switch (optimizer.kind()) {
    case Optimizer::Kind::adam: return kernel.adam(w, m, v, g, n, optimizer.adam_step(clock));
    case Optimizer::Kind::adagrad:
      return kernel.adagrad(w, v, g, n, optimizer.rate, optimizer.epsilon(), optimizer.keep());
    case Optimizer::Kind::sgd: return kernel.sgd(w, g, n, optimizer.rate, optimizer.keep());
  }
}

}  // namespace

void Parameters::add_value_lines(size_t i, std::vector<const void*>& lines) const {
  const size_t first = i * stride;
  for (size_t at = first; at < first + width; at += CACHE_LINE / sizeof(float)) lines.push_back(value + at);
}

void Parameters::add_moment_lines(size_t i, std::vector<const void*>& lines) const {
  const size_t first = i * stride;
  for (size_t at = first; at < first + width; at += CACHE_LINE / sizeof(float)) {
    if (moment1) lines.push_back(moment1 + at);
    if (moment2) lines.push_back(moment2 + at);
  }
  lines.push_back(clock + i);
}

bool Parameters::update(size_t i, const float* gradient, const Optimizer& optimizer) const {
  if (!usable(gradient, width)) return false;
  const size_t at = i * stride;
  step(value + at, moment1 ? moment1 + at : nullptr, moment2 ? moment2 + at : nullptr, gradient, width, clock[i],
       optimizer);
  ++clock[i];
  return true;
}

bool Parameters::update_columns(size_t i, const int32_t* columns, size_t count, const float* gradient,
                                const Optimizer& optimizer) const {
  if (!usable(gradient, count)) return false;
  for (size_t j = 0; j < count; ++j) {
    const size_t at = i * stride + static_cast<size_t>(columns[j]);
    step(value + at, moment1 ? moment1 + at : nullptr, moment2 ? moment2 + at : nullptr, gradient + j, 1, clock[i],
         optimizer);
  }
  ++clock[i];
  return true;
}

void check_bias(const Parameters& bias, size_t neurons) {
  if (bias.rows != neurons || bias.width != 1 || bias.stride != 1) {
    throw std::invalid_argument("bias must be neurons x 1");
  }
}

void initialise(float* value, size_t rows, size_t width, size_t stride, float scale, uint64_t seed,
                const Stripe& rows_of, const Stripe& columns_of) {
  const float reach = scale * std::sqrt(3.0f);
  run_parts(rows, [&](size_t begin, size_t end, int) {
    for (size_t i = begin; i < end; ++i) {
      const uint64_t row_seed = mix(seed, rows_of.whole(i));
      float* row = value + i * stride;
      for (size_t j = 0; j < width; ++j) row[j] = reach * (2 * unit_float(mix(row_seed ^ columns_of.whole(j))) - 1);
      for (size_t j = width; j < stride; ++j) row[j] = 0;
    }
  });
}

}  // namespace dslide
