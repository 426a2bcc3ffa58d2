// Blocks of 64 active neurons: how they lie in working memory, and what is known of each beside its weights.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "layers/active_set.hpp"
#include "layers/loss.hpp"
#include "layers/parameters.hpp"
#include "runtime/thread_pool.hpp"

namespace dslide {

constexpr size_t BLOCK = 64;  // neurons in a block
inline size_t block_count(size_t neurons) { return (neurons + BLOCK - 1) / BLOCK; }

constexpr size_t CHUNK = 128;  // rows of the batch at a time, whose logits of a block stay in near caches
constexpr size_t LANES = 16;   // floats of the widest vectors

// Floats from one row of working memory to the next for rows of so many (a multiple of 16): an odd number of cache
// lines. With a power of two the same columns of all rows would fall into a few sets of the cache and drive each other
// out, which costs matrix products a tenth of their speed.
constexpr size_t spread(size_t width) { return (width / 16 | 1) * 16; }

constexpr size_t PACKED = spread(BLOCK);  // floats from one row of a packed block to the next

constexpr float NOTHING = -1e30f;  // a logit whose exponential is 0

// An element of a row's list in a block of neurons: row of the batch, column of the block, index of the element.
struct Entry {
  uint32_t row, column;
  int64_t element;
};

// Lists of rows, cut up by blocks of active neurons; in each block by row.
struct EntriesByBlock {
  std::vector<size_t> begin;  // blocks + 1
  std::vector<Entry> entries;

  const Entry* begin_of(size_t block) const { return entries.data() + begin[block]; }
  // The first one of a block in this row of the batch or a later one.
  const Entry* from(size_t block, size_t row) const {
    return std::lower_bound(begin_of(block), begin_of(block + 1), row,
                            [](const Entry& e, size_t r) { return e.row < r; });
  }

  EntriesByBlock() = default;
  // position(element): where the active set has it, negative if it doesn't.
  template <class Position>
  EntriesByBlock(const int64_t* offsets, const Position& position, Range rows, size_t blocks) : begin(blocks + 1, 0) {
    for (int64_t e = offsets[rows.begin]; e < offsets[rows.end]; ++e) {
      if (position(e) >= 0) ++begin[static_cast<size_t>(position(e)) / BLOCK + 1];
    }
    for (size_t b = 0; b < blocks; ++b) begin[b + 1] += begin[b];
    entries.resize(begin[blocks]);
    std::vector<size_t> next(begin.begin(), begin.end() - 1);
    for (size_t i = rows.begin; i < rows.end; ++i) {
      for (int64_t e = offsets[i]; e < offsets[i + 1]; ++e) {
        if (position(e) < 0) continue;
        const auto at = static_cast<size_t>(position(e));
        entries[next[at / BLOCK]++] = {static_cast<uint32_t>(i), static_cast<uint32_t>(at % BLOCK), e};
      }
    }
  }
};

// A batch's labels, found in an active set that is not per row, and what the first of two passes leaves to the second.
struct FoundLabels {
  FoundLabels(const ActiveSet& active, const Lists& lists_, const float* targets_)
      : rows(active.rows),
        positions(active.ids.size()),
        lists(lists_),
        targets(targets_),
        found(active.find(lists_)),
        by_block(
            lists_.offsets, [&](int64_t e) { return found[static_cast<size_t>(e)]; }, {0, rows},
            block_count(positions)),
        logits(found.size()) {}
  // Those of a block, from a row of the batch on.
  const Entry* begin(size_t block, size_t row) const { return by_block.from(block, row); }
  const Entry* end(size_t block) const { return by_block.begin_of(block + 1); }
  // Notes the logits of a block's labels in some rows: that of row i and column c is z[c * ldz + i - some.begin], and
  // the column's bias.
  void note_logits(size_t block, Range some, const float* z, size_t ldz, const float* bias) {
    for (const Entry* e = begin(block, some.begin); e != end(block) && e->row < some.end; ++e) {
      logits[static_cast<size_t>(e->element)] = z[e->column * ldz + (e->row - some.begin)] + bias[e->column];
    }
  }

  size_t rows, positions;  // of the active set
  Lists lists;
  const float* targets;        // by label, like all that follows
  std::vector<int64_t> found;  // position in the active set, -1 if it is not active
  EntriesByBlock by_block;
  std::vector<float> logits;  // bias included
};

// What is added to the logits of each block.
class AddedByBlock {
 public:
  AddedByBlock(const Added& added, Range rows, size_t blocks) : added_(added) {
    if (added.begin.empty()) return;
    by_block_ = {added.begin.data(), [&](int64_t e) { return added.position[static_cast<size_t>(e)]; }, rows, blocks};
  }
  // Where a block's chunk that begins with this row does.
  size_t first(size_t block, size_t row) const {
    return by_block_.begin.empty() ? 0 : static_cast<size_t>(by_block_.from(block, row) - by_block_.entries.data());
  }
  // Adds to logits of a block's rows r .. r + count: that of row r + i and column c is z[i * z_row + c * z_column].
  // Chunks come in order, `next` goes along with them.
  void add(size_t block, size_t r, size_t count, float* z, size_t z_row, size_t z_column, size_t& next) const {
    if (by_block_.begin.empty()) return;
    for (; next < by_block_.begin[block + 1] && by_block_.entries[next].row < r + count; ++next) {
      const Entry& e = by_block_.entries[next];
      z[(e.row - r) * z_row + e.column * z_column] += added_.value[static_cast<size_t>(e.element)];
    }
  }

 private:
  const Added& added_;
  EntriesByBlock by_block_;
};

// What is added to a block's products, by column; columns past the block's neurons count for nothing.
struct BlockTerms {
  float bias[BLOCK], shift[BLOCK], weight[BLOCK];  // bias; bias + log-weight; weight

  BlockTerms() = default;
  BlockTerms(const ActiveSet& active, const Parameters& biases, size_t first, size_t count) {
    for (size_t c = 0; c < BLOCK; ++c) {
      const bool used = c < count;
      const float log_weight = used ? active.log_weight[first + c] : 0.0f;
      bias[c] = used ? biases.at(static_cast<size_t>(active.ids[first + c]), 0) : NOTHING;
      shift[c] = bias[c] + log_weight;
      weight[c] = used ? std::exp(log_weight) : 0.0f;
    }
  }
};

}  // namespace dslide
