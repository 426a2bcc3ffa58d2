#include "layers/linear_classifiers.hpp"
#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>
#include "runtime/rng.hpp"
#include "runtime/thread_pool.hpp"

namespace dslide {
namespace {
constexpr float BIAS = 1;  // the value of the feature that the bias is the weight of

// The rows that all labels share, scaled to length 1.
struct Rows {
  Rows(const Csr& from, const double* norms) : x(from), values(from.nnz()), square(from.rows) {
    parallel_each(x.rows, [&](size_t i) {
      float sum = 0;
      for (int64_t e = x.offsets[i]; e < x.offsets[i + 1]; ++e) {
        values[e] = static_cast<float>(from.values[e] / norms[i]);
        sum += values[e] * values[e];
      }
      square[i] = sum + BIAS * BIAS;
    });
    x.values = values.data();
  }

  Csr x;
  std::vector<float> values;
  std::vector<float> square;  // of a row's length, the bias's feature included
};

// Trains one label at a time; one per thread.
class Solver {
 public:
  Solver(const Rows& all, size_t features, const LinearOptions& options)
      : x_(all.x), square_(all.square.data()), options_(options), w_(features, 0.0f) {}

  // Begins with a label, which the first `positives` of these rows have.
  void begin(size_t positives) {
    positives_ = positives;
    alpha_.assign(rows_.size(), 0.0f);
    order_.resize(rows_.size());
    std::iota(order_.begin(), order_.end(), 0);
    bias_ = 0;
  }

  // Trains from where it stands.
  void train(float cost, uint64_t seed) {
    const size_t n = rows_.size();
    const float ridge = 0.5f / cost;
    size_t active = n;  // rows left: those that stay outside the margin are skipped until the others are solved
    float bound = std::numeric_limits<float>::infinity();
    for (size_t pass = 0; pass < options_.passes; ++pass) {
      float largest = 0;
      for (size_t i = 0; i + 1 < active; ++i) {
        std::swap(order_[i], order_[i + below(mix(seed, pass, i), static_cast<uint32_t>(active - i))]);
      }
      for (size_t s = 0; s < active;) {
        const int32_t i = order_[s];
        const float sign = static_cast<size_t>(i) < positives_ ? 1.0f : -1.0f;
        const float gradient = sign * score(rows_[i]) - 1 + alpha_[i] * ridge;
        if (alpha_[i] == 0 && gradient > bound) {
          std::swap(order_[s], order_[--active]);
          continue;
        }
        ++s;
        if (alpha_[i] == 0 && gradient >= 0) continue;
        largest = std::max(largest, std::fabs(gradient));
        const float after = std::max(0.0f, alpha_[i] - gradient / (square_[rows_[i]] + ridge));
        add(rows_[i], sign * (after - alpha_[i]));
        alpha_[i] = after;
      }
      if (largest > options_.tolerance) {
        bound = largest;
      } else if (active == n) {
        break;
      } else {  // solved for the rows that were left: all are looked at again
        active = n;
        bound = std::numeric_limits<float>::infinity();
      }
    }
  }

  // Lists the weights that are kept, ascending by feature.
  void list(std::vector<int32_t>& feature, std::vector<float>& weight) {
    kept_.clear();
    for (const int32_t row : rows_) {
      for (int64_t e = x_.offsets[row]; e < x_.offsets[row + 1]; ++e) {
        float& w = w_[x_.ids[e]];
        if (w != 0) kept_.push_back({x_.ids[e], w});
        w = 0;  // so that it is listed once
      }
    }
    for (const Weight& w : kept_) w_[w.feature] = w.value;
    std::erase_if(kept_, [&](const Weight& w) { return std::fabs(w.value) < options_.least; });
    const size_t most = positives_ * options_.weights_per_row;
    const auto larger = [](const Weight& a, const Weight& b) {
      return std::fabs(a.value) > std::fabs(b.value) ||
             (std::fabs(a.value) == std::fabs(b.value) && a.feature < b.feature);
    };
    if (kept_.size() > most) {
      std::nth_element(kept_.begin(), kept_.begin() + static_cast<int64_t>(most), kept_.end(), larger);
      kept_.resize(most);
    }
    std::sort(kept_.begin(), kept_.end(), [](const Weight& a, const Weight& b) { return a.feature < b.feature; });
    for (const Weight& w : kept_) {
      feature.push_back(w.feature);
      weight.push_back(w.value);
    }
  }

  // Forgets the label.
  void end() {
    for (const int32_t row : rows_) {
      for (int64_t e = x_.offsets[row]; e < x_.offsets[row + 1]; ++e) w_[x_.ids[e]] = 0;
    }
  }

  float bias() const { return bias_ * BIAS; }
  std::vector<int32_t>& rows() { return rows_; }

 private:
  struct Weight {
    int32_t feature;
    float value;
  };

  float score(int32_t row) const {
    const float* const w = w_.data();
    float sums[4] = {};  // additions that don't wait for each other
    int64_t e = x_.offsets[row];
    const int64_t end = x_.offsets[row + 1];
    for (; e + 4 <= end; e += 4) {
      for (int j = 0; j < 4; ++j) sums[j] += w[x_.ids[e + j]] * x_.values[e + j];
    }
    for (; e < end; ++e) sums[0] += w[x_.ids[e]] * x_.values[e];
    return (sums[0] + sums[1]) + (sums[2] + sums[3]) + bias_ * BIAS;
  }

  void add(int32_t row, float step) {
    bias_ += step * BIAS;
    float* const w = w_.data();
    for (int64_t e = x_.offsets[row]; e < x_.offsets[row + 1]; ++e) w[x_.ids[e]] += step * x_.values[e];
  }

  const Csr& x_;
  const float* square_;  // by row
  const LinearOptions& options_;
  std::vector<float> w_;        // (features); 0 between labels
  std::vector<int32_t> rows_;   // of the label
  std::vector<float> alpha_;    // by row of the label: its dual variable
  std::vector<int32_t> order_;  // in which rows are visited
  std::vector<Weight> kept_;
  size_t positives_ = 0;
  float bias_ = 0;
};
}  // namespace

std::vector<LinearWeights> train_linear(const Csr& x, const double* norms, size_t features, const Csr& positive,
                                        const Csr& negative, const int32_t* numbers, const LinearOptions& options) {
  const size_t labels = positive.rows, costs = options.costs.size();
  struct Piece {
    std::vector<int32_t> feature;
    std::vector<float> weight;
  };
  std::vector<std::vector<Piece>> found(costs, std::vector<Piece>(labels));
  std::vector<LinearWeights> results(costs);
  for (LinearWeights& result : results) result.bias.assign(labels, -1.0f);
  const int parts = threads();
  const Rows all(x, norms);
  std::vector<Solver> solvers(parts, Solver(all, features, options));
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
      solver.rows().assign(positive.begin(label), positive.end(label));
      solver.rows().insert(solver.rows().end(), negative.begin(label), negative.end(label));
      solver.begin(positives);
      for (size_t c = 0; c < costs; ++c) {
        solver.train(options.costs[c], mix(numbers[label], c));
        solver.list(found[c][label].feature, found[c][label].weight);
        results[c].bias[label] = solver.bias();
      }
      solver.end();
    }
  });
  for (size_t c = 0; c < costs; ++c) {
    LinearWeights& result = results[c];
    result.begin.assign(labels + 1, 0);
    for (size_t label = 0; label < labels; ++label) {
      result.begin[label + 1] = result.begin[label] + static_cast<int64_t>(found[c][label].feature.size());
    }
    result.feature.resize(result.begin[labels]);
    result.weight.resize(result.begin[labels]);
    parallel_each(labels, [&](size_t label) {
      const Piece& piece = found[c][label];
      std::copy(piece.feature.begin(), piece.feature.end(), result.feature.begin() + result.begin[label]);
      std::copy(piece.weight.begin(), piece.weight.end(), result.weight.begin() + result.begin[label]);
    });
  }
  return results;
}

void linear_scores(const Csr& weights, const float* bias, size_t features, const Csr& x, const double* norms,
                   const int32_t* labels, size_t count, float* scores) {
  parallel_for(x.rows, [&](size_t begin, size_t end, int) {
    std::vector<float> dense(features, 0.0f);  // of one row; 0 between rows
    for (size_t i = begin; i < end; ++i) {
      for (int64_t e = x.offsets[i]; e < x.offsets[i + 1]; ++e) {
        dense[x.ids[e]] = static_cast<float>(x.values[e] / norms[i]);
      }
      for (size_t j = i * count; j < (i + 1) * count; ++j) {
        const int32_t label = labels[j];
        scores[j] = label < 0 ? 0.0f : bias[label];
        if (label < 0) continue;
        float sum = 0;
        for (int64_t e = weights.offsets[label]; e < weights.offsets[label + 1]; ++e) {
          sum += weights.values[e] * dense[weights.ids[e]];
        }
        scores[j] += sum;
      }
      for (int64_t e = x.offsets[i]; e < x.offsets[i + 1]; ++e) dense[x.ids[e]] = 0;
    }
  });
}
}  // namespace dslide
