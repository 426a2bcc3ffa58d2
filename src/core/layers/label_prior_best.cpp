// The labels that the prior takes each row for.
#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <limits>
#include "layers/label_prior.hpp"
#include "layers/link_prefetch.hpp"
#include "runtime/thread_pool.hpp"

namespace dslide {
namespace {
constexpr uint32_t TIE_BITS = 0x3ff;        // of a key: random
constexpr int64_t PREFETCH_DISTANCE = 2;    // in features
constexpr int64_t PREFETCH_LINKS = 256;     // ahead of a walk over all links
constexpr int64_t MOST_ELEMENTS = 1 << 16;  // of rows at once
constexpr size_t PREFETCH_LINES = 4;        // of a feature's links; the hardware fetches the rest
constexpr size_t LINES_AT_ONCE = 64;        // of scores
constexpr size_t FEW = 16;                  // neurons, of which a sorted list is kept

// An unsigned number that orders as the float, with random low bits.
uint32_t key_of(float sum, size_t neuron) {
  const auto bits = std::bit_cast<uint32_t>(sum);
  const uint32_t ordered = bits >> 31 ? ~bits : bits | 0x80000000u;
  const auto random = static_cast<uint32_t>((neuron + 1) * 0x9e3779b97f4a7c15u >> 32);
  return (ordered & ~TIE_BITS) | (random & TIE_BITS) | 1;  // never 0
}

// The smallest number whose key can be larger than this one.
float least_above(uint32_t key) {
  if (key == 0) return -std::numeric_limits<float>::infinity();
  const uint32_t ordered = key & ~TIE_BITS;
  return std::bit_cast<float>(ordered >> 31 ? ordered & 0x7fffffffu : ~ordered);
}

// Whether the score of any neuron of a line that has one is large enough. Compilers don't vectorize the plain loop.
bool any_reaches(const float* sum, const float* bias, float least) {
  typedef float Floats __attribute__((vector_size(16)));
  typedef int32_t Mask __attribute__((vector_size(16)));
  Mask any{};
  for (size_t j = 0; j < SCORE_LINE; j += 4) {
    Floats s, b;
    std::memcpy(&s, sum + j, sizeof s);
    std::memcpy(&b, bias + j, sizeof b);
    any |= (s != 0.0f) & (s + b >= least);
  }
  return (any[0] | any[1] | any[2] | any[3]) != 0;
}

// A bit for each of LINES_AT_ONCE bytes, which are 0 or 1. A walk over bits is predictable, a branch for each byte not.
uint64_t bits_of(const uint64_t* bytes) {
  static_assert(std::endian::native == std::endian::little);
  uint64_t bits = 0;
  for (size_t i = 0; i < LINES_AT_ONCE / 8; ++i) bits |= (bytes[i] * 0x0102040810204080u >> 56) << 8 * i;
  return bits;
}

// The best neurons of a row so far, best first; ties to the one that came first.
struct FewBest {
  int32_t* ids;
  uint32_t* keys;
  size_t count;
  float least = -std::numeric_limits<float>::infinity();  // what another one needs at least

  void offer(int32_t neuron, uint32_t key) {
    if (key <= keys[count - 1]) return;
    size_t at = count - 1;  // an insertion sort: few are better than all before
    for (; at > 0 && keys[at - 1] < key; --at) {
      keys[at] = keys[at - 1];
      ids[at] = ids[at - 1];
    }
    keys[at] = key;
    ids[at] = neuron;
    least = least_above(keys[count - 1]);
  }
  void finish() {}
};

// The same, for neurons that come in ascending order, where a place among many would take long to make: they are kept
// as they come, and now and then all but the best are dropped.
struct ManyBest {
  int32_t* ids;
  uint32_t* keys;
  size_t count;
  std::vector<uint64_t>& found;  // key and neuron, as a number that is larger if the neuron is better
  uint32_t least_key = 0;
  float least = -std::numeric_limits<float>::infinity();

  void offer(int32_t neuron, uint32_t key) {
    if (key <= least_key) return;
    found.push_back(uint64_t{key} << 32 | ~static_cast<uint32_t>(neuron));
    if (found.size() < 2 * count) return;
    const auto last = found.begin() + static_cast<std::ptrdiff_t>(count - 1);
    std::nth_element(found.begin(), last, found.end(), std::greater<>());
    found.resize(count);
    least_key = static_cast<uint32_t>(found.back() >> 32);
    least = least_above(least_key);
  }
  void finish() {
    std::sort(found.begin(), found.end(), std::greater<>());
    for (size_t j = 0; j < std::min(count, found.size()); ++j) {
      ids[j] = static_cast<int32_t>(~static_cast<uint32_t>(found[j]));
      keys[j] = static_cast<uint32_t>(found[j] >> 32);
    }
    found.clear();
  }
};
}  // namespace

void LabelPrior::weigh_links(const Csr& x, const GroupedInputs* groups) {
  if (bucket_of_.empty()) {
    bucket_of_.resize(arrays_.counted.nnz());
    parallel_each(bucket_of_.size(), [&](size_t k) {
      bucket_of_[k] = static_cast<uint8_t>(prior_bucket(arrays_.rows[arrays_.counted.ids[k]]));
    });
  }
  use_groups(x, groups);
  weighted_links_.resize(groups_->parts.size());
  parallel_each(weighted_links_.size(), [&](size_t t) { weigh_links_of(groups_->parts[t], weighted_links_[t]); });
}

void LabelPrior::weigh_links_of(const InputGroups& group, WeightedLinks& found) const {
  const Csr& links = arrays_.counted;
  found.begin.assign(1, 0);
  for (const int32_t input : group.input) {
    found.begin.push_back(found.begin.back() + links.offsets[input + 1] - links.offsets[input]);
  }
  if (found.links.size() < found.begin.back()) found.links.resize(found.begin.back());
  auto* out = found.links.data();
  LinkPrefetch prefetch(links, group.input, PREFETCH_LINKS);
  for (const int32_t input : group.input) {
    prefetch.advance([&](int64_t first, int64_t count) {
      prefetch_numbers(links.ids + first, count);
      prefetch_numbers(links.values + first, count);
      if (arrays_.is_trained) prefetch_numbers(arrays_.trained + first, count);
      prefetch_numbers(bucket_of_.data() + first, count);
    });
    const int64_t first = links.offsets[input], last = links.offsets[input + 1];
    for (int64_t k = first; k < last; ++k, ++out) {
      const float trained = arrays_.is_trained ? arrays_.trained[k] : 0.0f;
      *out = {links.ids[k], arrays_.scale[bucket_of_[k]] * links.values[k] + trained};
    }
  }
}

void LabelPrior::add_scores(const Csr& x, size_t row, double norm, Scores& scores) const {
  float* const sum = scores.sum.data();
  auto* const touched = reinterpret_cast<uint8_t*>(scores.touched.data());
  const auto links_of = [&](int64_t e) {
    const WeightedLinks& found = weighted_links_[x.ids[e] % weighted_links_.size()];
    const size_t first = found.begin[groups_->place[e]];
    return std::span(found.links.data() + first, found.begin[groups_->place[e] + 1] - first);
  };
  for (int64_t e = x.offsets[row]; e < x.offsets[row + 1]; ++e) {
    if (e + PREFETCH_DISTANCE < x.offsets[row + 1]) {
      prefetch({reinterpret_cast<const char*>(links_of(e + PREFETCH_DISTANCE).data()), PREFETCH_LINES});
    }
    const auto unit = static_cast<float>(x.values[e] / norm);
    if (unit == 0) continue;
    for (const auto& link : links_of(e)) {
      sum[link.neuron] += unit * link.weight;
      touched[link.neuron / SCORE_LINE] = 1;
    }
  }
}

void LabelPrior::best(const Csr& x, const double* norms, const Csr& own, const float* bias, size_t count, Stripe stripe,
                      int32_t* ids, uint32_t* keys, const GroupedInputs* groups) {
  const std::lock_guard<std::mutex> lock(in_use_);
  std::vector<int64_t> offsets;
  for (size_t first = 0, last; first < x.rows; first = last) {  // in parts, to limit the memory for their links
    for (last = first + 1; last < x.rows && x.offsets[last + 1] - x.offsets[first] <= MOST_ELEMENTS;) ++last;
    const int64_t begin = x.offsets[first];
    offsets.assign(x.offsets + first, x.offsets + last + 1);
    for (int64_t& offset : offsets) offset -= begin;
    const Csr part{last - first, offsets.data(), x.ids + begin, x.values + begin};
    const Csr own_part{last - first, own.offsets + first, own.ids};
    best_of_part(part, norms + first, own_part, bias, count, stripe, ids + first * count, keys + first * count,
                 last - first == x.rows ? groups : nullptr);
  }
}

// Offers the neurons of the lines with scores, in ascending order; all scores become 0.
template <class Best> void LabelPrior::drain_scores(Scores& scores, const float* bias, Stripe stripe, Best best) const {
  for (size_t w = 0; w < scores.touched.size() / (LINES_AT_ONCE / 8); ++w) {
    uint64_t* const touched = &scores.touched[LINES_AT_ONCE / 8 * w];
    for (uint64_t bits = bits_of(touched); bits != 0; bits &= bits - 1) {
      const size_t begin = (LINES_AT_ONCE * w + std::countr_zero(bits)) * SCORE_LINE;
      float* const sum = &scores.sum[begin];
      const size_t end = std::min(begin + SCORE_LINE, neurons());
      if (end < begin + SCORE_LINE || any_reaches(sum, bias + begin, best.least)) {
        for (size_t n = begin; n < end; ++n) {
          if (sum[n - begin] == 0) continue;
          best.offer(static_cast<int32_t>(n), key_of(sum[n - begin] + bias[n], stripe.to_global(n)));
        }
      }
      std::fill_n(sum, SCORE_LINE, 0.0f);
    }
    std::fill_n(touched, LINES_AT_ONCE / 8, 0u);
  }
  best.finish();
}

void LabelPrior::best_of_part(const Csr& x, const double* norms, const Csr& own, const float* bias, size_t count,
                              Stripe stripe, int32_t* ids, uint32_t* keys, const GroupedInputs* groups) {
  weigh_links(x, groups);
  const int parts = threads();
  scores_.resize(parts);
  const size_t lines = neurons() / SCORE_LINE + 1, words = lines / LINES_AT_ONCE + 1;
  parallel_for(x.rows, 1, parts, [&](size_t first, size_t last, int thread) {
    Scores& scores = scores_[thread];
    scores.sum.resize(LINES_AT_ONCE * SCORE_LINE * words);
    scores.touched.resize(LINES_AT_ONCE / 8 * words);
    std::vector<uint64_t> found;
    for (size_t i = first; i < last; ++i) {
      add_scores(x, i, norms[i], scores);
      for (const int32_t* label = own.begin(i); label != own.end(i); ++label) scores.sum[*label] = 0;
      int32_t* const best_ids = ids + i * count;
      uint32_t* const best_keys = keys + i * count;
      std::fill_n(best_ids, count, -1);
      std::fill_n(best_keys, count, 0u);
      if (count <= FEW) {
        drain_scores(scores, bias, stripe, FewBest{best_ids, best_keys, count});
      } else {
        drain_scores(scores, bias, stripe, ManyBest{best_ids, best_keys, count, found});
      }
    }
  });
}
}  // namespace dslide
