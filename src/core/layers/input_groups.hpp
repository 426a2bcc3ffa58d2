// A batch's elements grouped by input: what an update of the inputs' weights walks over.
#pragma once
#include <vector>
#include "data/csr.hpp"
#include "runtime/memory.hpp"
#include "runtime/stripe.hpp"

namespace dslide {
// The groups of a stripe of the inputs, such as those of one thread.
struct alignas(2 * CACHE_LINE) InputGroups {
  std::vector<int32_t> input;    // inputs present, ascending
  std::vector<size_t> begin;     // (input.size() + 1)
  std::vector<int32_t> row;      // by element: row,
  std::vector<float> value;      // value
  std::vector<int64_t> element;  // and index in the batch

  void fill(const Csr& x, Stripe own);

 private:
  std::vector<uint64_t> keys_, scratch_;
  std::vector<int32_t> row_of_;
};

// Fills one group for each thread, in parallel.
void group_by_input(const Csr& x, std::vector<InputGroups>& groups);

// The groups of a whole batch, made once for all that walk over them in a step.
struct GroupedInputs {
  std::vector<InputGroups> parts;  // one for each thread; input i is in part i % parts.size()
  std::vector<uint32_t> place;     // by element of the batch: its input's place in its part
  size_t rows = 0, largest = 0;    // of the batch: rows, and the largest input

  void fill(const Csr& x);
  // Whether these can be the groups of a batch whose inputs are below `inputs`.
  bool fit(const Csr& x, size_t inputs) const {
    return rows == x.rows && place.size() == x.nnz() && (place.empty() || largest < inputs);
  }
};
}  // namespace dslide
