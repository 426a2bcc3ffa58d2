// A matrix of trainable numbers and what its optimizer remembers about each: views on memory that others own.
//
// Rows are updated one at a time, when a batch touches them, and have clocks of their own: a row's moments and Adam's
// bias correction see only the steps that touched the row. A row touched every step is trained by ordinary Adam; for a
// rare one nothing decays while it is not looked at, and its first step is of ordinary size.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/kernels.hpp"
#include "runtime/aligned.hpp"
#include "runtime/stripe.hpp"

namespace dslide {

class Optimizer {
 public:
  enum class Kind { adam, adagrad, sgd };

  Optimizer(Kind kind, float beta1, float beta2, float epsilon, float weight_decay);

  Kind kind() const { return kind_; }
  float rate = 0;  // learning rate of the present step

  // `clock`: how often the row was updated before.
  AdamStep adam_step(uint32_t clock) const;
  float epsilon() const { return epsilon_; }
  float keep() const { return 1 - rate * weight_decay_; }

 private:
  Kind kind_;
  float beta1_, beta2_, epsilon_, weight_decay_;
  std::vector<float> correct1_, correct2_;  // by clock, until both are 1 to float precision
};

// A row's numbers and moments may lie side by side, in a record, or in arrays apart. A row has room for `stride`
// numbers, `width` of which are used; the distance from one row to the next is that or more.
struct Parameters {
  Numbers value;    // rows x stride
  Numbers moment1;  // same shape, or null if the optimizer has none
  Numbers moment2;  // same shape, or null; stored as moment1 is
  uint32_t* clock;  // rows
  size_t rows, width, stride;
  size_t value_pitch, moment_pitch;  // numbers from one row to the next

  Numbers value_of(size_t i) const { return value.from(i * value_pitch); }
  Numbers moment1_of(size_t i) const { return moment1.from(i * moment_pitch); }
  Numbers moment2_of(size_t i) const { return moment2.from(i * moment_pitch); }

  // Row i as floats, padding included: in place if it is stored so, else in `room`, which must be `stride` floats.
  const float* row(size_t i, float* room) const;
  // How much room that takes for so many rows at a time.
  size_t room(size_t count) const { return value.is_half ? count * stride : 0; }
  float at(size_t i, size_t column) const { return value[i * value_pitch + column]; }

  // out[j] += sum over e < count of values[e] * row ids[e]'s column j, j < width
  void add_rows(const int32_t* ids, const float* values, size_t count, float* out) const;

  // Adds the memory of row i to a list: that of its numbers, that of their moments, that of its clock.
  void add_value(size_t i, std::vector<Piece>& pieces) const;
  void add_moments(size_t i, std::vector<Piece>& pieces) const;
  void add_clock(size_t i, std::vector<Piece>& pieces) const;

  // Asks for all that a step of row i needs.
  void ask_for_row(size_t i) const;

  // One optimizer step on row i. What is stored as bf16 is rounded at random (kernels.hpp), with random bits that are a
  // function of row, column and the row's clock. False, and the row left as it was, if the gradient's square is not
  // finite.
  bool update(size_t i, const float* gradient, const Optimizer& optimizer) const;

  // The same on some columns of row i only; gradient[j] belongs to columns[j].
  bool update_columns(size_t i, const int32_t* columns, size_t count, const float* gradient,
                      const Optimizer& optimizer) const;
};

// Asks for memory, to lie in the second-level cache: a core can wait for far more lines on their way there than for
// lines on their way to the nearest.
inline void ask_for(const Piece& piece) {
  for (size_t i = 0; i < piece.lines; ++i) __builtin_prefetch(piece.at + i * CACHE_LINE, 0, 2);
}

// Throws std::invalid_argument unless `bias` has one float for each of `neurons`.
void check_bias(const Parameters& bias, size_t neurons);

// Fills rows x width numbers, rows `pitch` apart, uniformly in ±scale*sqrt(3) (standard deviation `scale`), each a
// function of (seed, row, column) alone, rounded to the nearest if need be; the padding between width and stride is set
// to zero.
// `rows_of` and `columns_of` say which rows and columns of the whole matrix these are.
void initialise(const Numbers& value, size_t rows, size_t width, size_t stride, size_t pitch, float scale,
                uint64_t seed, const Stripe& rows_of, const Stripe& columns_of);

}  // namespace dslide
