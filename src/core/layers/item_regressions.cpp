#include "layers/item_regressions.hpp"
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>
#include "kernels/kernels.hpp"
#include "layers/built_rows.hpp"
#include "runtime/rng.hpp"
#include "runtime/thread_pool.hpp"

namespace dslide {
namespace {
constexpr size_t ITEMS = 16;  // per task

// The data that all items share.
struct Interactions {
  Interactions(const Csr& of_users, size_t items)
      : users(of_users), weight(users.rows), begin(items + 1, 0), user(users.nnz()), square(items, 0.0f) {
    for (size_t e = 0; e < user.size(); ++e) ++begin[users.ids[e] + 1];
    std::partial_sum(begin.begin(), begin.end(), begin.begin());
    std::vector<int64_t> next(begin.begin(), begin.end() - 1);
    for (size_t u = 0; u < users.rows; ++u) {
      weight[u] = 1 / std::sqrt(static_cast<float>(users.offsets[u + 1] - users.offsets[u]));
      for (int64_t e = users.offsets[u]; e < users.offsets[u + 1]; ++e) {
        user[next[users.ids[e]]++] = static_cast<int32_t>(u);
        square[users.ids[e]] += weight[u];
      }
    }
  }

  const Csr& users;
  std::vector<float> weight;   // by user
  std::vector<int64_t> begin;  // (items + 1)
  std::vector<int32_t> user;   // users of item i: begin[i] .. begin[i + 1], ascending
  std::vector<float> square;   // by item: sum of its users' weights
};

// Solves one regression at a time; one per thread.
class Solver {
 public:
  Solver(const Interactions& data, const RegressionOptions& options)
      : data_(data),
        options_(options),
        ridge_(0.5f / options.cost),
        sum_(data.square.size(), 0.0f),
        last_(data.users.rows, -1) {}

  void solve(int32_t item, BuiltRows& out) {
    choose(item);
    const size_t n = chosen_.size();
    chosen_.push_back(item);  // its products with the others are the last row of the matrix
    multiply();
    solve_triangular(n);
    for (size_t i = 0; i < n; ++i) out.add(chosen_[i], solution_[i]);
    out.counts.push_back(static_cast<int64_t>(n));
  }

 private:
  struct Entry {
    int32_t position;  // in chosen_
    int32_t before;    // entry of the same user; -1: none
  };

  // Chooses the other items that would each reduce the error most alone, ascending; ties to the lower.
  void choose(int32_t item) {
    chosen_.clear();
    for (int64_t k = data_.begin[item]; k < data_.begin[item + 1]; ++k) {
      const int32_t u = data_.user[k];
      for (const int32_t* other = data_.users.begin(u); other != data_.users.end(u); ++other) {
        if (sum_[*other] == 0) chosen_.push_back(*other);
        sum_[*other] += data_.weight[u];
      }
    }
    std::erase(chosen_, item);
    sum_[item] = 0;
    for (const int32_t i : chosen_) sum_[i] *= sum_[i] / (data_.square[i] + ridge_);
    if (chosen_.size() > options_.items) {
      std::nth_element(chosen_.begin(), chosen_.begin() + static_cast<int64_t>(options_.items), chosen_.end(),
                       [&](int32_t a, int32_t b) { return sum_[a] > sum_[b] || (sum_[a] == sum_[b] && a < b); });
    }
    for (const int32_t i : chosen_) sum_[i] = 0;
    chosen_.resize(std::min(chosen_.size(), options_.items));
    std::sort(chosen_.begin(), chosen_.end());
  }

  // The lower triangle of the weighted products of chosen items.
  void multiply() {
    const size_t n = chosen_.size();
    matrix_.assign(n * n, 0.0f);
    size_t all = 0;
    for (const int32_t i : chosen_) all += data_.begin[i + 1] - data_.begin[i];
    const float share = std::min(1.0f, static_cast<float>(options_.entries) / static_cast<float>(all));
    entries_.clear();
    found_.clear();
    for (size_t p = 0; p < n; ++p) {
      for (int64_t k = data_.begin[chosen_[p]]; k < data_.begin[chosen_[p] + 1]; ++k) {
        const int32_t u = data_.user[k];
        if (share < 1 && unit_float(mix(u)) >= share) continue;
        if (last_[u] < 0) found_.push_back(u);
        entries_.push_back({static_cast<int32_t>(p), last_[u]});
        last_[u] = static_cast<int32_t>(entries_.size()) - 1;
      }
    }
    for (const int32_t u : found_) {
      const float weight = data_.weight[u] / share;
      positions_.clear();  // descending
      for (int32_t e = last_[u]; e >= 0; e = entries_[e].before) positions_.push_back(entries_[e].position);
      last_[u] = -1;
      for (size_t a = 0; a < positions_.size(); ++a) {
        float* const row = &matrix_[positions_[a] * n];
        for (size_t b = a; b < positions_.size(); ++b) row[positions_[b]] += weight;
      }
    }
  }

  // Cholesky: the matrix of the first n plus the ridge becomes its triangular factor, and the last row the solution of
  // the lower triangular system. Then the upper one is solved.
  void solve_triangular(size_t n) {
    const auto dot = kernels().dot;
    const size_t width = n + 1;
    for (size_t a = 0; a < width; ++a) {
      float* const row = &matrix_[a * width];
      for (size_t b = 0; b < std::min(a, n); ++b) {
        const float* const other = &matrix_[b * width];
        row[b] = (row[b] - dot(row, other, b)) / other[b];
      }
      // the ridge is below no pivot, but for rounding
      if (a < n) row[a] = std::sqrt(std::max(row[a] + ridge_ - dot(row, row, a), 0.5f * ridge_));
    }
    solution_.assign(&matrix_[n * width], &matrix_[n * width] + n);
    for (size_t a = n; a-- > 0;) {
      const float* const row = &matrix_[a * width];
      solution_[a] /= row[a];
      kernels().axpy(-solution_[a], row, solution_.data(), a);
    }
  }

  const Interactions& data_;
  const RegressionOptions& options_;
  float ridge_;
  std::vector<float> sum_;       // by item; 0 between calls
  std::vector<int32_t> last_;    // by user: the last of its entries; -1 between calls
  std::vector<int32_t> chosen_;  // items
  std::vector<Entry> entries_;
  std::vector<int32_t> found_;      // users with entries
  std::vector<int32_t> positions_;  // of one user
  std::vector<float> matrix_;       // (chosen x chosen)
  std::vector<float> solution_;
};
}  // namespace

LinearWeights regress_items(const Csr& users, size_t items, const int32_t* numbers, size_t count,
                            const RegressionOptions& options) {
  const Interactions data(users, items);
  const int parts = threads();
  std::vector<Solver> solvers(parts, Solver(data, options));
  const size_t tasks = (count + ITEMS - 1) / ITEMS;
  std::vector<BuiltRows> found(tasks);
  parallel_for_dynamic(tasks, 1, parts, [&](size_t first, size_t last, int thread) {
    for (size_t task = first; task < last; ++task) {
      for (size_t k = task * ITEMS; k < std::min((task + 1) * ITEMS, count); ++k) {
        solvers[thread].solve(numbers[k], found[task]);
      }
    }
  });
  LinearWeights result;
  concatenate(found, result.begin, result.feature, result.weight);
  result.bias.assign(count, 0.0f);
  return result;
}
}  // namespace dslide
