// Prediction. The exact top-k visits all neurons block by block and never stores more logits than a block's.
#include <algorithm>
#include <limits>
#include "layers/block.hpp"
#include "layers/dense_layer.hpp"
#include "layers/top_k.hpp"
#include "runtime/thread_pool.hpp"

namespace dslide {
namespace {
constexpr size_t ROWS = 96;              // rows per chunk
constexpr size_t FEW_ROWS = 4;           // as many are multiplied with each neuron's weights as they are stored
constexpr size_t PREFETCH_DISTANCE = 8;  // in candidates
constexpr size_t FEW_CANDIDATES = 2048;  // of all rows: fewer are not worth waking threads for
constexpr size_t FEW_NUMBERS = 1 << 18;  // of weights that few rows are multiplied with: the same

// Iterates over a row's excluded neurons while the others are offered in ascending order.
struct Excluded {
  const int32_t *next, *end;
  bool contains(size_t neuron) {
    while (next != end && static_cast<size_t>(*next) < neuron) ++next;
    return next != end && static_cast<size_t>(*next) == neuron;
  }
};

// The scores of a block's neurons.
class BlockScores {
 public:
  void load(const Calibration& calibration, size_t first, size_t count) {
    saturates_ = calibration.saturates;
    for (size_t c = 0; c < count; ++c) {
      const float* numbers = calibration.numbers + Calibration::NUMBERS * (first + c);
      slope_[c] = numbers[0], offset_[c] = numbers[1], least_[c] = numbers[2];
      knot_[c] = numbers[3], bend_[c] = numbers[4], weight_[c] = numbers[5];
    }
  }
  // Calibrated logits in place of z, which lacks the bias; returns a bound that no score exceeds.
  float apply(float* z, const float* bias, size_t count) const {
    float largest = -std::numeric_limits<float>::infinity();
    for (size_t c = 0; c < count; ++c) {
      z[c] = calibrated(z[c] + bias[c], slope_[c], offset_[c], least_[c], knot_[c], bend_[c]);
      largest = std::max(largest, (saturates_ ? std::min(z[c], 0.0f) : z[c]) + weight_[c]);
    }
    return largest;
  }
  // The score of a calibrated logit that may reach the threshold; a bound on it that does not reach it otherwise.
  float score(float z, size_t c, float threshold) const {
    if (!saturates_) return z + weight_[c];
    const float bound = std::min(z, 0.0f) + weight_[c];
    return bound < threshold ? bound : log_sigmoid(z) + weight_[c];
  }

 private:
  float slope_[BLOCK], offset_[BLOCK], least_[BLOCK], knot_[BLOCK], bend_[BLOCK], weight_[BLOCK];
  bool saturates_ = false;
};

// Dot products of some rows of x, `ld` floats apart, with the weights of `count` neurons: z (rows x BLOCK).
void multiply_few(const Parameters& weights, size_t first, size_t count, const float* x, size_t ld, size_t rows,
                  float* z, float* scratch) {
  for (size_t c = 0; c < count; ++c) {
    if (rows == 1) {
      z[c] = weights.dot(first + c, x, scratch);
      continue;
    }
    const float* w = weights.row(first + c, scratch);
    for (size_t i = 0; i < rows; ++i) z[i * BLOCK + c] = kernels().dot(x + i * ld, w, weights.stride);
  }
}
}  // namespace

void DenseLayer::topk(const float* x, size_t rows, size_t k, const Csr& excluded, const PriorLogits& prior,
                      const Calibration& calibration, int32_t* ids, float* scores) const {
  if (rows == 0) return;
  const Kernels& kernel = kernels();
  const size_t inputs = weights_.stride, ld = padded_stride(inputs);
  const bool few = rows <= FEW_ROWS;  // to pack weights would take longer than to multiply with them
  const size_t parts = few && weights_.rows * inputs < FEW_NUMBERS ? 1 : threads();
  AlignedFloats batch;
  copy_padded(x, {0, rows}, batch);
  std::vector<TopK> best(parts * rows);
  const PriorByBlock prior_by_block(prior, {0, rows}, block_count(weights_.rows));
  parallel_for(weights_.rows, BLOCK, static_cast<int>(parts), [&](size_t begin, size_t end, int thread) {
    AlignedFloats packed(few ? 0 : inputs * PACKED), logits(std::min(rows, ROWS) * BLOCK);
    AlignedFloats widened(weights_.scratch_floats(few ? 1 : BLOCK));
    TopK* mine = &best[thread * rows];
    std::vector<Excluded> skip;  // by row, if there are any
    if (excluded) {
      for (size_t i = 0; i < rows; ++i) {
        const auto first = std::lower_bound(excluded.begin(i), excluded.end(i), static_cast<int32_t>(begin));
        skip.push_back({first, excluded.end(i)});
      }
    }
    for (size_t first = begin; first < end; first += BLOCK) {
      const size_t count = std::min(BLOCK, end - first);
      const float* block_rows[BLOCK];
      for (size_t c = 0; c < count && !few; ++c) {
        block_rows[c] = weights_.row(first + c, widened.data() + weights_.scratch_floats(c));
      }
      if (!few) kernel.pack(block_rows, count, BLOCK, inputs, packed.data(), PACKED);
      float bias[BLOCK];
      for (size_t c = 0; c < count; ++c) bias[c] = bias_.at(first + c, 0);
      BlockScores block_scores;
      if (calibration.numbers) block_scores.load(calibration, first, count);
      size_t next = prior_by_block.first(first / BLOCK, 0);
      for (size_t r = 0; r < rows; r += ROWS) {
        const size_t chunk = std::min(ROWS, rows - r);
        if (few) {
          multiply_few(weights_, first, count, &batch[r * ld], ld, chunk, logits.data(), widened.data());
        } else {
          kernel.gemm(chunk, BLOCK, inputs, &batch[r * ld], ld, 1, packed.data(), PACKED, logits.data(), BLOCK, false,
                      nullptr);
        }
        prior_by_block.add(first / BLOCK, r, chunk, logits.data(), BLOCK, 1, next);
        for (size_t i = 0; i < chunk; ++i) {
          float* z = &logits[i * BLOCK];
          TopK& row_best = mine[r + i];
          const float largest =
              calibration.numbers ? block_scores.apply(z, bias, count) : kernel.shifted_max(z, bias, count);
          if (largest < row_best.threshold(k)) continue;
          for (size_t c = 0; c < count; ++c) {
            if (!skip.empty() && skip[r + i].contains(first + c)) continue;
            const float score =
                calibration.numbers ? block_scores.score(z[c], c, row_best.threshold(k)) : z[c] + bias[c];
            row_best.offer({score, static_cast<int32_t>(first + c)}, k);
          }
        }
      }
    }
  });
  parallel_for(rows, [&](size_t begin, size_t end, int) {
    std::vector<Scored> all;
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

void DenseLayer::topk_of_lists(const float* x, const Csr& candidates, size_t k, const PriorLogits& prior,
                               const Calibration& calibration, int32_t* ids, float* scores) const {
  const size_t inputs = weights_.stride;
  const int parts = candidates.nnz() < FEW_CANDIDATES ? 1 : threads();
  parallel_for(candidates.rows, 1, parts, [&](size_t begin, size_t end, int) {
    TopK best;
    std::vector<Scored> all;
    AlignedFloats widened(weights_.scratch_floats(1));
    for (size_t i = begin; i < end; ++i) {
      best.clear();
      int64_t next = prior.begin.empty() ? 0 : prior.begin[i];
      const int64_t last = prior.begin.empty() ? 0 : prior.begin[i + 1];
      for (const int32_t* id = candidates.begin(i); id != candidates.end(i); ++id) {
        if (id + PREFETCH_DISTANCE < candidates.end(i)) weights_.prefetch_value(id[PREFETCH_DISTANCE]);
        const size_t neuron = *id;
        while (next < last && prior.position[next] < *id) ++next;
        const float extra = next < last && prior.position[next] == *id ? prior.value[next] : 0.0f;
        const float z = weights_.dot(neuron, x + i * inputs, widened.data()) + bias_.at(neuron, 0) + extra;
        best.offer({calibration.score(z, neuron), *id}, k);
      }
      all = best.all();
      write_row(all, k, ids + i * k, scores + i * k);
    }
  });
}
}  // namespace dslide
