// A layer over sparse input. Weights are stored one row per input, so a batch touches only the rows of its inputs. Some
// inputs may be dense: those that every row has.
//
// This is the first layer of networks with hidden layers, and any layer behind a sampled one. If the layer itself is
// sampled, only the columns of active neurons are read and updated.
#pragma once
#include <vector>
#include "data/csr.hpp"
#include "layers/active_set.hpp"
#include "layers/dense_inputs.hpp"
#include "layers/input_groups.hpp"
#include "layers/parameters.hpp"
#include "runtime/memory.hpp"
#include "runtime/thread_pool.hpp"

namespace dslide {
class SparseLayer {
 public:
  // weights: (inputs x neurons), bias: (neurons x 1)
  SparseLayer(const Parameters& weights, const Parameters& bias);
  const Parameters& weights() const { return weights_; }

  // Logits, bias included: z[row * ldz + neuron] if all neurons are active, else z[slot]. An input occurs at most once
  // in a row, in x or among the dense ones. Those are only for active sets of all neurons, with z padded.
  void forward(const Csr& x, const DenseInputs& dense, const ActiveSet& active, float* z, size_t ldz);

  // Computes gradients from dz (laid out as z) and applies the optimizer step to the rows of present inputs. dx, one
  // value per element of x, may be null; so may `groups`, those of x. False: some gradient was not finite.
  bool learn(const Csr& x, const DenseInputs& dense, const ActiveSet& active, const float* dz, size_t ldz, float* dx,
             const Optimizer& optimizer, const GroupedInputs* groups);

 private:
  // Update some inputs of a group.
  bool learn_dense(const InputGroups& g, Range some, const float* dz, size_t ldz, float* dx,
                   const Optimizer& optimizer) const;
  bool learn_sampled(const InputGroups& g, Range some, const ActiveSet& active, const float* dz, float* dx,
                     const Optimizer& optimizer) const;
  bool learn_bias(const ActiveSet& active, const float* dz, size_t ldz, const Optimizer& optimizer);

  Parameters weights_, bias_;
  std::vector<InputGroups> groups_;  // if none are given; one per thread, kept between calls
  DenseInputProducts products_;
};
}  // namespace dslide
