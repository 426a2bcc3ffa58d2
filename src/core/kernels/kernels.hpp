// The arithmetic of the core: pure functions on float arrays, one set per instruction-set level.
//
// kernels/simd holds the fast versions, compiled once per level (x86-64 v2, v3 and v4; one baseline elsewhere;
// bf16_pairs.cpp once more for v4 with AVX512-BF16). reference.cpp holds slow, simple ones with the same signatures:
// the oracle of the tests, and the implementation if DSLIDE_ISA=reference. Any length is allowed, including 0.
#pragma once
#include <string>
#include <vector>
#include "runtime/bf16.hpp"
#include "runtime/memory.hpp"

namespace dslide {
// Coefficients of one Adam update of one row.
struct AdamStep {
  float rate;  // learning rate
  float beta1, beta2, epsilon;
  float correct1;  // 1 / (1 - beta1^t), t = number of updates of this row, this one included
  float correct2;  // 1 / (1 - beta2^t)
  float keep;      // decoupled weight decay: factor on the weight, 1 - rate * weight_decay
};

constexpr uint32_t COLUMN_SEED = 0x9E37;  // 2^16 / golden ratio: spreads the random numbers of neighbours evenly
constexpr size_t CHAINS = 12;             // independent multiply-adds: two FMA pipes need 8 to 10 in flight
constexpr float HEADROOM = 60;            // exp(60) is 1e26: a sum over 2^31 neurons does not overflow

struct Kernels {
  const char* name;
  size_t lanes;  // floats in a vector

  // C (m x n, leading dimension ldc) = or += A (m x k) B (k x n, leading dimension ldb).
  // A's element (i, p) is a[i * a_row + p * a_col], so A may be a transposed view. Prefetches from `queue`, which may
  // be null, as much as there is time for.
  void (*gemm)(size_t m, size_t n, size_t k, const float* a, size_t a_row, size_t a_col, const float* b, size_t ldb,
               float* c, size_t ldc, bool accumulate, PrefetchQueue* queue);

  // The same for bf16 pairs: the product of two pairs is the dot product of their elements. k counts pairs. Denormals
  // may be treated as 0.
  void (*gemm_pairs)(size_t m, size_t n, size_t k, const Bf16Pair* a, size_t a_row, size_t a_col, const Bf16Pair* b,
                     size_t ldb, float* c, size_t ldc, bool accumulate, PrefetchQueue* queue);

  // sum of a[i] * b[i] over i < n pairs
  float (*dot_pairs)(const Bf16Pair* a, const Bf16Pair* b, size_t n);

  // out[i] = (low[i], high[i]), rounded to nearest even; i < n
  void (*pair_up)(const float* low, const float* high, size_t n, Bf16Pair* out);

  // out[i] = (x[2 i], x[2 i + 1]), rounded to nearest even; n floats, padded with a 0 if n is odd
  void (*pair_neighbours)(const float* x, size_t n, Bf16Pair* out);

  // Transposes rows into columns: out[p * ld + c] = rows[c][p] for c < count and p < n, and 0 for count <= c < width. n
  // and width are multiples of 4.
  void (*pack)(const float* const* rows, size_t count, size_t width, size_t n, float* out, size_t ld);

  // sum of a[i] * b[i]
  float (*dot)(const float* a, const float* b, size_t n);

  // sum of a[i] * b[i]
  float (*dot_int8)(const float* a, const int8_t* b, size_t n);

  // to[i] = scale * from[i]
  void (*widen_int8)(const int8_t* from, float scale, float* to, size_t n);

  // y[i] += a * x[i]
  void (*axpy)(float a, const float* x, float* y, size_t n);

  // SimHash works on tiles: one float for each of 8 rows. Computes all signed sums of each group of four tiles x: tile
  // c of the group's 16 is +-x[0] +-x[1] +-x[2] +-x[3], added in this order, x[i] with plus if bit i of c is set.
  void (*signed_sums)(const float* x, size_t groups, float* tiles);

  // Bit j of words[row] = (tile j's value for the row > 0), for `count` <= 64 tiles and 8 rows.
  void (*positive_bits)(const float* tiles, size_t count, uint64_t* words);

  // For p < 8: sums[p] += tile choices[t * 8 + p] / 4 of table t, for t = 0, 1, ... tables - 1. A table is 16 tiles of
  // 8 floats; a choice is four times the index of the tile.
  void (*add_choices)(const float* tiles, const uint8_t* choices, size_t tables, float* sums);

  // max of z[i] + shift[i]; -infinity for n = 0
  float (*shifted_max)(const float* z, const float* shift, size_t n);

  // For each row of z (rows x n, leading dimension ldz): sum += the sum of exp(z[i] + shift[i] - reference). If that
  // would be too large, the row's reference becomes its maximum so far and the sum is rescaled. Initially references
  // are -infinity and sums 0.
  void (*softmax_stats)(size_t rows, size_t n, const float* z, size_t ldz, const float* shift, float* reference,
                        float* sum);

  // For each row of z and dz (rows x n, leading dimensions ldz and lddz; dz may be z):
  // dz[i] = scale * exp(z[i] + shift[i] - log_norm[row]), scale > 0
  void (*softmax_gradient)(size_t rows, size_t n, const float* z, size_t ldz, const float* shift, const float* log_norm,
                           float scale, float* dz, size_t lddz);

  // For each column j < n of z (rows x n, leading dimension ldz), in place: z[i][j] = exp(z[i][j] + shift[i] -
  // reference[j]); sum[j] += the column's sum of these. If the column's maximum of z + shift exceeds the reference by
  // more than HEADROOM, it becomes the reference first and the sum is rescaled. Initially references are -infinity and
  // sums 0. True if any reference changed.
  bool (*exponentials)(size_t rows, size_t n, float* z, size_t ldz, const float* shift, float* reference, float* sum);

  // sums[j] += sum over rows of z[row * ldz + j], j < n
  void (*column_sums)(size_t rows, size_t n, const float* z, size_t ldz, float* sums);

  // z[i] = scale * weight[i] * sigmoid(z[i] + shift[i]); returns the sum of weight[i] * log(1 + exp(z[i] + shift[i])):
  // the loss, and its gradient, with all targets 0.
  float (*sigmoid_gradient)(float* z, const float* shift, const float* weight, size_t n, float scale);

  // sums[i] = sums[i] * factor + addend, `rounds` times, for CHAINS * lanes sums in registers: the peak rate.
  void (*multiply_add)(size_t rounds, float factor, float addend, float* sums);

  // out[j] += sum over i < count of values[i] * base[ids[i] * stride + j], j < n. There are `known` ids, count or more:
  // those after the first `count` are of sums that come next, and are prefetched.
  void (*weighted_sum)(float* out, size_t n, const int32_t* ids, const float* values, size_t count, size_t known,
                       const float* base, size_t stride);
  void (*weighted_sum_bf16)(float* out, size_t n, const int32_t* ids, const float* values, size_t count, size_t known,
                            const Bf16* base, size_t stride);

  void (*widen)(const Bf16* from, float* to, size_t n);

  // One optimizer step on a row of n weights w with gradient g; m and v are its moments, stored alike.
  //
  // bf16 storage uses stochastic rounding: up with a probability that is the fraction of the way to the upper
  // neighbour. So steps much smaller than a bf16 ulp count on average; rounding to nearest would drop them all. The
  // random number of column j, the same for weight and moments, is (seed + j * COLUMN_SEED) mod 2^16; the seed must be
  // random. Values that bf16 represents exactly do not change, and no finite value becomes infinite.
  void (*adam)(StoredArray w, StoredArray m, StoredArray v, const float* g, size_t n, const AdamStep& step,
               uint32_t seed);
  void (*adagrad)(StoredArray w, StoredArray v, const float* g, size_t n, float rate, float epsilon, float keep,
                  uint32_t seed);
  void (*sgd)(StoredArray w, const float* g, size_t n, float rate, float keep, uint32_t seed);
};

// The set in use: the best one for this CPU, or the one named by DSLIDE_ISA.
const Kernels& kernels();

// A set by name; throws std::invalid_argument if there is none or this CPU does not support it.
const Kernels& kernels(const std::string& name);

// Names of the sets this CPU supports, "reference" first, best last.
std::vector<std::string> kernel_levels();
}  // namespace dslide
