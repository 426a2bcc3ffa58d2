#include "layers/label_prior.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "runtime/thread_pool.hpp"

namespace dslide {
namespace {

constexpr int64_t SOON = 8;                            // inputs before its turn that one's links are asked for
constexpr size_t ASKED_FOR = 4;                        // cache lines of them
constexpr size_t LINE = CACHE_LINE / sizeof(int32_t);  // links in a cache line

// Rows by column: those that have column c are row[begin[c]] .. row[begin[c + 1]], ascending.
struct Columns {
  std::vector<int64_t> begin;
  std::vector<int32_t> row;
  std::vector<float> value;  // divided by the row's length; empty for lists without values

  Columns(const Lists& lists, const float* values, const std::vector<double>& lengths, size_t columns)
      : begin(columns + 1, 0), row(static_cast<size_t>(lists.offsets[lengths.size()])), value(values ? row.size() : 0) {
    for (size_t e = 0; e < row.size(); ++e) ++begin[static_cast<size_t>(lists.ids[e]) + 1];
    std::partial_sum(begin.begin(), begin.end(), begin.begin());
    std::vector<int64_t> next(begin.begin(), begin.end() - 1);
    for (size_t i = 0; i < lengths.size(); ++i) {
      for (int64_t e = lists.offsets[i]; e < lists.offsets[i + 1]; ++e) {
        const auto at = static_cast<size_t>(next[static_cast<size_t>(lists.ids[e])]++);
        row[at] = static_cast<int32_t>(i);
        if (values) value[at] = static_cast<float>(values[e] / lengths[i]);
      }
    }
  }
};

// Sums that most numbers have no part in.
struct Sums {
  std::vector<double> sum;
  std::vector<int32_t> touched;  // those with a part, in order of the first
  std::vector<uint8_t> is_touched;

  explicit Sums(size_t n) : sum(n, 0.0), is_touched(n, 0) {}
  void add(int32_t i, double x) {
    const auto at = static_cast<size_t>(i);
    if (!is_touched[at]) {
      is_touched[at] = 1;
      touched.push_back(i);
    }
    sum[at] += x;
  }
  void clear() {
    for (const int32_t i : touched) {
      sum[static_cast<size_t>(i)] = 0;
      is_touched[static_cast<size_t>(i)] = 0;
    }
    touched.clear();
  }
};

// For every label the length of the sum of the rows that have it, to the power -`power`.
std::vector<float> centroid_shares(const SparseBatch& x, const std::vector<double>& lengths, size_t inputs,
                                   const Columns& y, size_t labels, double power) {
  std::vector<float> share(labels, 0.0f);
  run_parts(labels, [&](size_t first, size_t last, int) {
    Sums sums(inputs);
    for (size_t l = first; l < last; ++l) {
      for (int64_t k = y.begin[l]; k < y.begin[l + 1]; ++k) {
        const auto row = static_cast<size_t>(y.row[static_cast<size_t>(k)]);
        for (int64_t e = x.offsets[row]; e < x.offsets[row + 1]; ++e) sums.add(x.ids[e], x.values[e] / lengths[row]);
      }
      double square = 0;
      for (const int32_t i : sums.touched) {
        const double sum = sums.sum[static_cast<size_t>(i)];
        square += sum * sum;
      }
      if (square > 0) share[l] = static_cast<float>(std::pow(square, -power / 2));
      sums.clear();
    }
  });
  return share;
}

}  // namespace

std::vector<double> row_lengths(const int64_t* offsets, const float* values, size_t rows) {
  std::vector<double> lengths(rows);
  run_parts(rows, [&](size_t first, size_t last, int) {
    for (size_t i = first; i < last; ++i) {
      double square = 0;
      for (int64_t e = offsets[i]; e < offsets[i + 1]; ++e) square += double{values[e]} * values[e];
      lengths[i] = square > 0 ? std::sqrt(square) : 1.0;
    }
  });
  return lengths;
}

LinkLists count_links(const SparseBatch& x, size_t inputs, const Lists& y, size_t labels, size_t rows, size_t most,
                      double power, bool skip_same, Stripe own) {
  const std::vector<double> lengths = row_lengths(x.offsets, x.values, rows);
  const std::vector<float> share =
      centroid_shares(x, lengths, inputs, Columns(y, nullptr, lengths, labels), labels, power);
  const Columns by_input({x.offsets, x.ids}, x.values, lengths, inputs);
  struct Part {
    std::vector<int64_t> count;
    std::vector<int32_t> label;
    std::vector<float> weight;
  };
  const int parts = threads();
  std::vector<Part> found(static_cast<size_t>(parts));
  run_parts(
      inputs,
      [&](size_t first, size_t last, int thread) {
        Part& part = found[static_cast<size_t>(thread)];
        Sums sums(labels);
        std::vector<std::pair<float, int32_t>> best;  // weight and label
        for (size_t i = first; i < last; ++i) {
          for (int64_t k = by_input.begin[i]; k < by_input.begin[i + 1]; ++k) {
            const int32_t row = by_input.row[static_cast<size_t>(k)];
            const double value = by_input.value[static_cast<size_t>(k)];
            for (int64_t e = y.offsets[row]; e < y.offsets[row + 1]; ++e) sums.add(y.ids[e], value);
          }
          best.clear();
          for (const int32_t l : sums.touched) {
            const auto weight = static_cast<float>(sums.sum[static_cast<size_t>(l)]) * share[static_cast<size_t>(l)];
            if (weight != 0 && !(skip_same && static_cast<size_t>(l) == i)) best.emplace_back(weight, l);
          }
          sums.clear();
          if (best.size() > most) {  // ties to the lower label
            std::nth_element(best.begin(), best.begin() + static_cast<int64_t>(most), best.end(),
                             [](const auto& a, const auto& b) {
                               return a.first > b.first || (a.first == b.first && a.second < b.second);
                             });
            best.resize(most);
          }
          std::sort(best.begin(), best.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
          const size_t before = part.label.size();
          for (const auto& [weight, label] : best) {
            if (!own.has(static_cast<size_t>(label))) continue;
            part.label.push_back(static_cast<int32_t>(static_cast<size_t>(label) / own.step));
            part.weight.push_back(weight);
          }
          part.count.push_back(static_cast<int64_t>(part.label.size() - before));
        }
      },
      1, parts);
  LinkLists links;
  links.begin.reserve(inputs + 1);
  links.begin.push_back(0);
  for (Part& part : found) {
    for (const int64_t count : part.count) links.begin.push_back(links.begin.back() + count);
    links.label.insert(links.label.end(), part.label.begin(), part.label.end());
    links.weight.insert(links.weight.end(), part.weight.begin(), part.weight.end());
    part = {};  // there may be many: none are held twice
  }
  for (size_t l = own.first; l < labels; l += own.step) links.share.push_back(share[l]);
  return links;
}

Links::Links(const int64_t* begin, const int32_t* neuron, const float* weight, size_t inputs, const float* share,
             size_t neurons, float scale)
    : begin_(begin),
      neuron_(neuron),
      weight_(weight),
      inputs_(inputs),
      share_(share),
      neurons_(neurons),
      scale_(scale),
      is_active_(neurons / 64 + 1, 0),
      position_(neurons) {}

void Links::add(const SparseBatch& x, const double* lengths, const Lists& own, float keep, ActiveSet& active) {
  const std::lock_guard<std::mutex> lock(in_use_);
  for (size_t p = 0; p < active.ids.size(); ++p) {
    const auto neuron = static_cast<size_t>(active.ids[p]);
    position_[neuron] = static_cast<int32_t>(p);
    is_active_[neuron / 64] |= uint64_t{1} << neuron % 64;
  }
  // Nearly all links lead to neurons that are not active, far apart: their bits, unlike positions, stay in near caches.
  const auto is_active = [&](size_t neuron) { return (is_active_[neuron / 64] >> neuron % 64 & 1) != 0; };
  struct Part {
    std::vector<int64_t> count;  // by row
    std::vector<int32_t> position;
    std::vector<float> value;
  };
  const int parts = threads();
  std::vector<Part> found(static_cast<size_t>(parts));
  run_parts(
      active.rows,
      [&](size_t first, size_t last, int thread) {
        Part& part = found[static_cast<size_t>(thread)];
        std::vector<float> sum(active.ids.size(), 0.0f);
        std::vector<int64_t> row_of(active.ids.size(), -1);                   // the last row that touched a position
        std::vector<int64_t> owner(own.offsets ? active.ids.size() : 0, -1);  // the last row that has it as a label
        std::vector<int32_t> touched;
        for (size_t i = first; i < last; ++i) {
          const auto row = static_cast<int64_t>(i);
          if (own.offsets) {
            for (const int32_t* l = own.begin(i); l != own.end(i); ++l) {
              const auto neuron = static_cast<size_t>(*l);
              if (is_active(neuron)) owner[static_cast<size_t>(position_[neuron])] = row;
            }
          }
          touched.clear();
          for (int64_t e = x.offsets[i]; e < x.offsets[i + 1]; ++e) {
            if (e + 2 * SOON <
                x.offsets[last]) {  // the links of an input whose turn comes soon, and where those of a later are
              const int32_t* const soon = neuron_ + begin_[x.ids[e + SOON]];
              for (size_t line = 0; line < ASKED_FOR; ++line) __builtin_prefetch(soon + line * LINE, 0, 2);
              __builtin_prefetch(begin_ + x.ids[e + 2 * SOON]);
            }
            const auto unit = static_cast<float>(x.values[e] / lengths[i]);
            const float value = scale_ * unit, itself = keep * unit;
            for (int64_t k = begin_[x.ids[e]]; k < begin_[x.ids[e] + 1]; ++k) {
              const auto neuron = static_cast<size_t>(neuron_[k]);
              if (!is_active(neuron)) continue;
              const auto p = static_cast<size_t>(position_[neuron]);
              if (row_of[p] != row) {
                row_of[p] = row;
                sum[p] = 0;
                touched.push_back(static_cast<int32_t>(p));
              }
              const bool is_own = !owner.empty() && owner[p] == row;
              sum[p] += value * (is_own ? weight_[k] - itself * share_[neuron] : weight_[k]);
            }
          }
          for (const int32_t p : touched) {
            part.position.push_back(p);
            part.value.push_back(sum[static_cast<size_t>(p)]);
          }
          part.count.push_back(static_cast<int64_t>(touched.size()));
        }
      },
      1, parts);
  for (const int32_t id : active.ids) is_active_[static_cast<size_t>(id) / 64] = 0;

  Added& added = active.added;
  added.begin.assign(1, 0);
  added.position.clear();
  added.value.clear();
  for (const Part& part : found) {
    for (const int64_t count : part.count) added.begin.push_back(added.begin.back() + count);
    added.position.insert(added.position.end(), part.position.begin(), part.position.end());
    added.value.insert(added.value.end(), part.value.begin(), part.value.end());
  }
}

}  // namespace dslide
