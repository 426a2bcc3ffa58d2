#include "layers/parameters.hpp"

#include <cmath>
#include <stdexcept>

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

// Whether all of it is finite and can be squared, so that no weight or moment becomes infinite.
bool usable(const float* gradient, size_t n) { return std::isfinite(kernels().dot(gradient, gradient, n)); }

void step(Numbers w, Numbers m, Numbers v, const float* g, size_t n, uint32_t clock, const Optimizer& optimizer,
          uint32_t seed) {
  const Kernels& kernel = kernels();
  switch (optimizer.kind()) {
    case Optimizer::Kind::adam: return kernel.adam(w, m, v, g, n, optimizer.adam_step(clock), seed);
    case Optimizer::Kind::adagrad:
      return kernel.adagrad(w, v, g, n, optimizer.rate, optimizer.epsilon(), optimizer.keep(), seed);
    case Optimizer::Kind::sgd: return kernel.sgd(w, g, n, optimizer.rate, optimizer.keep(), seed);
  }
}

// For the random bits of a row's step, if there is anything to round.
uint32_t rounding_seed(const Parameters& p, size_t row) {
  if (!p.value.is_half && !p.moment1.is_half && !p.moment2.is_half) return 0;
  return static_cast<uint32_t>(mix(uint64_t{p.clock[row]} << 32 | row));
}

// The memory of `count` numbers, as if they began with a cache line: then none of a padded row's is missed.
Piece piece(const Numbers& x, size_t count) {
  return {static_cast<const char*>(x.data), (count * x.bytes_each() + CACHE_LINE - 1) / CACHE_LINE};
}

}  // namespace

const float* Parameters::row(size_t i, float* room) const {
  const Numbers from = value_of(i);
  if (!from.is_half) return from.floats();
  kernels().widen(from.halves(), room, stride);
  return room;
}

void Parameters::add_rows(const int32_t* ids, const float* values, size_t count, float* out) const {
  if (value.is_half) {
    kernels().weighted_sum_half(out, width, ids, values, count, value.halves(), value_pitch);
  } else {
    kernels().weighted_sum(out, width, ids, values, count, value.floats(), value_pitch);
  }
}

void Parameters::add_value(size_t i, std::vector<Piece>& pieces) const { pieces.push_back(piece(value_of(i), width)); }

void Parameters::add_moments(size_t i, std::vector<Piece>& pieces) const {
  if (moment1) pieces.push_back(piece(moment1_of(i), width));
  if (moment2) pieces.push_back(piece(moment2_of(i), width));
}

void Parameters::add_clock(size_t i, std::vector<Piece>& pieces) const {
  pieces.push_back({reinterpret_cast<const char*>(clock + i), 1});
}

void Parameters::ask_for_row(size_t i) const {
  ask_for(piece(value_of(i), width));
  if (moment1) ask_for(piece(moment1_of(i), width));
  if (moment2) ask_for(piece(moment2_of(i), width));
  __builtin_prefetch(clock + i, 0, 2);
}

bool Parameters::update(size_t i, const float* gradient, const Optimizer& optimizer) const {
  if (!usable(gradient, width)) return false;
  step(value_of(i), moment1_of(i), moment2_of(i), gradient, width, clock[i], optimizer, rounding_seed(*this, i));
  ++clock[i];
  return true;
}

bool Parameters::update_columns(size_t i, const int32_t* columns, size_t count, const float* gradient,
                                const Optimizer& optimizer) const {
  if (!usable(gradient, count)) return false;
  const uint32_t seed = rounding_seed(*this, i);
  for (size_t j = 0; j < count; ++j) {
    const auto column = static_cast<size_t>(columns[j]);
    step(value_of(i).from(column), moment1_of(i).from(column), moment2_of(i).from(column), gradient + j, 1, clock[i],
         optimizer, seed + static_cast<uint32_t>(columns[j]) * COLUMN_SEED);
  }
  ++clock[i];
  return true;
}

void check_bias(const Parameters& bias, size_t neurons) {
  if (bias.rows != neurons || bias.width != 1 || bias.stride != 1 || bias.value.is_half) {
    throw std::invalid_argument("bias must be neurons x 1 floats");
  }
}

void initialise(const Numbers& value, size_t rows, size_t width, size_t stride, size_t pitch, float scale,
                uint64_t seed, const Stripe& rows_of, const Stripe& columns_of) {
  const float reach = scale * std::sqrt(3.0f);
  run_parts(rows, [&](size_t begin, size_t end, int) {
    for (size_t i = begin; i < end; ++i) {
      const uint64_t row_seed = mix(seed, rows_of.whole(i));
      const Numbers row = value.from(i * pitch);
      for (size_t j = 0; j < stride; ++j) {
        const float number = reach * (2 * unit_float(mix(row_seed ^ columns_of.whole(j))) - 1);
        row.set_nearest(j, j < width ? number : 0);
      }
    }
  });
}

}  // namespace dslide
