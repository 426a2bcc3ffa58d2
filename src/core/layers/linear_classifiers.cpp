#include "layers/linear_classifiers.hpp"
#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <vector>
#include "runtime/rng.hpp"
#include "runtime/thread_pool.hpp"

namespace dslide {
namespace {
constexpr float BIAS = 1;  // the value of the feature that the bias is the weight of

// The rows that all labels share. They are scaled to length 1 where they are used.
struct Rows {
  Rows(const Csr& from, const double* row_norms) : x(from), norms(row_norms), square(from.rows) {
    parallel_each(x.rows, [&](size_t i) {
      float sum = 0;
      for (int64_t e = x.offsets[i]; e < x.offsets[i + 1]; ++e) sum += scaled(i, e) * scaled(i, e);
      square[i] = sum + BIAS * BIAS;
    });
  }

  float scaled(size_t row, int64_t e) const { return static_cast<float>(x.values[e] / norms[row]); }
  int64_t size(size_t row) const { return x.offsets[row + 1] - x.offsets[row]; }

  Csr x;
  const double* norms;
  std::vector<float> square;  // of a row's length, the bias's feature included
};

// Trains one label at a time; one per thread. A label's rows are copied side by side, with features numbered in the
// order in which they occur, so that its rows and weights stay in the cache over all passes.
class Solver {
 public:
  Solver(const Rows& all, size_t features, const LinearOptions& options)
      : all_(all), options_(options), local_(features, NONE), used_(all.x.rows, false) {}

  // Begins with a label, on its rows and those that it is trained against, in random order.
  void begin(std::span<const int32_t> positive, std::span<const int32_t> negative, uint64_t seed) {
    positives_ = positive.size();
    const size_t most = std::max(options_.least_negatives, positives_ * options_.negatives_per_row);
    chosen_.assign(negative.begin(), negative.end());
    shuffle(chosen_, std::min(most, chosen_.size()), mix(seed, 0));
    chosen_.resize(std::min(most, chosen_.size()));
    sample_others(positive, mix(seed, 2));
    const size_t n = positives_ + chosen_.size();
    visited_.resize(n);
    visit_all();
    shuffle(visited_, n, mix(seed, 1));
    square_.clear();
    sign_.clear();
    offsets_.assign(1, 0);
    // Sized at once: grown bit by bit, the largest label would take twice as much.
    int64_t entries = 0;
    for (const int32_t row : positive) entries += all_.size(row);
    for (const int32_t row : chosen_) entries += all_.size(row);
    ids_.resize(entries);
    values_.resize(entries);
    for (const size_t i : visited_) {
      const bool has = i < positives_;
      copy(has ? positive[i] : chosen_[i - positives_], has ? 1.0f : -1.0f);
    }
    w_.assign(features_.size(), 0.0f);
    alpha_.assign(n, 0.0f);
    bias_ = 0;
  }

  // Trains from where it stands.
  void train(float cost) {
    visit_all();
    const size_t n = visited_.size();
    const float ridge = 0.5f / cost;  // on dual variables
    size_t active = n;  // rows left: those that stay outside the margin are skipped until the others are solved
    float bound = std::numeric_limits<float>::infinity();
    for (size_t pass = 0; pass < options_.passes; ++pass) {
      float largest = 0;
      size_t left = 0;
      for (size_t s = 0; s < active; ++s) {
        const int32_t i = visited_[s];
        const float gradient = sign_[i] * score(i) - 1 + alpha_[i] * ridge;
        if (alpha_[i] == 0 && gradient > bound) continue;
        visited_[left++] = i;
        if (alpha_[i] == 0 && gradient >= 0) continue;
        largest = std::max(largest, std::fabs(gradient));
        const float after = std::max(0.0f, alpha_[i] - gradient / (square_[i] + ridge));
        add(i, sign_[i] * (after - alpha_[i]));
        alpha_[i] = after;
      }
      active = left;
      if (largest > options_.tolerance) {
        bound = largest;
      } else if (active == n) {
        break;
      } else {  // solved for the rows that were left: all are looked at again
        active = n;
        visit_all();
        bound = std::numeric_limits<float>::infinity();
      }
    }
  }

  // Most weights that are kept of a label with so many rows.
  size_t most_kept(size_t positives) const { return std::min(positives * options_.weights_per_row, local_.size()); }

  // Lists the weights that are kept, ascending by feature: how many.
  size_t list(int32_t* feature, float* weight) {
    kept_.clear();
    for (size_t f = 0; f < w_.size(); ++f) {
      if (w_[f] != 0 && std::fabs(w_[f]) >= options_.least) kept_.push_back({features_[f], w_[f]});
    }
    const size_t most = most_kept(positives_);
    const auto larger = [](const Weight& a, const Weight& b) {
      return std::fabs(a.value) > std::fabs(b.value) ||
             (std::fabs(a.value) == std::fabs(b.value) && a.feature < b.feature);
    };
    if (kept_.size() > most) {
      std::nth_element(kept_.begin(), kept_.begin() + static_cast<int64_t>(most), kept_.end(), larger);
      kept_.resize(most);
    }
    std::sort(kept_.begin(), kept_.end(), [](const Weight& a, const Weight& b) { return a.feature < b.feature; });
    for (size_t i = 0; i < kept_.size(); ++i) {
      feature[i] = kept_[i].feature;
      weight[i] = kept_[i].value;
    }
    return kept_.size();
  }

  // Forgets the label.
  void end() {
    for (const int32_t feature : features_) local_[feature] = NONE;
    features_.clear();
  }

  float bias() const { return bias_ * BIAS; }

 private:
  static constexpr int32_t NONE = -1;
  struct Weight {
    int32_t feature;
    float value;
  };

  // The first `count` become a random choice of all, in random order.
  static void shuffle(std::vector<int32_t>& from, size_t count, uint64_t seed) {
    for (size_t i = 0; i < count; ++i) {
      std::swap(from[i], from[i + below(mix(seed, i), static_cast<uint32_t>(from.size() - i))]);
    }
  }

  // Adds a sample of the rows that are neither the label's nor chosen.
  void sample_others(std::span<const int32_t> positive, uint64_t seed) {
    const size_t others = all_.x.rows - positive.size() - chosen_.size();
    const size_t count = std::min(options_.others, others);
    if (count == 0) return;
    for (const int32_t row : positive) used_[row] = true;
    for (const int32_t row : chosen_) used_[row] = true;
    const size_t end = chosen_.size() + count;
    for (uint64_t draw = 0; chosen_.size() < end; ++draw) {
      const uint32_t row = below(mix(seed, draw), static_cast<uint32_t>(all_.x.rows));
      if (used_[row]) continue;
      used_[row] = true;
      chosen_.push_back(static_cast<int32_t>(row));
    }
    for (const int32_t row : positive) used_[row] = false;
    for (const int32_t row : chosen_) used_[row] = false;
  }

  void visit_all() { std::iota(visited_.begin(), visited_.end(), 0); }

  void copy(int32_t row, float sign) {
    const Csr& x = all_.x;
    int64_t at = offsets_.back();
    for (int64_t e = x.offsets[row]; e < x.offsets[row + 1]; ++e, ++at) {
      int32_t& local = local_[x.ids[e]];
      if (local == NONE) {
        local = static_cast<int32_t>(features_.size());
        features_.push_back(x.ids[e]);
      }
      ids_[at] = local;
      values_[at] = all_.scaled(row, e);
    }
    offsets_.push_back(at);
    square_.push_back(all_.square[row]);
    sign_.push_back(sign);
  }

  float score(int32_t i) const {
    const float* const w = w_.data();
    float sums[4] = {};  // additions that don't wait for each other
    int64_t e = offsets_[i];
    const int64_t end = offsets_[i + 1];
    for (; e + 4 <= end; e += 4) {
      for (int j = 0; j < 4; ++j) sums[j] += w[ids_[e + j]] * values_[e + j];
    }
    for (; e < end; ++e) sums[0] += w[ids_[e]] * values_[e];
    return (sums[0] + sums[1]) + (sums[2] + sums[3]) + bias_ * BIAS;
  }

  void add(int32_t i, float step) {
    bias_ += step * BIAS;
    float* const w = w_.data();
    for (int64_t e = offsets_[i]; e < offsets_[i + 1]; ++e) w[ids_[e]] += step * values_[e];
  }

  const Rows& all_;
  const LinearOptions& options_;
  std::vector<int32_t> local_;     // by feature: its number among those of the label, or NONE
  std::vector<int32_t> features_;  // of the label's rows, by their number there
  std::vector<int64_t> offsets_;   // of the label's rows in ids_ and values_
  std::vector<int32_t> ids_;
  std::vector<float> values_;
  std::vector<float> square_;     // by row of the label
  std::vector<float> sign_;       // by row of the label: 1 if it has the label, else -1
  std::vector<float> w_;          // by feature of the label
  std::vector<float> alpha_;      // by row of the label: its dual variable
  std::vector<int32_t> visited_;  // rows of the label that a pass visits, ascending: they follow each other in memory
  std::vector<int32_t> chosen_;   // negative rows
  std::vector<Weight> kept_;
  std::vector<bool> used_;  // by row: the label's or chosen, while others are sampled
  size_t positives_ = 0;
  float bias_ = 0;
};
}  // namespace

std::vector<LinearWeights> train_linear(const Csr& x, const double* norms, size_t features, const Csr& positive,
                                        const Csr& negative, const int32_t* numbers, const LinearOptions& options) {
  const size_t labels = positive.rows, costs = options.costs.size();
  std::vector<LinearWeights> results(costs);
  const int parts = threads();
  const Rows all(x, norms);
  std::vector<Solver> solvers(parts, Solver(all, features, options));
  // Each label has room for as many weights as it may keep: lists of their own would take the memory twice.
  std::vector<int64_t> room(labels + 1, 0);
  for (size_t label = 0; label < labels; ++label) {
    const size_t positives = positive.end(label) - positive.begin(label);
    room[label + 1] = room[label] + static_cast<int64_t>(solvers[0].most_kept(positives));
  }
  std::vector<std::vector<size_t>> kept(costs, std::vector<size_t>(labels, 0));
  for (LinearWeights& result : results) {
    result.bias.assign(labels, -1.0f);
    result.feature.resize(room[labels]);
    result.weight.resize(room[labels]);
  }
  // The labels with most rows first, or one thread would be left with them.
  std::vector<int32_t> order(labels);
  std::iota(order.begin(), order.end(), 0);
  const auto size = [&](int32_t l) {
    return positive.end(l) - positive.begin(l) + negative.end(l) - negative.begin(l);
  };
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return size(a) > size(b); });
  std::atomic<size_t> next{0};
  run_threads(parts, [&](int thread) {
    Solver& solver = solvers[thread];
    for (size_t at; (at = next.fetch_add(1, std::memory_order_relaxed)) < labels;) {
      const size_t label = order[at];
      const size_t positives = positive.end(label) - positive.begin(label);
      if (positives == 0) continue;
      solver.begin({positive.begin(label), positives}, {negative.begin(label), negative.end(label)}, numbers[label]);
      for (size_t c = 0; c < costs; ++c) {
        solver.train(options.costs[c]);
        kept[c][label] = solver.list(results[c].feature.data() + room[label], results[c].weight.data() + room[label]);
        results[c].bias[label] = solver.bias();
      }
      solver.end();
    }
  });
  for (size_t c = 0; c < costs; ++c) {
    LinearWeights& result = results[c];
    result.begin.assign(labels + 1, 0);
    for (size_t label = 0; label < labels; ++label) {
      const auto from = room[label], to = result.begin[label], count = static_cast<int64_t>(kept[c][label]);
      std::copy_n(result.feature.begin() + from, count, result.feature.begin() + to);
      std::copy_n(result.weight.begin() + from, count, result.weight.begin() + to);
      result.begin[label + 1] = to + count;
    }
    result.feature.resize(result.begin[labels]);
    result.weight.resize(result.begin[labels]);
  }
  return results;
}
}  // namespace dslide
