// Neighbours: the labels of the training rows whose hidden vectors are most like a row's.
#pragma once
#include <span>
#include "layers/dense_layer.hpp"

namespace dslide {
// How neighbours are looked up and what their labels count.
struct NeighbourOptions {
  size_t probes;  // cells that are searched for a row
  size_t count;   // nearest rows whose labels count
  float power;    // of a neighbour's cosine, which its labels count
};

// Views. Training rows lie cell by cell.
class NeighbourIndex {
 public:
  // `centres`: the neuron with the largest output is the cell whose centre is nearest; `vectors`: hidden vectors of
  // length 1, one a training row; `cells`: (cells + 1), where the rows of each begin; `labels`: of each row.
  NeighbourIndex(const DenseLayer& centres, const DenseLayer& vectors, std::span<const int64_t> cells,
                 const Csr& labels)
      : centres_(centres), vectors_(vectors), cells_(cells), labels_(labels) {}
  size_t rows() const { return labels_.rows; }
  size_t stride() const { return vectors_.weights().stride; }

  // For each row of h, (rows x stride), how much of its neighbours have each of some labels: the share of their
  // weights, 0 to 1, into (rows x labels). `wanted`: (rows x labels); no neighbour has label -1.
  void votes(const float* h, size_t rows, const int32_t* wanted, size_t labels, const NeighbourOptions& options,
             float* votes) const;

 private:
  const DenseLayer &centres_, &vectors_;
  std::span<const int64_t> cells_;
  Csr labels_;
};
}  // namespace dslide
