// The active set: which neurons of a layer are computed for a batch, and the sampling weight of each.
//
// Three kinds: all neurons; one set shared by all rows of the batch; one set per row. A neuron that is certain to be
// active (a label, a hash hit) has weight 1. A random negative has the inverse of its inclusion probability as weight,
// so that weighted sums are unbiased estimates of sums over all neurons; the log-weights are added to logits.
#pragma once
#include <vector>
#include "data/csr.hpp"
#include "layers/random_negatives.hpp"
#include "runtime/thread_pool.hpp"

namespace dslide {
// What the label prior adds to logits, by row of the batch: see label_prior.hpp.
struct PriorLogits {
  std::vector<int64_t> begin;     // (rows + 1): row i has begin[i] .. begin[i + 1]; empty: there is no prior
  std::vector<int32_t> position;  // in the active set's ids, unique within a row
  std::vector<float> value;
  // Only in training, to train the prior:
  std::vector<float> counted;   // the counted part of the value, before its scale
  std::vector<float> gradient;  // of the loss with respect to the logit: set by the output layer
  uint64_t batch = 0;           // for which the label prior found the links of active neurons

  size_t rows() const { return begin.empty() ? 0 : begin.size() - 1; }
  // Whether it is that of so many rows and neurons; positions ascend in prediction.
  bool fits(size_t rows_, size_t neurons) const {
    for (size_t i = 0; i < rows(); ++i) {
      if (begin[i] < begin[i + 1] && static_cast<size_t>(position[begin[i + 1] - 1]) >= neurons) return false;
    }
    return rows() == rows_;
  }
};

class ActiveSet {
 public:
  // All `neurons`.
  static ActiveSet everything(size_t neurons, size_t rows);
  // One set of this rank's `neurons` for all rows: the union of certain neurons, hash hits and random negatives. `hits`
  // may be a null view.
  static ActiveSet shared(size_t neurons, const Csr& certain, const Csr& hits, const RandomNegatives& negatives);
  // A set for each row.
  static ActiveSet per_row(size_t neurons, const Csr& certain, const Csr& hits, const RandomNegatives& negatives);

  size_t rows = 0;             // of the batch
  bool is_everything = false;  // ids are 0, 1, ... neurons - 1
  bool is_per_row = false;
  std::vector<int32_t> ids;  // active neurons, ascending

  // A batch's logits are stored in slots. Shared: slot = row * ids.size() + position in ids. Per row: the slots of row
  // i are row_begin[i] .. row_begin[i + 1], in ascending order of neuron.
  std::vector<float> log_weight;      // by position in ids (shared) or by slot (per row)
  std::vector<int64_t> row_begin;     // (rows + 1); only for sets per row, as all below
  std::vector<int32_t> position;      // by slot: position in ids
  std::vector<int64_t> neuron_begin;  // (ids.size() + 1): the transposed lists, by position in ids
  std::vector<int32_t> neuron_row;    // rows that contain the neuron, ascending
  std::vector<int64_t> neuron_slot;   // and its slots in these rows

  PriorLogits prior;  // empty for sets per row

  size_t slots() const { return is_per_row ? position.size() : rows * ids.size(); }
  Range slots_of(size_t row) const {
    if (!is_per_row) return {row * ids.size(), (row + 1) * ids.size()};
    return {static_cast<size_t>(row_begin[row]), static_cast<size_t>(row_begin[row + 1])};
  }
  // The log-weights of a row's slots.
  const float* log_weights_of(size_t row) const { return log_weight.data() + (is_per_row ? row_begin[row] : 0); }
  bool fits(size_t neurons) const { return ids.empty() || static_cast<size_t>(ids.back()) < neurons; }
  // Mean number of active neurons per row.
  double mean() const { return rows ? static_cast<double>(slots()) / static_cast<double>(rows) : 0.0; }
  // Locates the neurons in `lists`, row by row: their positions in ids (shared) or slots (per row); -1 if not active.
  std::vector<int64_t> find(const Csr& lists) const;
};
}  // namespace dslide
