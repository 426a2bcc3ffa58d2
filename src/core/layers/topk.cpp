// Prediction. The exact one goes over all neurons block by block and never holds more logits than a block's.
#include <algorithm>
#include <limits>

#include "layers/block.hpp"
#include "layers/dense_layer.hpp"
#include "runtime/thread_pool.hpp"

namespace dslide {
namespace {

constexpr size_t ROWS = 96;     // at a time
constexpr size_t PREFETCH = 8;  // how many candidates ahead weights are asked for

struct Candidate {
  float score;
  int32_t id;
  // Better first; ties to the lower number.
  bool operator<(const Candidate& other) const {
    return score > other.score || (score == other.score && id < other.id);
  }
};

// The k best so far, as a heap with the worst on top.
class Best {
 public:
  void offer(Candidate c, size_t k) {
    if (c.score != c.score) c.score = -std::numeric_limits<float>::infinity();  // NaN would have no place in an order
    if (heap_.size() < k) {
      heap_.push_back(c);
      std::push_heap(heap_.begin(), heap_.end());
    } else if (k > 0 && c < heap_.front()) {
      std::pop_heap(heap_.begin(), heap_.end());
      heap_.back() = c;
      std::push_heap(heap_.begin(), heap_.end());
    }
  }
  // What a new score must reach to have a chance.
  float bar(size_t k) const {
    return heap_.size() < k || k == 0 ? -std::numeric_limits<float>::infinity() : heap_.front().score;
  }
  const std::vector<Candidate>& all() const { return heap_; }
  void clear() { heap_.clear(); }

 private:
  std::vector<Candidate> heap_;
};

// A walk along a row's neurons that are left out, while the others are offered in ascending order.
struct LeftOut {
  const int32_t *next, *end;
  bool has(size_t neuron) {
    while (next != end && static_cast<size_t>(*next) < neuron) ++next;
    return next != end && static_cast<size_t>(*next) == neuron;
  }
};

// Best first into one row of the results.
void write_row(std::vector<Candidate>& candidates, size_t k, int32_t* ids, float* scores) {
  std::sort(candidates.begin(), candidates.end());
  for (size_t j = 0; j < k; ++j) {
    const bool there = j < candidates.size();
    ids[j] = there ? candidates[j].id : -1;
    scores[j] = there ? candidates[j].score : -std::numeric_limits<float>::infinity();
  }
}

}  // namespace

void DenseLayer::topk(const float* x, size_t rows, size_t k, const Lists& left_out, const Added& added, int32_t* ids,
                      float* scores) const {
  const Kernels& kernel = kernels();
  const size_t inputs = weights_.stride, ld = spread(inputs);
  const auto parts = static_cast<size_t>(threads());
  AlignedFloats batch;
  spread_rows(x, {0, rows}, batch);
  std::vector<Best> best(parts * rows);
  const AddedByBlock added_by_block(added, {0, rows}, block_count(weights_.rows));
  run_parts(
      weights_.rows,
      [&](size_t begin, size_t end, int thread) {
        AlignedFloats packed(inputs * PACKED), logits(ROWS * BLOCK), room(weights_.room(BLOCK));
        Best* mine = &best[static_cast<size_t>(thread) * rows];
        std::vector<LeftOut> gone;  // by row, if any are left out
        if (left_out.offsets) {
          for (size_t i = 0; i < rows; ++i) {
            const auto first = std::lower_bound(left_out.begin(i), left_out.end(i), static_cast<int32_t>(begin));
            gone.push_back({first, left_out.end(i)});
          }
        }
        for (size_t first = begin; first < end; first += BLOCK) {
          const size_t count = std::min(BLOCK, end - first);
          const float* block_rows[BLOCK];
          for (size_t c = 0; c < count; ++c) {
            block_rows[c] = weights_.row(first + c, room.data() + weights_.room(c));
          }
          kernel.pack(block_rows, count, BLOCK, inputs, packed.data(), PACKED);
          float bias[BLOCK];
          for (size_t c = 0; c < count; ++c) bias[c] = bias_.at(first + c, 0);
          size_t next = added_by_block.first(first / BLOCK, 0);
          for (size_t r = 0; r < rows; r += ROWS) {
            const size_t chunk = std::min(ROWS, rows - r);
            kernel.gemm(chunk, BLOCK, inputs, &batch[r * ld], ld, 1, packed.data(), PACKED, logits.data(), BLOCK, false,
                        nullptr);
            added_by_block.add(first / BLOCK, r, chunk, logits.data(), BLOCK, 1, next);
            for (size_t i = 0; i < chunk; ++i) {
              const float* z = &logits[i * BLOCK];
              Best& row_best = mine[r + i];
              if (kernel.shifted_max(z, bias, count) < row_best.bar(k)) continue;
              for (size_t c = 0; c < count; ++c) {
                if (!gone.empty() && gone[r + i].has(first + c)) continue;
                row_best.offer({z[c] + bias[c], static_cast<int32_t>(first + c)}, k);
              }
            }
          }
        }
      },
      BLOCK, static_cast<int>(parts));
  run_parts(rows, [&](size_t begin, size_t end, int) {
    std::vector<Candidate> all;
    for (size_t i = begin; i < end; ++i) {
      all.clear();
      for (size_t t = 0; t < parts; ++t) {
        const auto& part = best[t * rows + i].all();
        all.insert(all.end(), part.begin(), part.end());
      }
      write_row(all, k, ids + i * k, scores + i * k);
    }
  });
}

void DenseLayer::topk_of_lists(const float* x, size_t rows, const Lists& lists, size_t k, const Added& added,
                               int32_t* ids, float* scores) const {
  const Kernels& kernel = kernels();
  const size_t inputs = weights_.stride;
  run_parts(rows, [&](size_t begin, size_t end, int) {
    Best best;
    std::vector<Candidate> all;
    AlignedFloats room(weights_.room(1));
    std::vector<float> more(added.begin.empty() ? 0 : weights_.rows, 0.0f);  // what is added, of the row at hand
    const auto set_more = [&](size_t row, bool on) {
      for (int64_t e = added.begin[row]; e < added.begin[row + 1]; ++e) {
        const auto at = static_cast<size_t>(e);
        more[static_cast<size_t>(added.position[at])] = on ? added.value[at] : 0.0f;
      }
    };
    for (size_t i = begin; i < end; ++i) {
      best.clear();
      if (!more.empty()) set_more(i, true);
      for (const int32_t* id = lists.begin(i); id != lists.end(i); ++id) {
        if (id + PREFETCH < lists.end(i)) {
          __builtin_prefetch(weights_.value_of(static_cast<size_t>(id[PREFETCH])).data);
        }
        const auto neuron = static_cast<size_t>(*id);
        const float* w = weights_.row(neuron, room.data());
        const float extra = more.empty() ? 0.0f : more[neuron];
        best.offer({kernel.dot(x + i * inputs, w, inputs) + bias_.at(neuron, 0) + extra, *id}, k);
      }
      if (!more.empty()) set_more(i, false);
      all = best.all();
      write_row(all, k, ids + i * k, scores + i * k);
    }
  });
}

}  // namespace dslide
