// Looks rows up in hash tables: which neurons share buckets with a row, and which of them to take.
#pragma once
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "hashing/counters.hpp"
#include "hashing/seen_filter.hpp"
#include "hashing/tables.hpp"
#include "runtime/aligned.hpp"
#include "runtime/rng.hpp"
#include "runtime/stripe.hpp"

namespace dslide {

// Neurons met by each row, ascending within a row.
struct Hits {
  std::vector<int64_t> offsets;  // (rows + 1)
  std::vector<int32_t> neurons;
  std::vector<uint16_t> counts;  // in how many tables a neuron was met; none from vanilla()
};

constexpr size_t kNoBound = SIZE_MAX;

// Where random choices are to come from; `first_row` is the number in the batch of the first row asked for.
struct Lottery {
  uint64_t seed, step;
  size_t first_row = 0;
  uint64_t key(size_t row) const { return mix(seed, step, first_row + row); }
};

// Random choices follow from (seed, step, number of the row), so the result depends on no thread. Reads `tables`,
// which has to outlive it and must not change during a call.
class Query {
 public:
  // `neurons_of` says which of the whole layer's neurons the tables are over: the lot a neuron draws is that of its
  // number among all.
  explicit Query(const Tables& tables, const Stripe& neurons_of = {}) : tables_(tables), neurons_of_(neurons_of) {}

  // The first `want` neurons found, going through the row's buckets in random order, each from a random place on.
  // codes is (rows, tables), here and below.
  Hits vanilla(const uint32_t* codes, size_t rows, size_t want, const Lottery& lottery);

  // Neurons met in at least `at_least` tables, no more than `want`: those met in most tables, equals by lot.
  Hits counted(const uint32_t* codes, size_t rows, size_t at_least, size_t want, const Lottery& lottery);

  // How good each hit of counted() is, best highest: the order in which it picks them, as far as 32 bits can tell.
  std::vector<uint32_t> ranking(const Hits& hits, const Lottery& lottery) const;

  const Tables& tables() const { return tables_; }

 private:
  // What one thread works with.
  struct alignas(2 * CACHE_LINE) Scratch {
    FirstMet first_met;           // of the row's neurons
    std::vector<int32_t> others;  // those that found their slot taken, as often as they did
    Counters counters;            // of the row's neurons, or of those that need one
    std::vector<size_t> tallies;  // (tables + 1): how many neurons have a count
    std::vector<Lot> lots;        // of the neurons that draw for the last places
    std::vector<uint32_t> order;  // (tables)
    std::vector<std::span<const int32_t>> buckets, next_buckets;  // (tables): those of the row, and of the next
    std::vector<uint64_t> taken;  // the row's hits: neuron, and below it in how many tables it was met

    void take(int32_t neuron, size_t count) { taken.push_back(uint64_t{static_cast<uint32_t>(neuron)} << 32 | count); }
  };

  template <class Row>
  Hits each_row(const uint32_t* codes, size_t rows, bool with_counts, const Row& row);
  void look_up(const uint32_t* codes, size_t row, Scratch& s) const;
  void take_vanilla(size_t want, uint64_t key, Scratch& s) const;
  void take_counted(size_t at_least, size_t want, uint64_t key, Scratch& s) const;

  const Tables& tables_;
  Stripe neurons_of_;
  std::mutex mutex_;  // held during a call: callers queue up for the scratch
  std::vector<Scratch> scratch_;
  std::vector<Hits> found_;  // of some rows at a time
};

}  // namespace dslide
