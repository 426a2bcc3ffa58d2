// A layer whose input is sparse: rows of weights, one per input ("input-major"), so that a batch touches only the rows
// of the inputs it has.
//
// That is the first layer of every network, and any layer behind a sampled one. If the layer itself is sampled, only
// the columns of active neurons are read and stepped.
#pragma once
#include <cstddef>
#include <vector>

#include "layers/active_set.hpp"
#include "layers/parameters.hpp"
#include "runtime/aligned.hpp"
#include "runtime/stripe.hpp"
#include "runtime/thread_pool.hpp"

namespace dslide {

// A batch of sparse rows: a view.
struct SparseBatch {
  const int64_t* offsets;  // rows + 1
  const int32_t* ids;      // inputs, each at most once in a row
  const float* values;
};

class SparseLayer {
 public:
  // weights: inputs x neurons, bias: neurons x 1
  SparseLayer(const Parameters& weights, const Parameters& bias);
  const Parameters& weights() const { return weights_; }

  // Logits, bias included: z[row * ldz + neuron] if everything is active, else z[slot].
  void forward(const SparseBatch& x, const ActiveSet& active, float* z, size_t ldz) const;

  // Steps the rows of inputs present along the gradients dz (laid out as z). dx, one value per element of x, may be
  // null. False: some gradient was not finite.
  bool learn(const SparseBatch& x, const ActiveSet& active, const float* dz, size_t ldz, float* dx,
             const Optimizer& optimizer);

 private:
  // Elements of a batch grouped by input: every so many-th input, grouped by one thread.
  struct alignas(2 * CACHE_LINE) Groups {
    std::vector<int32_t> input;    // inputs present, ascending
    std::vector<size_t> begin;     // input.size() + 1
    std::vector<int32_t> row;      // by element: its row
    std::vector<float> value;      // and value
    std::vector<int64_t> element;  // and place in the batch

    void fill(const SparseBatch& x, size_t rows, Stripe own);

   private:
    std::vector<uint64_t> keys_, other_;
    std::vector<int32_t> row_of_;
  };

  // Steps some of the inputs of a group.
  bool learn_dense(const Groups& g, Range some, const float* dz, size_t ldz, float* dx,
                   const Optimizer& optimizer) const;
  bool learn_sampled(const Groups& g, Range some, const ActiveSet& active, const float* dz, float* dx,
                     const Optimizer& optimizer) const;
  bool learn_bias(const ActiveSet& active, const float* dz, size_t ldz, const Optimizer& optimizer);

  Parameters weights_, bias_;
  std::vector<Groups> groups_;  // one per thread, kept between calls
};

}  // namespace dslide
