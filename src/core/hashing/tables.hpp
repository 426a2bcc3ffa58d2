// Hash tables over the neurons of a layer: which neurons are in which bucket of which table.
//
// Buckets are rows of one CSR matrix per table (offsets + neuron numbers), rebuilt from the neurons' codes by counting
// sort: no locks, no allocation, nothing but the codes to remember. So renewing after some codes changed gives just
// what building from scratch gives.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/aligned.hpp"

namespace dslide {

// What a bucket with more neurons than its bound keeps.
//   fifo       those inserted last; insertion starts at a neuron drawn for each table and wraps around, so that which
//              neurons go is not decided by their numbers, the same in all tables
//   reservoir  a uniform sample, drawn anew for each table
enum class BucketPolicy { fifo, reservoir };

struct TablesSpec {
  size_t neurons;      // below 2^31
  size_t tables;       // 1 to 1024
  size_t table_bits;   // 1 to 24
  size_t bucket_size;  // most neurons a bucket keeps; 0: no bound
  BucketPolicy policy;
  uint64_t seed;
};

struct Occupancy {
  double mean;                  // neurons in a bucket
  size_t max;                   // in the fullest bucket
  double empty_share;           // of all buckets
  size_t dropped;               // times a neuron was left out of its bucket, in all tables
  std::vector<size_t> by_size;  // neurons, in all tables, in buckets of 1, of 2 to 3, of 4 to 7 neurons and so on
};

// A neuron with a random number above it; the smallest ones win.
using Lot = uint64_t;
inline Lot draw_lot(uint64_t random, int32_t neuron) { return random >> 32 << 32 | static_cast<uint32_t>(neuron); }
inline int32_t neuron_of(Lot lot) { return static_cast<int32_t>(lot); }

inline constexpr uint32_t kAbsent = 0xFFFFFFFF;  // the code of a neuron that is in no bucket

// Not to be read while codes are set or buckets renewed.
class Tables {
 public:
  explicit Tables(const TablesSpec& spec);

  // Sets the codes of some neurons: codes is (count, tables). Buckets stay as they are until renew(). A neuron whose
  // codes were never set is in no bucket.
  void set_codes(const int32_t* neurons, size_t count, const uint32_t* codes);

  // Rebuilds all buckets from the codes.
  void renew();

  // Neurons in bucket `code` of a table, in ascending order.
  std::span<const int32_t> bucket(size_t table, uint32_t code) const {
    const uint32_t* offset = &offsets_[table * (buckets_ + 1) + code];
    return {&ids_[table * spec_.neurons] + offset[0], offset[1] - offset[0]};
  }

  std::span<const uint32_t> codes(size_t table) const { return {&codes_[table * spec_.neurons], spec_.neurons}; }
  Occupancy occupancy() const;                 // as of the last renew()
  size_t buckets() const { return buckets_; }  // in a table
  size_t bytes() const;
  const TablesSpec& spec() const { return spec_; }

 private:
  void renew_table(size_t table, std::vector<Lot>& scratch);
  void drop_excess(size_t table, std::vector<Lot>& scratch);
  void keep_newest(std::span<int32_t> bucket, size_t table) const;
  void keep_sample(std::span<int32_t> bucket, size_t table, std::vector<Lot>& scratch) const;

  TablesSpec spec_;
  size_t buckets_;
  Aligned<uint32_t> codes_;      // (tables, neurons)
  Aligned<uint32_t> offsets_;    // (tables, buckets + 1), from the beginning of the table's part of ids_
  Aligned<int32_t> ids_;         // (tables, neurons), used as far as neurons are kept
  std::vector<size_t> dropped_;  // (tables), neurons that full buckets left out
};

}  // namespace dslide
