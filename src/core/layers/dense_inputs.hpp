// The part of a layer's input that every row has, for layers whose weights are stored one row per input: matrix
// products with the rows of these inputs, and their optimizer step.
#pragma once
#include <vector>
#include "layers/parameters.hpp"
#include "runtime/memory.hpp"

namespace dslide {
// x: (rows x inputs) with leading dimension `stride`, of the layer's inputs from `first` on; null: there are none.
struct DenseInputs {
  const float* x = nullptr;
  size_t rows = 0, inputs = 0, stride = 0, first = 0;

  explicit operator bool() const { return x != nullptr && rows > 0 && inputs > 0; }
};

class DenseInputProducts {
 public:
  // z (rows x padded neurons, leading dimension ldz) += x W
  void add(const Parameters& weights, const DenseInputs& in, float* z, size_t ldz);

  // Steps the weights of the inputs along x^T dz; dz is laid out as z. False: some gradient was not finite.
  bool step(const Parameters& weights, const DenseInputs& in, const float* dz, size_t ldz, const Optimizer& optimizer);

 private:
  AlignedFloats packed_;    // weights, in panels of 64 neurons, each (inputs x 64)
  AlignedFloats gradient_;  // dz with a padded leading dimension
};
}  // namespace dslide
