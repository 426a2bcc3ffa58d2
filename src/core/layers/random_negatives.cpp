#include "layers/random_negatives.hpp"
#include <algorithm>
#include <cmath>
#include "runtime/radix_sort.hpp"
#include "runtime/rng.hpp"
#include "runtime/thread_pool.hpp"

namespace dslide {
namespace {
constexpr size_t BLOCK = MAX_STRIPE_WIDTH;  // neurons that are decided together at most, in vector registers

// 31 random bits of a neuron. In 32-bit arithmetic, so that compilers vectorise it: a step decides on every neuron.
inline int32_t random_bits(uint32_t neuron, uint32_t seed) {
  uint32_t x = neuron * 0x9E3779B1u ^ seed;
  x = (x ^ x >> 16) * 0x7FEB352Du;
  x = (x ^ x >> 15) * 0x846CA68Bu;
  return static_cast<int32_t>((x ^ x >> 16) >> 1);
}

ChosenNegatives draw_uniformly(const RandomNegatives& negatives, uint64_t seed) {
  ChosenNegatives chosen;
  chosen.ids.reserve(negatives.count * negatives.own.width / negatives.own.step + 1);
  for (size_t i = 0; i < negatives.count; ++i) {
    const uint32_t neuron = below(mix(seed, i), static_cast<uint32_t>(negatives.neurons));
    if (negatives.own.contains(neuron)) chosen.ids.push_back(static_cast<int32_t>(negatives.own.to_local(neuron)));
  }
  sort_unique(chosen.ids);
  // The inclusion probability is that of at least one draw hitting the neuron: unlike the number of distinct neurons
  // drawn, it needs no information from other ranks.
  float log_weight = 0.0f;
  if (negatives.correct && negatives.count > 0) {
    const double missed =
        static_cast<double>(negatives.count) * std::log1p(-1 / static_cast<double>(negatives.neurons));
    log_weight = static_cast<float>(-std::log(-std::expm1(missed)));
  }
  chosen.log_weight.assign(chosen.ids.size(), log_weight);
  return chosen;
}

// Independent decisions: neuron i is chosen with its probability.
ChosenNegatives decide_each(const RandomNegatives& negatives, uint64_t seed, size_t own_neurons) {
  const auto low = static_cast<uint32_t>(seed), high = static_cast<uint32_t>(seed >> 32);
  const Stripe& own = negatives.own;
  const size_t length = BLOCK / own.width * own.width;  // of a block: so all have the same numbers from their first on
  uint32_t number[BLOCK];
  for (size_t i = 0; i < length; ++i) number[i] = static_cast<uint32_t>(own.to_global(i));
  const int parts = threads();
  std::vector<std::vector<int32_t>> found(static_cast<size_t>(parts));
  parallel_for(own_neurons, length, parts, [&](size_t begin, size_t end, int thread) {
    uint8_t in[BLOCK];
    for (size_t block = begin; block < end; block += length) {
      const size_t count = std::min(length, end - block);
      const float* probability = negatives.probability + block;
      const auto from = static_cast<uint32_t>(block / own.width * own.step) + high;
      for (size_t i = 0; i < count; ++i) {
        const int32_t bits = random_bits(from + number[i], low);
        in[i] = static_cast<float>(bits) * 0x1p-31f <= probability[i];  // <=: what has probability 1 is certain
      }
      for (size_t i = 0; i < count; ++i) {
        if (in[i]) found[thread].push_back(static_cast<int32_t>(block + i));
      }
    }
  });
  ChosenNegatives chosen;
  for (const auto& part : found) chosen.ids.insert(chosen.ids.end(), part.begin(), part.end());
  chosen.log_weight.assign(chosen.ids.size(), 0.0f);
  for (size_t i = 0; negatives.correct && i < chosen.ids.size(); ++i) {
    chosen.log_weight[i] = -std::log(negatives.probability[chosen.ids[i]]);
  }
  return chosen;
}
}  // namespace

void sort_unique(std::vector<int32_t>& values) {
  if (values.size() < 256) {  // a comparison sort is faster for short lists
    std::sort(values.begin(), values.end());
  } else {
    std::vector<int32_t> scratch;
    const auto largest = static_cast<uint32_t>(*std::max_element(values.begin(), values.end()));
    radix_sort(values, scratch, largest, [](int32_t x) { return static_cast<uint32_t>(x); });
  }
  values.erase(std::unique(values.begin(), values.end()), values.end());
}

ChosenNegatives choose(const RandomNegatives& negatives, uint64_t seed, size_t own_neurons) {
  return negatives.probability ? decide_each(negatives, seed, own_neurons) : draw_uniformly(negatives, seed);
}
}  // namespace dslide
