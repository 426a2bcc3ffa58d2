#include "query.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "aligned.hpp"
#include "checks.hpp"
#include "pool.hpp"
#include "rng.hpp"

namespace dslide {
namespace {

constexpr size_t MOST_ASKED_FOR = 256;  // neurons of a bucket
constexpr int FILTER_BITS = 14;  // 16 KB: stays in the nearest cache

size_t filter_slot(int32_t neuron) { return static_cast<uint32_t>(neuron) * 0x9E3779B1u >> (32 - FILTER_BITS); }

}  // namespace

// Calls row(row number, scratch) for each row, which appends to scratch.hits.neurons; sorts and joins what comes out.
template <class Row>
Hits Query::each_row(const uint32_t* codes, size_t rows, bool with_counts, const Row& row) {
  const std::lock_guard lock(mutex_);
  const size_t parts = static_cast<size_t>(threads());
  if (scratch_.size() < parts) scratch_.resize(parts);
  run(static_cast<int>(parts), [&](int thread) {
    Scratch& s = scratch_[static_cast<size_t>(thread)];
    s.counts.resize(tables_.spec().neurons);
    s.filter.resize(size_t{1} << FILTER_BITS);
    s.hits.offsets.assign(1, 0);
    s.hits.neurons.clear();
    s.hits.counts.clear();
    const Range range = part(rows, parts, static_cast<size_t>(thread));
    if (range.begin < range.end) look_up(codes, range.begin, s);
    for (size_t r = range.begin; r < range.end; ++r) {
      const ptrdiff_t begin = static_cast<ptrdiff_t>(s.hits.neurons.size());
      s.buckets.swap(s.next_buckets);
      if (r + 1 < range.end) look_up(codes, r + 1, s);
      row(r, s);
      std::sort(s.hits.neurons.begin() + begin, s.hits.neurons.end());
      if (with_counts) {
        for (size_t i = static_cast<size_t>(begin); i < s.hits.neurons.size(); ++i) {
          s.hits.counts.push_back(s.counts[static_cast<size_t>(s.hits.neurons[i])]);
        }
      }
      s.hits.offsets.push_back(static_cast<int64_t>(s.hits.neurons.size()));
      for (const int32_t neuron : s.met) s.counts[static_cast<size_t>(neuron)] = 0;
      s.met.clear();
    }
  });
  Hits all;
  all.offsets.reserve(rows + 1);
  all.offsets.push_back(0);
  for (size_t i = 0; i < parts; ++i) {
    const Hits& hits = scratch_[i].hits;
    const int64_t before = all.offsets.back();
    for (size_t r = 1; r < hits.offsets.size(); ++r) all.offsets.push_back(before + hits.offsets[r]);
    all.neurons.insert(all.neurons.end(), hits.neurons.begin(), hits.neurons.end());
    all.counts.insert(all.counts.end(), hits.counts.begin(), hits.counts.end());
  }
  return all;
}

// Finds the buckets of a row whose turn is next and asks for their memory, which is rarely in any cache.
void Query::look_up(const uint32_t* codes, size_t row, Scratch& s) const {
  const size_t tables = tables_.spec().tables;
  codes += row * tables;
  s.next_buckets.resize(tables);
  for (size_t t = 0; t < tables; ++t) {
    if (codes[t] >= tables_.buckets()) {
      throw std::invalid_argument("row " + std::to_string(row) + ": codes must be below " +
                                  std::to_string(tables_.buckets()) + ", not " + std::to_string(codes[t]));
    }
    const auto bucket = s.next_buckets[t] = tables_.bucket(t, codes[t]);
    for (size_t i = 0; i < std::min(bucket.size(), MOST_ASKED_FOR); i += CACHE_LINE / sizeof(int32_t)) {
      __builtin_prefetch(bucket.data() + i);
    }
  }
}

Hits Query::vanilla(const uint32_t* codes, size_t rows, size_t want, const Lottery& lottery) {
  return each_row(codes, rows, false, [&](size_t row, Scratch& s) { take_vanilla(want, lottery.key(row), s); });
}

Hits Query::counted(const uint32_t* codes, size_t rows, size_t at_least, size_t want, const Lottery& lottery) {
  check_range("threshold", at_least, 1, 0xFFFF);
  return each_row(codes, rows, true,
                  [&](size_t row, Scratch& s) { take_counted(at_least, want, lottery.key(row), s); });
}

std::vector<uint32_t> Query::ranking(const Hits& hits, const Lottery& lottery) const {
  std::vector<uint32_t> result(hits.neurons.size());
  for (size_t row = 0; row + 1 < hits.offsets.size(); ++row) {
    const uint64_t key = lottery.key(row);
    for (auto i = static_cast<size_t>(hits.offsets[row]); i < static_cast<size_t>(hits.offsets[row + 1]); ++i) {
      const uint64_t lot = mix(key, neurons_of_.whole(static_cast<size_t>(hits.neurons[i])));
      result[i] = std::min<uint32_t>(hits.counts[i], 1023) << 22 | static_cast<uint32_t>(~lot >> 42);
    }
  }
  return result;
}

void Query::take_vanilla(size_t want, uint64_t key, Scratch& s) const {
  const uint32_t tables = static_cast<uint32_t>(tables_.spec().tables);
  s.order.resize(tables);
  std::iota(s.order.begin(), s.order.end(), 0u);
  for (uint32_t i = 0; i < tables && s.met.size() < want; ++i) {
    std::swap(s.order[i], s.order[i + below(mix(key, 0, i), tables - i)]);
    const auto bucket = s.buckets[s.order[i]];
    // From a random place on, or the bucket that is cut short would always lose its highest neurons.
    const uint32_t size = static_cast<uint32_t>(bucket.size()), begin = below(mix(key, 1, i), size);
    for (uint32_t j = 0; j < size && s.met.size() < want; ++j) {
      const int32_t neuron = bucket[begin + j < size ? begin + j : begin + j - size];
      if (s.counts[static_cast<size_t>(neuron)]++ == 0) s.met.push_back(neuron);
    }
  }
  s.hits.neurons.insert(s.hits.neurons.end(), s.met.begin(), s.met.end());
}

// Gives counters to the neurons that take_counted() has left out, which were met once.
void Query::meet_singles(Scratch& s) const {
  for (const auto bucket : s.buckets) {
    for (const int32_t neuron : bucket) {
      if (s.filter[filter_slot(neuron)] != 1) continue;
      s.counts[static_cast<size_t>(neuron)] = 1;
      s.met.push_back(neuron);
    }
  }
}

// Most of the neurons in a row's buckets are met once, a few thousand of them, and a counter for each, anywhere in
// memory, would cost a cache miss. So they are first counted in the few slots of `filter`: a neuron alone in its slot
// was met once, and only the others need counters of their own.
void Query::take_counted(size_t at_least, size_t want, uint64_t key, Scratch& s) const {
  std::fill(s.filter.begin(), s.filter.end(), uint8_t{0});
  for (const auto bucket : s.buckets) {
    for (const int32_t neuron : bucket) {
      uint8_t& slot = s.filter[filter_slot(neuron)];
      slot = static_cast<uint8_t>(slot + (slot < 2));
    }
  }
  size_t all = 0, several = 0;
  for (const auto bucket : s.buckets) {
    all += bucket.size();
    s.several.resize(std::max(s.several.size(), several + bucket.size()));
    for (const int32_t neuron : bucket) {  // without a branch, which could not be foretold
      s.several[several] = neuron;
      several += s.filter[filter_slot(neuron)] != 1;
    }
  }
  for (size_t i = 0; i < several; ++i) {
    if (s.counts[static_cast<size_t>(s.several[i])]++ == 0) s.met.push_back(s.several[i]);
  }
  s.tallies.assign(s.buckets.size() + 1, 0);
  s.tallies[1] = all - several;
  for (const int32_t neuron : s.met) ++s.tallies[s.counts[static_cast<size_t>(neuron)]];
  // All neurons with a count above `limit` are taken; those with just `limit` draw lots for the places left.
  size_t limit = s.buckets.size(), left = want;
  while (limit >= at_least && s.tallies[limit] <= left) left -= s.tallies[limit--];
  if (limit < at_least) left = 0;
  if (limit <= 1 && at_least <= 1) meet_singles(s);
  for (const int32_t neuron : s.met) {
    if (s.counts[static_cast<size_t>(neuron)] > limit) s.hits.neurons.push_back(neuron);
  }
  if (left == 0) return;
  // Lots are uniform, so nearly always those below `likely` are enough; only among them is it worth to look closer.
  const double share = (static_cast<double>(left) + 4 * std::sqrt(static_cast<double>(left)) + 4) /
                       static_cast<double>(s.tallies[limit]);
  uint64_t likely = share < 1 ? static_cast<uint64_t>(share * 0x1p64) : UINT64_MAX;
  for (s.lots.clear(); s.lots.size() < left; likely = UINT64_MAX) {
    s.lots.clear();
    for (const int32_t neuron : s.met) {
      if (s.counts[static_cast<size_t>(neuron)] != limit) continue;
      const Lot lot = draw_lot(mix(key, neurons_of_.whole(static_cast<size_t>(neuron))), neuron);
      if (lot <= likely) s.lots.push_back(lot);
    }
  }
  std::nth_element(s.lots.begin(), s.lots.begin() + static_cast<ptrdiff_t>(left) - 1, s.lots.end());
  for (size_t i = 0; i < left; ++i) s.hits.neurons.push_back(neuron_of(s.lots[i]));
}

}  // namespace dslide
