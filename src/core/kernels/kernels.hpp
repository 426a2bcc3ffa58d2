// The arithmetic everything else is made of: pure functions on float arrays, one set per instruction-set level.
//
// kernels_vector.cpp, _pairs.cpp, _loss.cpp, _simhash.cpp and _stored.cpp hold the fast versions and are compiled once
// per level (v2, v3 and v4 of x86-64; one baseline elsewhere; pairs once more for v4 with bf16 instructions);
// kernels_reference.cpp holds slow, obvious ones with the same signatures, which the tests hold the fast ones against
// and which run everything if DSLIDE_ISA=reference. All lengths may be any number, 0 included.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/bf16.hpp"

namespace dslide {

// What Adam needs to know for one update of one row.
struct AdamStep {
  float rate;  // learning rate
  float beta1, beta2, epsilon;
  float correct1;  // 1 / (1 - beta1^t), t = how often this row was updated, this time included
  float correct2;  // 1 / (1 - beta2^t)
  float keep;      // factor on the weight before the step: 1 - rate * weight_decay
};

constexpr uint32_t COLUMN_SEED = 0x9E37;  // golden ratio of 2^16: neighbouring columns get numbers spread evenly

constexpr size_t CHAINS = 12;  // multiply-adds that wait for none of each other: two pipes need 8 to 10 to be full

constexpr float HEADROOM = 60;  // exp(60) is 1e26: sums of as many as there can be neurons don't overflow

// Memory that is needed soon and far away. A matrix product asks for a few cache lines of it at a time: they are then
// read while arithmetic goes on, where a loop over all of them would wait.
struct Piece {
  const char* at;  // somewhere in its first line
  size_t lines;    // at least 1
};
struct Ahead {
  const Piece* next;  // pieces are asked for some at a time, which goes best if those side by side are of a size
  const Piece* end;
  size_t line = 0;  // lines of these that were asked for
};

struct Kernels {
  const char* name;
  size_t lanes;  // floats in a vector

  // C (m x n, rows ldc apart) = or += A (m x k) B (k x n, rows ldb apart).
  // A's element (i, p) is at a[i * a_row + p * a_col], so A may be a transposed view. Memory `ahead`, which may be
  // null, is asked for on the way, as much as there is time for.
  void (*gemm)(size_t m, size_t n, size_t k, const float* a, size_t a_row, size_t a_col, const float* b, size_t ldb,
               float* c, size_t ldc, bool accumulate, Ahead* ahead);

  // The same of pairs: the product of two pairs is that of their first numbers and that of their second, added up. k
  // counts pairs. Denormal numbers may count as 0.
  void (*gemm_pairs)(size_t m, size_t n, size_t k, const BfPair* a, size_t a_row, size_t a_col, const BfPair* b,
                     size_t ldb, float* c, size_t ldc, bool accumulate, Ahead* ahead);

  // sum of the products of a[i] and b[i], i < n
  float (*dot_pairs)(const BfPair* a, const BfPair* b, size_t n);

  // out[i] = (low[i], high[i]), rounded to the nearest; i < n
  void (*pair_up)(const float* low, const float* high, size_t n, BfPair* out);

  // out[i] = (x[2 i], x[2 i + 1]), rounded to the nearest; n numbers, and a 0 behind them if need be
  void (*pair_neighbours)(const float* x, size_t n, BfPair* out);

  // Rows side by side: out[p * ld + c] = rows[c][p] for c < count and p < n, and 0 for c from count to width. n and
  // width are multiples of 4.
  void (*pack)(const float* const* rows, size_t count, size_t width, size_t n, float* out, size_t ld);

  // sum of a[i] * b[i]
  float (*dot)(const float* a, const float* b, size_t n);

  // y[i] += a * x[i]
  void (*axpy)(float a, const float* x, float* y, size_t n);

  // SimHash works on tiles, one number for each of 8 rows. All sums of each group of four tiles x: tile c of the
  // group's 16 is +-x[0] +-x[1] +-x[2] +-x[3], added in this order, x[i] with a plus if bit i of c is set.
  void (*signed_sums)(const float* x, size_t groups, float* tiles);

  // Bit j of words[row] is whether tile j's number for the row is positive, for so many tiles, at most 64, and 8 rows.
  void (*positive_bits)(const float* tiles, size_t count, uint64_t* words);

  // sums[p] += table 0's tile choices[p], then table 1's tile choices[8 + p], and so on, for p < 8 and so many tables
  // of 16 tiles of 8 floats; choices are multiples of 4, four times the number of the tile.
  void (*add_choices)(const float* tiles, const uint8_t* choices, size_t tables, float* sums);

  // The largest z[i] + shift[i]; -infinity for n = 0.
  float (*shifted_max)(const float* z, const float* shift, size_t n);

  // For each row of z (rows x n, ldz apart): adds exp(z[i] + shift[i] - reference) of all i to the row's sum. Where
  // that would be far too large the row's reference becomes its largest value so far, and the sum is brought along. To
  // begin with, the references are -infinity and the sums 0.
  void (*softmax_stats)(size_t rows, size_t n, const float* z, size_t ldz, const float* shift, float* reference,
                        float* sum);

  // For each row of z and dz (rows x n, ldz and lddz apart; dz may be z): dz[i] = scale * exp(z[i] + shift[i] -
  // log_norm[row]), scale > 0
  void (*softmax_gradient)(size_t rows, size_t n, const float* z, size_t ldz, const float* shift, const float* log_norm,
                           float scale, float* dz, size_t lddz);

  // For each column j < n of z (rows x n, ldz apart), in place: z[i][j] = exp(z[i][j] + shift[i] - reference[j]), which
  // are added to the column's sum. Where the largest z + shift is more than HEADROOM above the reference, it becomes
  // the reference first, and the sum is brought along. To begin with, the references are -infinity and the sums 0.
  // True: some reference was raised.
  bool (*exponentials)(size_t rows, size_t n, float* z, size_t ldz, const float* shift, float* reference, float* sum);

  // sums[j] += sum over rows of z[row * ldz + j], j < n
  void (*column_sums)(size_t rows, size_t n, const float* z, size_t ldz, float* sums);

  // z[i] = scale * weight[i] * sigmoid(z[i] + shift[i]); returns sum of weight[i] * log(1 + exp(z[i] + shift[i])),
  // which is the loss, and its gradient, of answering "no" everywhere.
  float (*sigmoid_gradient)(float* z, const float* shift, const float* weight, size_t n, float scale);

  // sums[i] = sums[i] * factor + addend, `rounds` times, for CHAINS * lanes sums that stay in registers: as fast as
  // this set can multiply and add.
  void (*multiply_add)(size_t rounds, float factor, float addend, float* sums);

  // out[j] += sum over i < count of values[i] * base[ids[i] * stride + j], j < n
  void (*weighted_sum)(float* out, size_t n, const int32_t* ids, const float* values, size_t count, const float* base,
                       size_t stride);
  void (*weighted_sum_half)(float* out, size_t n, const int32_t* ids, const float* values, size_t count,
                            const Bf16* base, size_t stride);

  void (*widen)(const Bf16* from, float* to, size_t n);

  // One step of the optimizer on a row of n weights w with gradient g; m and v are its moments, both stored alike.
  //
  // What is stored as bf16 is rounded up or down at random, up with the chance of where it lies between the two: then
  // steps far smaller than a bf16's last place count on average, where rounding to the nearest would drop them all. The
  // random number of column j, the same for weight and moments, is (seed + j * COLUMN_SEED) mod 2^16; it takes the seed
  // to be random. Numbers that bf16 can hold stay as they are, and none that is finite becomes infinite.
  void (*adam)(Numbers w, Numbers m, Numbers v, const float* g, size_t n, const AdamStep& step, uint32_t seed);
  void (*adagrad)(Numbers w, Numbers v, const float* g, size_t n, float rate, float epsilon, float keep, uint32_t seed);
  void (*sgd)(Numbers w, const float* g, size_t n, float rate, float keep, uint32_t seed);
};

// The set in use: the best this machine runs, or the one DSLIDE_ISA names.
const Kernels& kernels();

// A set by name; throws std::invalid_argument if there is none or this machine can't run it.
const Kernels& kernels(const std::string& name);

// Names of the sets this machine runs, "reference" first, best last.
std::vector<std::string> kernel_levels();

}  // namespace dslide
