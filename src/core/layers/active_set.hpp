// Which neurons of a layer are computed for a batch, and with what weight each stands for those that are not.
//
// Three kinds: every neuron; one set shared by all rows of the batch; a set of its own for each row. A neuron that must
// be in (a label, a hash hit) has weight 1. One drawn at random has the inverse of its chance to be drawn as weight, so
// that weighted sums over the active neurons estimate sums over all of them without bias; the weights' logarithms are
// added to logits.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/stripe.hpp"

namespace dslide {

// Per row i the elements offsets[i] .. offsets[i + 1] of ids: a view.
struct Lists {
  const int64_t* offsets = nullptr;  // rows + 1
  const int32_t* ids = nullptr;
  size_t size(size_t row) const { return static_cast<size_t>(offsets[row + 1] - offsets[row]); }
  const int32_t* begin(size_t row) const { return ids + offsets[row]; }
  const int32_t* end(size_t row) const { return ids + offsets[row + 1]; }
};

struct Draw {
  size_t count = 0;  // random neurons to draw, with repetition, for the batch (shared) or for each row
  uint64_t seed = 0;
  bool correct = true;  // false: all weights 1, as published SLIDE has it
  size_t of = 0;        // neurons of the whole layer, out of which is drawn
  Stripe own = {};      // those of them that the set is about; others that are drawn don't count here
};

// What rows add to the logits of some neurons, beside weights and bias: see links.hpp.
struct Added {
  std::vector<int64_t> begin;     // rows + 1: those of row i are begin[i] .. begin[i + 1]; empty: nothing is added
  std::vector<int32_t> position;  // in the active set's ids, each at most once in a row
  std::vector<float> value;
};

class ActiveSet {
 public:
  // All `neurons`.
  static ActiveSet everything(size_t neurons, size_t rows);
  // One set for all rows: the union of hits, certain and drawn neurons. hits.offsets may be null.
  static ActiveSet shared(size_t rows, const Lists& certain, const Lists& hits, const Draw& draw);
  // A set for each row.
  static ActiveSet per_row(size_t neurons, size_t rows, const Lists& certain, const Lists& hits, const Draw& draw);

  size_t rows = 0;             // rows of the batch
  bool is_everything = false;  // ids are 0, 1, ... neurons - 1
  bool is_per_row = false;
  std::vector<int32_t> ids;  // active neurons, ascending

  // Logits of the batch are laid out in slots. Shared: slot = row * ids.size() + position in ids. Per row: the slots
  // of row i are row_begin[i] .. row_begin[i + 1], in ascending order of neuron.
  std::vector<float> log_weight;      // by position in ids (shared) or by slot (per row)
  std::vector<int64_t> row_begin;     // rows + 1; per row only, like all that follows
  std::vector<int32_t> position;      // by slot: position in ids
  std::vector<int64_t> neuron_begin;  // ids.size() + 1: the transposed lists, by position in ids
  std::vector<int32_t> neuron_row;    // rows that have the neuron, ascending
  std::vector<int64_t> neuron_slot;   // and the slot in which they have it

  Added added;  // not for sets per row

  size_t slots() const { return is_per_row ? position.size() : rows * ids.size(); }
  // Mean number of active neurons that a row sees.
  double mean() const { return rows ? static_cast<double>(slots()) / static_cast<double>(rows) : 0.0; }
  // For the neurons in `lists`, row by row: shared, their positions in ids; per row, their slots; -1 if not active.
  std::vector<int64_t> find(const Lists& lists) const;
};

}  // namespace dslide
