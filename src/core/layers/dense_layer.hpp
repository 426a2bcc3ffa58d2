// A layer whose input is dense: rows of weights, one per neuron ("neuron-major").
//
// Active neurons are taken in blocks of 64: their rows are gathered once into cache and multiplied with the batch,
// whose rows pass by in chunks. Forward product, loss gradient, gradients of weights and inputs and the rows' optimizer
// step all happen while a block is in cache, and logits need not exist for more than a block and a chunk at a time.
//
// Dense inputs x and their gradients dx are (rows x stride), stride being that of the weights; columns from the
// layer's number of inputs on must be zero.
#pragma once
#include <cstddef>
#include <vector>

#include "layers/active_set.hpp"
#include "layers/loss.hpp"
#include "layers/parameters.hpp"
#include "runtime/aligned.hpp"
#include "runtime/thread_pool.hpp"

namespace dslide {

struct FoundLabels;
class AddedByBlock;

// Sums over the active neurons, for each row of a batch, relative to a reference: exp(logit - reference), and that
// times the neuron's weights.
struct SoftmaxSums {
  float* reference;  // (rows), a logit
  float* sum;        // (rows)
  float* mean;       // (rows x stride), or null: not wanted
};

// What the matrix products of softmax are computed with; sums are floats in any case.
enum class Products { floats, bf16 };

class DenseLayer {
 public:
  // weights: neurons x inputs, bias: neurons x 1
  DenseLayer(const Parameters& weights, const Parameters& bias, Products products = Products::floats);
  const Parameters& weights() const { return weights_; }

  // Logits, bias included. Shared: z[row * ldz + position]; per row: z[slot].
  void forward(const float* x, const ActiveSet& active, float* z, size_t ldz);

  // Steps the active neurons along the gradients dz (laid out as z) and sets dx. False: some gradient was not finite.
  bool learn(const float* x, const ActiveSet& active, const float* dz, size_t ldz, float* dx,
             const Optimizer& optimizer);

  // What follows is for active sets that are not per row. The losses are as in loss.hpp.
  //
  // Softmax. First, for some rows at a time (from a multiple of CHUNK on): the sums, the labels' logits (labels may be
  // null) and, in `kept`, the exponentials. Then, with the logarithms of the normalisers of these rows: `dx`, which
  // must hold the sums' mean, becomes the gradients of the inputs; the loss is returned. And when all rows have been
  // through that: the active neurons' step; false: some gradient was not finite. The gradients can be on their way to
  // others meanwhile. `kept` is room for kept_size() floats, or null: then logits are computed a second time for the
  // step. With bf16, what is multiplied is rounded to the nearest: inputs, weights and exponentials.
  static size_t kept_size(const ActiveSet& active);
  void softmax_first(const float* x, const ActiveSet& active, Range rows, FoundLabels* labels, const SoftmaxSums& sums,
                     float* kept);
  double softmax_backward(const ActiveSet& active, Range rows, const FoundLabels& labels, const float* reference,
                          const float* log_norm, float scale, float* dx) const;
  bool softmax_step(const float* x, const ActiveSet& active, const FoundLabels& labels, const float* log_norm,
                    float scale, const float* kept, const Optimizer& optimizer);

  // Sigmoid: all in one. Or the loss first, for some rows at a time, with gradients of the logits in `kept`, and the
  // step apart.
  bool sigmoid_learn(const float* x, const ActiveSet& active, const FoundLabels& labels, float scale, float* dx,
                     const Optimizer& optimizer, double* loss);
  double sigmoid_backward(const float* x, const ActiveSet& active, Range rows, const FoundLabels& labels, float scale,
                          float* dx, float* kept);
  bool sigmoid_step(const float* x, const ActiveSet& active, const float* kept, const Optimizer& optimizer);

  // The k largest logits of each row over all neurons but those that its list in `left_out` names, in ascending order
  // (offsets null: none), best first, ties to the lower number: (rows x k) each. The number is -1 where fewer than k
  // neurons are left. `added` is that of an active set of all neurons.
  void topk(const float* x, size_t rows, size_t k, const Lists& left_out, const Added& added, int32_t* ids,
            float* scores) const;
  // The same among the neurons that each row's list names.
  void topk_of_lists(const float* x, size_t rows, const Lists& lists, size_t k, const Added& added, int32_t* ids,
                     float* scores) const;

 private:
  // What softmax multiplies, as floats or as pairs of bf16. In a product's left side pairs are of columns, in its right
  // side of rows.
  template <class Number>
  struct Operands {
    Aligned<Number> left;          // 64 x inputs, rows spread: the block, as left side
    Aligned<Number> right;         // the same as right side, if that is something else
    Aligned<Number> exponentials;  // 64 x rows of a chunk, as left side when transposed, if that is something else
    Aligned<Number> factor;        // rows: what exponentials have to be multiplied with, as left side
    Aligned<Number> scaled;        // rows x inputs, rows spread: inputs times that, as right side
  };
  struct alignas(2 * CACHE_LINE) Scratch {  // of a thread; threads that wrote to one line would wait for each other
    AlignedFloats packed;                   // inputs x 64: the block, transposed
    AlignedFloats gathered;                 // 64 x inputs, rows spread: the block
    AlignedFloats gradient;                 // 64 x inputs, rows spread
    AlignedFloats room;                     // for rows that are not stored as floats
    AlignedFloats logits;                   // of a block that are not kept, or their exponentials or gradients
    AlignedFloats dx;                       // rows x inputs, rows spread, of the rows at hand
    AlignedFloats again;                    // of softmax: exponentials of a block that were not kept
    AlignedFloats reference, sum;           // of softmax, rows
    Operands<float> floats;
    Operands<BfPair> pairs;
    std::vector<Piece> pieces;  // of memory that is needed next
  };

  void spread_rows(const float* x, Range rows, AlignedFloats& batch) const;
  Ahead ahead_of(const ActiveSet& active, Range stepped, Range next, std::vector<Piece>& pieces) const;
  void pack(const ActiveSet& active, size_t first, size_t count, float* packed, AlignedFloats& room) const;
  void gather(const ActiveSet& active, size_t first, size_t count, AlignedFloats& gathered) const;
  bool step_block(const ActiveSet& active, size_t first, size_t count, const float* gradient,
                  const float* bias_gradient, const Optimizer& optimizer) const;
  void join_sums(const ActiveSet& active, Range range, const SoftmaxSums& sums, int parts) const;
  template <class Number>
  struct Softmax;  // what is done with such numbers
  struct Pass;
  template <class MakeGradient>
  bool learn_blocks(const Pass& pass, const MakeGradient& make_gradient);
  bool sigmoid_learn(const Pass& pass, const FoundLabels& labels, float scale, double* loss);
  bool learn_per_row(const float* x, const ActiveSet& active, const float* dz, float* dx, const Optimizer& optimizer);
  void begin_dx(size_t rows, int parts);
  void sum_dx(Range rows, float* dx) const;

  Parameters weights_, bias_;
  Products products_;
  std::vector<Scratch> scratch_;  // one per thread, kept between calls
  AlignedFloats turned_;          // inputs x rows, by chunk: the inputs at hand, as right side, for softmax
  Aligned<BfPair> turned_pairs_;  // the same
  AlignedFloats batch_;           // rows x inputs, rows spread: the inputs at hand
};

}  // namespace dslide
