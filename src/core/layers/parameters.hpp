// A matrix of trainable numbers with its optimizer state: views of memory owned elsewhere.
//
// Rows are updated when a batch touches them, and each row has its own clock (update count): its moments and Adam's
// bias correction see only the steps that touched the row. A row touched in every step gets ordinary Adam; for a rare
// row nothing decays between updates, and its first step has the ordinary size.
#pragma once
#include <vector>
#include "kernels/kernels.hpp"
#include "runtime/memory.hpp"
#include "runtime/stripe.hpp"

namespace dslide {
class Optimizer {
 public:
  enum class Kind { adam, adagrad, sgd };

  Optimizer(Kind kind, float beta1, float beta2, float epsilon, float weight_decay);

  Kind kind() const { return kind_; }
  float rate = 0;  // learning rate of the current step

  // `clock`: number of earlier updates of the row.
  AdamStep adam_step(uint32_t clock) const;
  float epsilon() const { return epsilon_; }
  float keep() const { return 1 - rate * weight_decay_; }

 private:
  Kind kind_;
  float beta1_, beta2_, epsilon_, weight_decay_;
  std::vector<float> correct1_, correct2_;  // bias corrections by clock, until both are 1 to float precision
};

// A row has `width` numbers, padded to `stride`. Rows of values and moments may be interleaved in one record per row or
// in separate arrays: the pitch from one row to the next is at least `stride`.
//
// Weights of exported models may be stored as int8, each row with a scale. They are for prediction only, and `value` is
// null.
struct Parameters {
  StoredArray value;    // (rows x stride)
  StoredArray moment1;  // same shape, or null if the optimizer has none
  StoredArray moment2;  // same shape, or null; same storage type as moment1
  uint32_t* clock;      // (rows)
  size_t rows, width, stride;
  size_t value_pitch, moment_pitch;  // in numbers
  const int8_t* int8 = nullptr;      // (rows x stride)
  const float* scale = nullptr;      // (rows): factor on the int8 of a row

  StoredArray value_of(size_t i) const { return value.from(i * value_pitch); }
  StoredArray moment1_of(size_t i) const { return moment1.from(i * moment_pitch); }
  StoredArray moment2_of(size_t i) const { return moment2.from(i * moment_pitch); }

  // Row i as floats, including the padding: in place, or widened into `scratch` (stride floats) if stored otherwise.
  const float* row(size_t i, float* scratch) const;
  // The dot product of row i and x (stride floats); `scratch` as for row().
  float dot(size_t i, const float* x, float* scratch) const;
  // Floats of scratch that row() needs for `count` rows.
  size_t scratch_floats(size_t count) const { return value.is_bf16 || int8 ? count * stride : 0; }
  float at(size_t i, size_t column) const {
    const size_t place = i * value_pitch + column;
    return int8 ? scale[i] * static_cast<float>(int8[place]) : value[place];
  }

  // out[j] += sum over e < count of values[e] * (row ids[e], column j), j < width; the other ids of `known` come next
  void add_rows(const int32_t* ids, const float* values, size_t count, size_t known, float* out) const;

  // Prefetches all values of row i.
  void prefetch_value(size_t i) const {
    const char* at =
        int8 ? reinterpret_cast<const char*>(int8 + i * value_pitch) : static_cast<const char*>(value_of(i).data);
    const size_t bytes = stride * (int8 ? 1 : value.item_bytes());
    for (size_t line = 0; line < bytes; line += CACHE_LINE) __builtin_prefetch(at + line);
  }
  // Append the cache lines of row i to a list: its values, its moments, its clock.
  void add_value(size_t i, std::vector<CacheLines>& ranges) const;
  void add_moments(size_t i, std::vector<CacheLines>& ranges) const;
  void add_clock(size_t i, std::vector<CacheLines>& ranges) const;

  // Prefetches everything that an update of row i reads.
  void prefetch_row(size_t i) const;

  // One optimizer step on row i. bf16 uses stochastic rounding (kernels.hpp) with random bits that are a function of
  // row, column and the row's clock. False, and no change, if the squared norm of the gradient is not finite.
  bool update(size_t i, const float* gradient, const Optimizer& optimizer) const;

  // The same for some columns of row i; gradient[j] belongs to columns[j].
  bool update_columns(size_t i, const int32_t* columns, size_t count, const float* gradient,
                      const Optimizer& optimizer) const;
};

// Throws std::invalid_argument unless `bias` is (neurons x 1) floats.
void check_bias(const Parameters& bias, size_t neurons);

// Fills (rows x width) numbers, rows `pitch` apart, uniformly in +-scale * sqrt(3) (standard deviation `scale`), each a
// function of (seed, row, column), rounded to nearest if stored as bf16; the padding from width to stride becomes 0.
// `rows_of` and `columns_of` are the positions of these rows and columns in the whole matrix.
void initialise(const StoredArray& value, size_t rows, size_t width, size_t stride, size_t pitch, float scale,
                uint64_t seed, const Stripe& rows_of, const Stripe& columns_of);
}  // namespace dslide
