// Hash tables over the neurons of a layer: which neurons are in which bucket of which table.
//
// The buckets of a table are the rows of a CSR matrix (offsets and neuron numbers), rebuilt from the neurons' codes by
// counting sort: no locks, no allocation. A rebuild after some codes changed equals a build from scratch.
#pragma once
#include <cstdint>
#include <span>
#include <vector>
#include "runtime/memory.hpp"

namespace dslide {
// What a bucket with more neurons than its limit keeps.
//   fifo       the neurons inserted last; insertion starts at a random neuron per table and wraps around, so that the
//              evicted neurons differ between tables
//   reservoir  a uniform sample, independent for each table
enum class BucketPolicy { fifo, reservoir };

struct TablesSpec {
  size_t neurons;      // below 2^31
  size_t tables;       // 1 to 1024
  size_t table_bits;   // 1 to 24
  size_t bucket_size;  // limit of neurons per bucket; 0: none
  BucketPolicy policy;
  uint64_t seed;
};

struct Occupancy {
  double mean;                  // neurons per bucket
  size_t max;                   // size of the fullest bucket
  double empty_share;           // share of buckets that are empty
  size_t dropped;               // neurons evicted from full buckets, over all tables
  std::vector<size_t> by_size;  // neurons, over all tables, in buckets of size 1, 2 to 3, 4 to 7, ...
};

// Random tie-break: 32 random bits above the neuron's number. The smallest values win.
using TieBreak = uint64_t;
inline TieBreak tie_break(uint64_t random, int32_t neuron) {
  return random >> 32 << 32 | static_cast<uint32_t>(neuron);
}
inline int32_t neuron_of(TieBreak value) { return static_cast<int32_t>(value); }

inline constexpr uint32_t NO_BUCKET = 0xFFFFFFFF;  // code of a neuron that is in no bucket

// Must not be read during set_codes() or rebuild().
class Tables {
 public:
  explicit Tables(const TablesSpec& spec);

  // Sets the codes (count, tables) of some neurons. Buckets do not change until rebuild(). A neuron whose codes were
  // never set is in no bucket.
  void set_codes(const int32_t* neurons, size_t count, const uint32_t* codes);

  // Rebuilds all buckets from the codes.
  void rebuild();

  // Neurons in bucket `code` of a table, ascending.
  std::span<const int32_t> bucket(size_t table, uint32_t code) const {
    const uint32_t* offset = &offsets_[table * (buckets_ + 1) + code];
    return {&ids_[table * spec_.neurons] + offset[0], offset[1] - offset[0]};
  }

  std::span<const uint32_t> codes(size_t table) const { return {&codes_[table * spec_.neurons], spec_.neurons}; }
  Occupancy occupancy() const;                 // at the last rebuild()
  size_t buckets() const { return buckets_; }  // per table
  size_t bytes() const;
  const TablesSpec& spec() const { return spec_; }

 private:
  void rebuild_table(size_t table, std::vector<TieBreak>& scratch);
  void drop_excess(size_t table, std::vector<TieBreak>& scratch);
  void keep_newest(std::span<int32_t> bucket, size_t table) const;
  void keep_sample(std::span<int32_t> bucket, size_t table, std::vector<TieBreak>& scratch) const;

  TablesSpec spec_;
  size_t buckets_;
  Aligned<uint32_t> codes_;      // (tables, neurons)
  Aligned<uint32_t> offsets_;    // (tables, buckets + 1), relative to the table's part of ids_
  Aligned<int32_t> ids_;         // (tables, neurons), filled as far as neurons are kept
  std::vector<size_t> dropped_;  // (tables), evicted neurons
};
}  // namespace dslide
