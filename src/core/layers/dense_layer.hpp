// A layer over dense input. Weights are stored neuron-major, one row per neuron.
//
// Active neurons are processed in blocks of 64: a block's rows are gathered into cache once and multiplied with the
// batch, chunk by chunk. Forward product, loss gradient, gradients of weights and inputs and the optimizer step all
// happen while a block is in cache; logits exist for no more than one block and chunk at a time.
//
// Inputs x and their gradients dx are (rows x stride), with the stride of the weights; columns from the layer's number
// of inputs on must be zero.
#pragma once
#include <tuple>
#include <vector>
#include "layers/active_set.hpp"
#include "layers/calibration.hpp"
#include "layers/loss.hpp"
#include "layers/parameters.hpp"
#include "runtime/memory.hpp"
#include "runtime/thread_pool.hpp"

namespace dslide {
struct FoundLabels;
class PriorByBlock;

// Sums over the active neurons for each row of a batch, relative to the row's reference: of exp(logit - reference), and
// of that times the neuron's weights.
struct SoftmaxSums {
  float* reference;  // (rows), a logit
  float* sum;        // (rows)
  float* mean;       // (rows x stride), or null: not computed
};

class DenseLayer {
 public:
  // weights: (neurons x inputs), bias: (neurons x 1). With `bf16_products` the operands of softmax's matrix products
  // are rounded to bf16; sums are floats. With `unit_rows` a neuron's weights have length 1, and steps keep it: they
  // are along the part of the gradient that changes no length, as for weights divided by their length. Without
  // `steps_bias` biases stay as they are.
  DenseLayer(const Parameters& weights, const Parameters& bias, bool bf16_products, bool unit_rows, bool steps_bias);
  const Parameters& weights() const { return weights_; }
  const Parameters& bias() const { return bias_; }

  // Logits, bias included. Shared: z[row * ldz + position]; per row: z[slot].
  void forward(const float* x, const ActiveSet& active, float* z, size_t ldz);

  // Computes gradients from dz (laid out as z), applies the optimizer step to the active neurons and sets dx. False:
  // some gradient was not finite.
  bool learn(const float* x, const ActiveSet& active, const float* dz, size_t ldz, float* dx,
             const Optimizer& optimizer);

  // All below: not for active sets per row. Losses as in loss.hpp. softmax_step, sigmoid_learn and sigmoid_backward set
  // active.prior.gradient, unless it is empty.
  //
  // Softmax takes three calls.
  //   softmax_forward, for some rows at a time (from a multiple of CHUNK on): sums, the labels' logits (labels may be
  //     null) and, in `kept`, the exponentials.
  //   softmax_backward, given the logarithms of the normalisers of these rows: turns `dx`, which must hold sums.mean or
  //     be null, into the gradients of the inputs; returns the loss.
  //   softmax_step, after all rows, while dx is exchanged between ranks: the optimizer step of the active neurons.
  //     False: some gradient was not finite.
  // `kept` has kept_size() floats, or is null: then the step recomputes the logits.
  static size_t kept_size(const ActiveSet& active);
  void softmax_forward(const float* x, const ActiveSet& active, Range rows, FoundLabels* labels,
                       const SoftmaxSums& sums, float* kept);
  double softmax_backward(const ActiveSet& active, Range rows, const FoundLabels& labels, const float* reference,
                          const float* log_norm, float scale, float* dx) const;
  bool softmax_step(const float* x, ActiveSet& active, const FoundLabels& labels, const float* log_norm, float scale,
                    const float* kept, const Optimizer& optimizer);

  // Sigmoid in one call; or the loss for some rows at a time, with gradients of logits in `kept`, and then the step.
  bool sigmoid_learn(const float* x, ActiveSet& active, const FoundLabels& labels, float scale, float* dx,
                     const Optimizer& optimizer, double* loss);
  double sigmoid_backward(const float* x, ActiveSet& active, Range rows, const FoundLabels& labels, float scale,
                          float* dx, float* kept);
  bool sigmoid_step(const float* x, const ActiveSet& active, const float* kept, const Optimizer& optimizer);

  // The k largest logits of each row over all neurons except those in its list in `excluded` (ascending; a null view:
  // none), best first, ties to the lower neuron: ids and scores are (rows x k). The id is -1 where fewer than k neurons
  // are left. `prior` is that of all neurons.
  void topk(const float* x, size_t rows, size_t k, const Csr& excluded, const PriorLogits& prior,
            const Calibration& calibration, int32_t* ids, float* scores) const;
  // The same among each row's candidates, which ascend.
  void topk_of_lists(const float* x, const Csr& candidates, size_t k, const PriorLogits& prior,
                     const Calibration& calibration, int32_t* ids, float* scores) const;

 private:
  // The operands of softmax, as floats or bf16 pairs. Pairs are of columns in a left operand, of rows in a right one.
  // All leading dimensions are padded_stride().
  template <class Number> struct Operands {
    Aligned<Number> left;          // (64 x inputs): the block as left operand
    Aligned<Number> right;         // the same as right operand; only for pairs
    Aligned<Number> exponentials;  // (64 x rows of a chunk), transposed left operand; only for pairs
    Aligned<Number> factor;        // (rows): factors that make gradients of exponentials, as left operand
    Aligned<Number> scaled;        // (rows x inputs): inputs times the factor, as right operand
  };
  struct alignas(2 * CACHE_LINE) Scratch {  // of a thread; aligned against false sharing
    AlignedFloats packed;                   // (inputs x 64): the transposed block
    AlignedFloats gathered;                 // (64 x inputs): the block
    AlignedFloats gradient;                 // (64 x inputs)
    AlignedFloats widened;                  // rows that are stored as bf16
    AlignedFloats logits;                   // of a block, if not kept; then exponentials or gradients
    AlignedFloats dx;                       // (rows x inputs), of the current rows
    AlignedFloats recomputed;               // softmax: exponentials of a block that were not kept
    AlignedFloats reference, sum;           // softmax: (rows)
    AlignedFloats unused_sum;               // softmax: (rows), output of a kernel that nobody reads
    std::tuple<Operands<float>, Operands<Bf16Pair>> operands;
    std::vector<CacheLines> ranges;  // memory to prefetch
  };

  void copy_padded(const float* x, Range rows, AlignedFloats& batch) const;
  PrefetchQueue prefetch_queue(const ActiveSet& active, Range stepped, Range next,
                               std::vector<CacheLines>& ranges) const;
  void pack(const ActiveSet& active, size_t first, size_t count, float* packed, AlignedFloats& widened) const;
  void gather(const ActiveSet& active, size_t first, size_t count, AlignedFloats& gathered) const;
  bool step_block(const ActiveSet& active, size_t first, size_t count, float* gradient, const float* bias_gradient,
                  const Optimizer& optimizer) const;
  bool step_neuron(size_t neuron, float* gradient, const float* bias_gradient, const Optimizer& optimizer) const;
  void join_sums(const ActiveSet& active, Range range, const SoftmaxSums& sums, int parts) const;
  template <class Number> struct Softmax;  // the algorithm for one operand type
  struct Pass;
  template <class MakeGradient> bool learn_blocks(const Pass& pass, const MakeGradient& make_gradient);
  bool sigmoid_learn(const Pass& pass, const FoundLabels& labels, float scale, double* loss, float* prior_gradient);
  bool learn_per_row(const float* x, const ActiveSet& active, const float* dz, float* dx, const Optimizer& optimizer);
  void begin_dx(size_t rows, int parts);
  void sum_dx(Range rows, float* dx) const;

  Parameters weights_, bias_;
  bool bf16_products_, unit_rows_, steps_bias_;
  std::vector<Scratch> scratch_;  // one per thread, kept between calls
  // (inputs x rows), by chunk: the current inputs as right operand of softmax
  std::tuple<AlignedFloats, Aligned<Bf16Pair>> transposed_;
  AlignedFloats batch_;  // (rows x inputs), padded leading dimension: the current inputs
};
}  // namespace dslide
