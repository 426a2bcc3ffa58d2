// A layer whose input is dense: rows of weights, one per neuron ("neuron-major").
//
// Active neurons are taken in blocks of 64: their rows are gathered once into cache and multiplied with the batch, whose
// rows pass by in chunks. Forward product, loss gradient, gradients of weights and inputs and the rows' optimizer step
// all happen while a block is in cache, and logits need not exist for more than a block and a chunk at a time.
//
// Dense inputs x and their gradients dx are (rows x stride), stride being that of the weights; columns from the
// layer's number of inputs on must be zero.
#pragma once
#include <cstddef>
#include <vector>

#include "active.hpp"
#include "aligned.hpp"
#include "loss.hpp"
#include "parameters.hpp"
#include "pool.hpp"

namespace dslide {

class DenseLayer {
 public:
  // weights: neurons x inputs, bias: neurons x 1
  DenseLayer(const Parameters& weights, const Parameters& bias);
  const Parameters& weights() const { return weights_; }

  // Logits, bias included. Shared: z[row * ldz + position]; per row: z[slot].
  void forward(const float* x, const ActiveSet& active, float* z, size_t ldz);

  // Steps the active neurons along the gradients dz (laid out as z) and sets dx. False: some gradient was not finite.
  bool learn(const float* x, const ActiveSet& active, const float* dz, size_t ldz, float* dx,
             const Optimizer& optimizer);

  // forward, loss and learn in one, for active sets that are not per row. The losses are as in loss.hpp. Softmax needs
  // two passes, and the second computes logits again unless `kept`, room for kept_size() floats, is given to both (that
  // saves a quarter of the arithmetic).
  static size_t kept_size(const ActiveSet& active);
  void softmax_stats(const float* x, const ActiveSet& active, Range rows, float* reference, float* sum, float* kept);
  bool learn_softmax(const float* x, const ActiveSet& active, const Labels& labels, const float* log_norm, float scale,
                     float* dx, const Optimizer& optimizer, double* loss, float* kept);
  bool learn_sigmoid(const float* x, const ActiveSet& active, const Labels& labels, float scale, float* dx,
                     const Optimizer& optimizer, double* loss);

  // The same with the step apart, and some rows at a time: what is sent to others can be on its way while the step is
  // computed. `kept` becomes the gradients of the logits; `dx` of the rows is set; the loss is returned. Softmax needs
  // the logits in `kept` (softmax_stats); afterwards step() steps the active neurons along the gradients of all rows.
  double backward_softmax(const float* x, const ActiveSet& active, Range rows, const Labels& labels,
                          const float* log_norm, float scale, float* dx, float* kept);
  double backward_sigmoid(const float* x, const ActiveSet& active, Range rows, const Labels& labels, float scale,
                          float* dx, float* kept);
  bool step(const float* x, const ActiveSet& active, float* kept, const Optimizer& optimizer);

  // The k largest logits of each row over all neurons but those that its list in `left_out` names, in ascending order
  // (offsets null: none), best first, ties to the lower number: (rows x k) each. The number is -1 where fewer than k
  // neurons are left. `added` is that of an active set of all neurons.
  void topk(const float* x, size_t rows, size_t k, const Lists& left_out, const Added& added, int32_t* ids,
            float* scores) const;
  // The same among the neurons that each row's list names.
  void topk_of_lists(const float* x, size_t rows, const Lists& lists, size_t k, const Added& added, int32_t* ids,
                     float* scores) const;

 private:
  struct alignas(2 * CACHE_LINE) Scratch {  // of a thread; threads that wrote to one line would wait for each other
    AlignedFloats packed;    // inputs x 64: the block, transposed
    AlignedFloats gathered;  // 64 x inputs, rows spread: the block
    AlignedFloats gradient;  // 64 x inputs, rows spread
    AlignedFloats room;      // for rows that are not stored as floats
    AlignedFloats logits;    // CHUNK x 64, or gradients, rows spread
    AlignedFloats dx;        // rows x inputs, rows spread, of the rows at hand
    std::vector<Piece> pieces;  // of memory that is needed next
  };

  void spread_rows(const float* x, Range rows, AlignedFloats& batch) const;
  Ahead ahead_of(const ActiveSet& active, Range stepped, Range next, std::vector<Piece>& pieces) const;
  void pack(const ActiveSet& active, size_t first, size_t count, float* packed, AlignedFloats& room) const;
  struct Pass;
  template <class MakeGradient>
  bool learn_blocks(const Pass& pass, const MakeGradient& make_gradient);
  template <class RowsGradient, class LabelGradient>
  bool learn_fused(const Pass& pass, const Labels& labels, double* loss, bool have_logits,
                   const RowsGradient& rows_gradient, const LabelGradient& label_gradient);
  bool learn_softmax(const Pass& pass, const Labels& labels, const float* log_norm, float scale, double* loss);
  bool learn_sigmoid(const Pass& pass, const Labels& labels, float scale, double* loss);
  bool learn_per_row(const float* x, const ActiveSet& active, const float* dz, float* dx, const Optimizer& optimizer);
  void begin_dx(size_t rows, int parts);
  void sum_dx(Range rows, float* dx) const;

  Parameters weights_, bias_;
  std::vector<Scratch> scratch_;  // one per thread, kept between calls
  AlignedFloats batch_;           // rows x inputs, rows spread: the inputs at hand
};

}  // namespace dslide
