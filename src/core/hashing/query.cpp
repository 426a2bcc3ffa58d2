#include "hashing/query.hpp"
#include <algorithm>
#include <cmath>
#include <numeric>
#include "runtime/checks.hpp"
#include "runtime/thread_pool.hpp"

namespace dslide {
namespace {
constexpr size_t ROWS = 16;               // rows per task
constexpr size_t PREFETCH_NEURONS = 256;  // at most, per bucket
}  // namespace

// Calls row(row index, scratch) for each row, which fills scratch.taken; sorts and concatenates the hits.
template <class Row> Hits Query::each_row(const uint32_t* codes, size_t rows, bool with_counts, const Row& row) {
  const std::lock_guard lock(mutex_);
  const int parts = threads();
  scratch_.resize(std::max(scratch_.size(), static_cast<size_t>(parts)));
  const size_t pieces = (rows + ROWS - 1) / ROWS;
  found_.resize(std::max(found_.size(), pieces));
  parallel_for_dynamic(rows, ROWS, parts, [&](size_t begin, size_t end, int thread) {
    Scratch& s = scratch_[thread];
    Hits& found = found_[begin / ROWS];
    found.offsets.assign(1, 0);
    found.neurons.clear();
    found.counts.clear();
    look_up(codes, begin, s);
    for (size_t r = begin; r < end; ++r) {
      s.buckets.swap(s.next_buckets);
      if (r + 1 < end) look_up(codes, r + 1, s);
      s.taken.clear();
      row(r, s);
      std::sort(s.taken.begin(), s.taken.end());
      for (const uint64_t hit : s.taken) {
        found.neurons.push_back(static_cast<int32_t>(hit >> 32));
        if (with_counts) found.counts.push_back(static_cast<uint16_t>(hit));
      }
      found.offsets.push_back(static_cast<int64_t>(found.neurons.size()));
    }
  });
  Hits all;
  all.offsets.reserve(rows + 1);
  all.offsets.push_back(0);
  for (size_t i = 0; i < pieces; ++i) {
    const Hits& hits = found_[i];
    const int64_t before = all.offsets.back();
    for (size_t r = 1; r < hits.offsets.size(); ++r) all.offsets.push_back(before + hits.offsets[r]);
    all.neurons.insert(all.neurons.end(), hits.neurons.begin(), hits.neurons.end());
    all.counts.insert(all.counts.end(), hits.counts.begin(), hits.counts.end());
  }
  return all;
}

// Finds the buckets of the next row and prefetches them: they are rarely in cache.
void Query::look_up(const uint32_t* codes, size_t row, Scratch& s) const {
  const size_t tables = tables_.spec().tables;
  codes += row * tables;
  s.next_buckets.resize(tables);
  for (size_t t = 0; t < tables; ++t) {
    require(codes[t] < tables_.buckets(), "row ", row, ": codes must be below ", tables_.buckets(), ", not ", codes[t]);
    const auto bucket = s.next_buckets[t] = tables_.bucket(t, codes[t]);
    for (size_t i = 0; i < std::min(bucket.size(), PREFETCH_NEURONS); i += CACHE_LINE / sizeof(int32_t)) {
      __builtin_prefetch(bucket.data() + i, 0, 2);
    }
  }
}

Hits Query::vanilla(const uint32_t* codes, size_t rows, size_t limit, const RowSeeds& seeds) {
  return each_row(codes, rows, false, [&](size_t row, Scratch& s) { take_vanilla(limit, seeds.of(row), s); });
}

Hits Query::counted(const uint32_t* codes, size_t rows, size_t at_least, size_t limit, const RowSeeds& seeds) {
  check_range("threshold", at_least, 1, 0xFFFF);
  return each_row(codes, rows, true, [&](size_t row, Scratch& s) { take_counted(at_least, limit, seeds.of(row), s); });
}

std::vector<uint32_t> Query::ranking(const Hits& hits, const RowSeeds& seeds) const {
  std::vector<uint32_t> result(hits.neurons.size());
  for (size_t row = 0; row + 1 < hits.offsets.size(); ++row) {
    const uint64_t seed = seeds.of(row);
    for (auto i = static_cast<size_t>(hits.offsets[row]); i < static_cast<size_t>(hits.offsets[row + 1]); ++i) {
      const uint64_t random = mix(seed, neurons_of_.to_global(hits.neurons[i]));
      result[i] = std::min<uint32_t>(hits.counts[i], 1023) << 22 | static_cast<uint32_t>(~random >> 42);
    }
  }
  return result;
}

void Query::take_vanilla(size_t limit, uint64_t seed, Scratch& s) const {
  const uint32_t tables = static_cast<uint32_t>(tables_.spec().tables);
  size_t all = 0;
  for (const auto bucket : s.buckets) all += bucket.size();
  s.counters.reset(std::min(all, limit));
  s.order.resize(tables);
  std::iota(s.order.begin(), s.order.end(), 0u);
  for (uint32_t i = 0; i < tables && s.taken.size() < limit; ++i) {
    std::swap(s.order[i], s.order[i + below(mix(seed, 0, i), tables - i)]);
    const auto bucket = s.buckets[s.order[i]];
    // From a random position: otherwise a bucket that is cut short would always lose its highest neurons.
    const uint32_t size = static_cast<uint32_t>(bucket.size()), begin = below(mix(seed, 1, i), size);
    for (uint32_t j = 0; j < size && s.taken.size() < limit; ++j) {
      const int32_t neuron = bucket[begin + j < size ? begin + j : begin + j - size];
      if (s.counters.add(neuron) == 1) s.take(neuron, 1);
    }
  }
}

// Most of the few thousand neurons in a row's buckets occur once; only those that share a slot of `seen` get counters.
void Query::take_counted(size_t at_least, size_t limit, uint64_t seed, Scratch& s) const {
  size_t all = 0;
  for (const auto bucket : s.buckets) all += bucket.size();
  s.repeats.resize(std::max(s.repeats.size(), all + 1));
  s.seen.reset(tables_.spec().neurons);
  int32_t* end = s.repeats.data();
  for (const auto bucket : s.buckets) end = s.seen.insert(bucket.data(), bucket.size(), end);
  const size_t repeats = end - s.repeats.data();
  s.tallies.assign(s.buckets.size() + 1, 0);
  s.tallies[1] = all - repeats;
  s.counters.reset(repeats);
  for (size_t i = 0; i < repeats; ++i) {
    if (s.counters.add(s.repeats[i]) == 1 && s.seen.owns_slot(s.repeats[i])) {
      s.counters.add(s.repeats[i]);  // the first occurrence
      --s.tallies[1];
    }
  }
  for (size_t i = 0; i < s.counters.size(); ++i) ++s.tallies[s.counters[i].count];
  const auto without_counter = [&](int32_t neuron) { return s.seen.owns_slot(neuron) && !s.counters.contains(neuron); };
  // All neurons with a count above `last_count` are taken; those with just `last_count` compete for what is left.
  size_t last_count = s.buckets.size(), left = limit;
  while (last_count >= at_least && s.tallies[last_count] <= left) left -= s.tallies[last_count--];
  if (last_count < at_least) left = 0;
  for (size_t i = 0; i < s.counters.size(); ++i) {
    if (s.counters[i].count > last_count) s.take(s.counters[i].neuron, s.counters[i].count);
  }
  if (last_count == 0) {  // all neurons fit: take those that occur once, too
    for (const auto bucket : s.buckets) {
      for (const int32_t neuron : bucket) {
        if (without_counter(neuron)) s.take(neuron, 1);
      }
    }
  }
  if (left == 0) return;
  // Tie-breaks are uniform, so those below `likely` nearly always suffice; only these are compared.
  const double share = (static_cast<double>(left) + 4 * std::sqrt(static_cast<double>(left)) + 4) /
                       static_cast<double>(s.tallies[last_count]);
  uint64_t likely = share < 1 ? static_cast<uint64_t>(share * 0x1p64) : UINT64_MAX;
  const auto tie_break_of = [&](int32_t neuron) { return tie_break(mix(seed, neurons_of_.to_global(neuron)), neuron); };
  for (s.tie_breaks.clear(); s.tie_breaks.size() < left; likely = UINT64_MAX) {
    s.tie_breaks.clear();
    for (size_t i = 0; i < s.counters.size(); ++i) {
      if (s.counters[i].count != last_count) continue;
      if (const TieBreak value = tie_break_of(s.counters[i].neuron); value <= likely) s.tie_breaks.push_back(value);
    }
    if (last_count > 1) continue;
    for (const auto bucket : s.buckets) {
      for (const int32_t neuron : bucket) {  // the tie-break first: few are low enough, and few have counters
        const TieBreak value = tie_break_of(neuron);
        if (value <= likely && without_counter(neuron)) s.tie_breaks.push_back(value);
      }
    }
  }
  std::nth_element(s.tie_breaks.begin(), s.tie_breaks.begin() + left - 1, s.tie_breaks.end());
  for (size_t i = 0; i < left; ++i) s.take(neuron_of(s.tie_breaks[i]), last_count);
}
}  // namespace dslide
