// Hash look-up: which neurons share buckets with a row of the batch, and which of them become active.
#pragma once
#include <mutex>
#include <span>
#include <vector>
#include "hashing/counters.hpp"
#include "hashing/seen_filter.hpp"
#include "hashing/tables.hpp"
#include "runtime/memory.hpp"
#include "runtime/rng.hpp"
#include "runtime/stripe.hpp"

namespace dslide {
// Neurons retrieved by each row, ascending within a row.
struct Hits {
  std::vector<int64_t> offsets;  // (rows + 1)
  std::vector<int32_t> neurons;
  std::vector<uint16_t> counts;  // number of tables that returned the neuron; empty from vanilla()
};

constexpr size_t NO_LIMIT = SIZE_MAX;

// Seeds of the rows' random choices; `first_row` is the index in the batch of the first row looked up.
struct RowSeeds {
  uint64_t seed, step;
  size_t first_row = 0;
  uint64_t of(size_t row) const { return mix(seed, step, first_row + row); }
};

// Random choices are a function of (seed, step, row), so results do not depend on threads. Reads `tables`, which must
// outlive it and not change during a call.
class Query {
 public:
  // `neurons_of`: the layer's neurons that the tables hold. Tie-breaks use a neuron's global number.
  explicit Query(const Tables& tables, const Stripe& neurons_of = {}) : tables_(tables), neurons_of_(neurons_of) {}

  // The first `limit` neurons found when the row's buckets are visited in random order, each from a random position on.
  // codes is (rows, tables), here and below.
  Hits vanilla(const uint32_t* codes, size_t rows, size_t limit, const RowSeeds& seeds);

  // Neurons in at least `at_least` of the row's buckets, at most `limit`: the most frequent ones, random tie-break.
  Hits counted(const uint32_t* codes, size_t rows, size_t at_least, size_t limit, const RowSeeds& seeds);

  // A score for each hit of counted(), higher is better: its order of preference, to the precision of 32 bits.
  std::vector<uint32_t> ranking(const Hits& hits, const RowSeeds& seeds) const;

  const Tables& tables() const { return tables_; }

 private:
  // Of one thread.
  struct alignas(2 * CACHE_LINE) Scratch {
    SeenFilter seen;                   // the row's neurons
    std::vector<int32_t> repeats;      // those that found their slot in `seen` occupied, once per occurrence
    Counters counters;                 // of all neurons (vanilla) or of the repeats (counted)
    std::vector<size_t> tallies;       // (tables + 1): number of neurons by count
    std::vector<TieBreak> tie_breaks;  // of the neurons that compete for the last places
    std::vector<uint32_t> order;       // (tables)
    std::vector<std::span<const int32_t>> buckets, next_buckets;  // (tables): of the row, and of the next row
    std::vector<uint64_t> taken;                                  // the row's hits: neuron << 32 | count

    void take(int32_t neuron, size_t count) { taken.push_back(uint64_t{static_cast<uint32_t>(neuron)} << 32 | count); }
  };

  template <class Row> Hits each_row(const uint32_t* codes, size_t rows, bool with_counts, const Row& row);
  void look_up(const uint32_t* codes, size_t row, Scratch& s) const;
  void take_vanilla(size_t limit, uint64_t seed, Scratch& s) const;
  void take_counted(size_t at_least, size_t limit, uint64_t seed, Scratch& s) const;

  const Tables& tables_;
  Stripe neurons_of_;
  std::mutex mutex_;  // held during a call: guards the scratch
  std::vector<Scratch> scratch_;
  std::vector<Hits> found_;  // by group of rows
};
}  // namespace dslide
