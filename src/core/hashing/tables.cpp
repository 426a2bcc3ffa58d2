#include "hashing/tables.hpp"
#include <algorithm>
#include <bit>
#include <mutex>
#include "runtime/checks.hpp"
#include "runtime/rng.hpp"
#include "runtime/thread_pool.hpp"

namespace dslide {
namespace {
const TablesSpec& checked(const TablesSpec& spec) {
  check_range("neurons", spec.neurons, 1, 0x7FFFFFFF);
  check_range("tables", spec.tables, 1, 1024);
  check_range("table_bits", spec.table_bits, 1, 24);
  return spec;
}
}  // namespace

Tables::Tables(const TablesSpec& spec)
    : spec_(checked(spec)),
      buckets_(size_t{1} << spec.table_bits),
      codes_(spec.tables * spec.neurons, NO_BUCKET),
      offsets_(spec.tables * (buckets_ + 1), 0),
      ids_(spec.tables * spec.neurons),
      dropped_(spec.tables, 0) {}

void Tables::set_codes(const int32_t* neurons, size_t count, const uint32_t* codes) {
  for (size_t i = 0; i < count; ++i) {
    require(neurons[i] >= 0 && static_cast<size_t>(neurons[i]) < spec_.neurons, "neuron numbers must be below ",
            spec_.neurons, ", not ", neurons[i]);
  }
  for (size_t i = 0; i < count * spec_.tables; ++i) {
    require(codes[i] < buckets_, "codes must be below ", buckets_, ", not ", codes[i]);
  }
  parallel_for(spec_.tables, [&](size_t begin, size_t end, int) {
    for (size_t i = 0; i < count; ++i) {
      uint32_t* of_neuron = codes_.data() + neurons[i];
      for (size_t t = begin; t < end; ++t) of_neuron[t * spec_.neurons] = codes[i * spec_.tables + t];
    }
  });
}

void Tables::rebuild() {
  parallel_for(spec_.tables, [&](size_t begin, size_t end, int) {
    std::vector<TieBreak> scratch;
    for (size_t t = begin; t < end; ++t) rebuild_table(t, scratch);
  });
}

void Tables::rebuild_table(size_t table, std::vector<TieBreak>& scratch) {
  const uint32_t* codes = &codes_[table * spec_.neurons];
  uint32_t* offsets = &offsets_[table * (buckets_ + 1)];
  int32_t* ids = &ids_[table * spec_.neurons];
  std::fill_n(offsets, buckets_ + 1, 0u);
  for (size_t i = 0; i < spec_.neurons; ++i) {
    if (codes[i] != NO_BUCKET) ++offsets[codes[i]];
  }
  uint32_t end = 0;
  for (size_t b = 0; b < buckets_; ++b) offsets[b] = end += offsets[b];
  offsets[buckets_] = end;
  // Iterates backwards and fills each bucket from its end: offsets become starts, neurons ascend.
  for (size_t i = spec_.neurons; i-- > 0;) {
    if (codes[i] != NO_BUCKET) ids[--offsets[codes[i]]] = static_cast<int32_t>(i);
  }
  if (spec_.bucket_size > 0) drop_excess(table, scratch);
}

// Truncates buckets to the limit and compacts the table.
void Tables::drop_excess(size_t table, std::vector<TieBreak>& scratch) {
  uint32_t* offsets = &offsets_[table * (buckets_ + 1)];
  int32_t* ids = &ids_[table * spec_.neurons];
  uint32_t kept = 0;
  for (size_t b = 0; b < buckets_; ++b) {
    const std::span<int32_t> bucket(ids + offsets[b], ids + offsets[b + 1]);
    const size_t size = std::min(bucket.size(), spec_.bucket_size);
    if (size < bucket.size()) {
      if (spec_.policy == BucketPolicy::fifo) {
        keep_newest(bucket, table);
      } else {
        keep_sample(bucket, table, scratch);
      }
    }
    offsets[b] = kept;
    std::copy_n(bucket.begin(), size, ids + kept);
    kept += static_cast<uint32_t>(size);
  }
  dropped_[table] = offsets[buckets_] - kept;
  offsets[buckets_] = kept;
}

// Moves the bucket_size neurons inserted last to the front, in ascending order.
void Tables::keep_newest(std::span<int32_t> bucket, size_t table) const {
  const int32_t first = static_cast<int32_t>(below(mix(spec_.seed, table), static_cast<uint32_t>(spec_.neurons)));
  // The order of insertion is first, first + 1, ..., then 0, ..., first - 1: the newest is the last one below `first`.
  const auto oldest = std::lower_bound(bucket.begin(), bucket.end(), first);
  std::rotate(bucket.begin(), oldest, bucket.end());
  std::copy(bucket.end() - static_cast<ptrdiff_t>(spec_.bucket_size), bucket.end(), bucket.begin());
  std::sort(bucket.begin(), bucket.begin() + spec_.bucket_size);
}

// Moves the bucket_size neurons with the smallest tie-breaks to the front, in ascending order.
void Tables::keep_sample(std::span<int32_t> bucket, size_t table, std::vector<TieBreak>& scratch) const {
  scratch.clear();
  for (const int32_t neuron : bucket) {
    scratch.push_back(tie_break(mix(spec_.seed, table, static_cast<uint64_t>(neuron)), neuron));
  }
  const auto kept = scratch.begin() + spec_.bucket_size;
  std::nth_element(scratch.begin(), kept, scratch.end());
  std::transform(scratch.begin(), kept, bucket.begin(), neuron_of);
  std::sort(bucket.begin(), bucket.begin() + spec_.bucket_size);
}

Occupancy Tables::occupancy() const {
  size_t kept = 0, largest = 0, empty = 0, dropped = 0;
  std::vector<size_t> by_size;
  std::mutex adding;  // integer sums: the order of threads does not matter
  parallel_for(spec_.tables, [&](size_t begin, size_t end, int) {
    size_t sizes[32] = {};  // neurons in buckets by bit width of the size
    size_t own_largest = 0, own_empty = 0;
    for (size_t t = begin; t < end; ++t) {
      for (uint32_t b = 0; b < buckets_; ++b) {
        const size_t size = bucket(t, b).size();
        sizes[std::bit_width(size)] += size;
        own_largest = std::max(own_largest, size);
        own_empty += size == 0;
      }
    }
    const std::lock_guard lock(adding);
    largest = std::max(largest, own_largest);
    empty += own_empty;
    by_size.resize(std::bit_width(largest));
    for (size_t i = 0; i < by_size.size(); ++i) by_size[i] += sizes[i + 1];
    for (size_t t = begin; t < end; ++t) {
      kept += offsets_[t * (buckets_ + 1) + buckets_];
      dropped += dropped_[t];
    }
  });
  const double total = static_cast<double>(spec_.tables * buckets_);
  return {static_cast<double>(kept) / total, largest, static_cast<double>(empty) / total, dropped, by_size};
}

size_t Tables::bytes() const { return (codes_.size() + offsets_.size() + ids_.size()) * sizeof(uint32_t); }
}  // namespace dslide
