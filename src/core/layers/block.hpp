// Blocks of 64 active neurons, the unit in which dense layers compute: layout, labels, prior logits, biases.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>
#include "layers/active_set.hpp"
#include "layers/loss.hpp"
#include "layers/parameters.hpp"
#include "runtime/memory.hpp"
#include "runtime/thread_pool.hpp"

namespace dslide {
constexpr size_t BLOCK = 64;  // neurons per block
inline size_t block_count(size_t neurons) { return (neurons + BLOCK - 1) / BLOCK; }

constexpr size_t CHUNK = 128;                    // rows of the batch at a time: a block's logits for them stay in L1/L2
constexpr size_t LANES = 16;                     // floats in the widest vector
constexpr size_t PACKED = padded_stride(BLOCK);  // leading dimension of a packed block
constexpr float PADDING_LOGIT = -1e30f;          // its exponential is 0

// An element of a row's list that falls into a block: row of the batch, column in the block, index of the element.
struct Entry {
  uint32_t row, column;
  int64_t element;
};

// The rows' lists, split by block of active neurons; in each block ordered by row.
struct EntriesByBlock {
  std::vector<size_t> begin;  // (blocks + 1)
  std::vector<Entry> entries;

  const Entry* begin_of(size_t block) const { return entries.data() + begin[block]; }
  // The first entry of a block in row `row` or a later one.
  const Entry* from(size_t block, size_t row) const {
    return std::lower_bound(begin_of(block), begin_of(block + 1), row,
                            [](const Entry& e, size_t r) { return e.row < r; });
  }

  EntriesByBlock() = default;
  // position(element): its position in the active set, negative if it is not active.
  template <class Position> EntriesByBlock(const int64_t* offsets, const Position& position, Range rows, size_t blocks)
      : begin(blocks + 1, 0) {
    for (int64_t e = offsets[rows.begin]; e < offsets[rows.end]; ++e) {
      if (position(e) >= 0) ++begin[position(e) / BLOCK + 1];
    }
    for (size_t b = 0; b < blocks; ++b) begin[b + 1] += begin[b];
    entries.resize(begin[blocks]);
    std::vector<size_t> next(begin.begin(), begin.end() - 1);
    for (size_t i = rows.begin; i < rows.end; ++i) {
      for (int64_t e = offsets[i]; e < offsets[i + 1]; ++e) {
        if (position(e) < 0) continue;
        const size_t at = position(e);
        entries[next[at / BLOCK]++] = {static_cast<uint32_t>(i), static_cast<uint32_t>(at % BLOCK), e};
      }
    }
  }
};

// A batch's labels, located in an active set that is not per row, and their logits from the forward pass.
struct FoundLabels {
  // lists.values are the targets.
  FoundLabels(const ActiveSet& active, const Csr& lists_)
      : rows(active.rows),
        positions(active.ids.size()),
        lists(lists_),
        found(active.find(lists_)),
        by_block(lists_.offsets, [&](int64_t e) { return found[e]; }, {0, rows}, block_count(positions)),
        logits(found.size()) {}
  // The labels of a block, from row `row` of the batch on.
  const Entry* begin(size_t block, size_t row) const { return by_block.from(block, row); }
  const Entry* end(size_t block) const { return by_block.begin_of(block + 1); }
  float target(int64_t element) const { return lists.values[element]; }
  // Stores the logits of a block's labels in the rows `some`: that of row i and column c is z[c * ldz + i - some.begin]
  // plus the column's bias.
  void store_logits(size_t block, Range some, const float* z, size_t ldz, const float* bias) {
    for (const Entry* e = begin(block, some.begin); e != end(block) && e->row < some.end; ++e) {
      logits[e->element] = z[e->column * ldz + (e->row - some.begin)] + bias[e->column];
    }
  }

  size_t rows, positions;  // of the active set
  Csr lists;
  std::vector<int64_t> found;  // by label: position in the active set, -1 if it is not active
  EntriesByBlock by_block;
  std::vector<float> logits;  // by label, bias included
};

// The prior logits of each block.
class PriorByBlock {
 public:
  PriorByBlock(const PriorLogits& prior, Range rows, size_t blocks) : prior_(prior) {
    if (prior.begin.empty()) return;
    by_block_ = {prior.begin.data(), [&](int64_t e) { return prior.position[e]; }, rows, blocks};
  }
  // The index of a block's first entry in row `row` or a later one: the initial `next` of add().
  size_t first(size_t block, size_t row) const {
    return by_block_.begin.empty() ? 0 : static_cast<size_t>(by_block_.from(block, row) - by_block_.entries.data());
  }
  // Adds to the logits of a block's rows r .. r + count: that of row r + i and column c is z[i * z_row + c * z_column].
  // Called for consecutive chunks of rows; `next` is advanced.
  void add(size_t block, size_t r, size_t count, float* z, size_t z_row, size_t z_column, size_t& next) const {
    if (by_block_.begin.empty()) return;
    for (; next < by_block_.begin[block + 1] && by_block_.entries[next].row < r + count; ++next) {
      const Entry& e = by_block_.entries[next];
      z[(e.row - r) * z_row + e.column * z_column] += prior_.value[e.element];
    }
  }

  // use(entry) for a block's entries in rows r .. r + count.
  template <class Use> void each(size_t block, size_t r, size_t count, const Use& use) const {
    if (by_block_.begin.empty()) return;
    const Entry* const end = by_block_.begin_of(block + 1);
    for (const Entry* e = by_block_.from(block, r); e != end && e->row < r + count; ++e) use(*e);
  }

 private:
  const PriorLogits& prior_;
  EntriesByBlock by_block_;
};

// Per column of a block; columns past its neurons get PADDING_LOGIT and weight 0.
struct BlockTerms {
  float bias[BLOCK], shift[BLOCK], weight[BLOCK];  // bias; bias + log-weight; weight

  BlockTerms() = default;
  BlockTerms(const ActiveSet& active, const Parameters& biases, size_t first, size_t count) {
    for (size_t c = 0; c < BLOCK; ++c) {
      const bool used = c < count;
      const float log_weight = used ? active.log_weight[first + c] : 0.0f;
      bias[c] = used ? biases.at(active.ids[first + c], 0) : PADDING_LOGIT;
      shift[c] = bias[c] + log_weight;
      weight[c] = used ? std::exp(log_weight) : 0.0f;
    }
  }
};
}  // namespace dslide
