// Softmax over the active neurons of a dense layer, and its gradients.
//
// Exponentials of logits are stored neuron-major, a row of the batch per column: so neither product of the forward pass
// needs a transposed block, and the batch is transposed once. The forward pass also sums exponentials times weights:
// the gradients of the inputs, up to a factor per row and the labels' part. So one product is left for the step:
// exponentials times scaled inputs. No exponential is computed twice, and gradients of logits are never stored.
//
// Exponentials are relative to a reference per row, a logit that seldom changes between a thread's blocks; the
// references are kept with every block.
//
// Operands are floats or bf16 pairs, which some CPUs multiply twice as fast. With pairs the memory layout differs, and
// exponentials are rounded after the forward pass's sums.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include "layers/block.hpp"
#include "layers/dense_layer.hpp"
#include "layers/softmax_layout.hpp"

namespace dslide {
size_t DenseLayer::kept_size(const ActiveSet& active) {
  return block_count(active.ids.size()) * kept_block<float>(active.rows);  // pairs take less space
}

// The weights of a block as floats: (count x inputs), padded leading dimension.
void DenseLayer::gather(const ActiveSet& active, size_t first, size_t count, AlignedFloats& gathered) const {
  const size_t inputs = weights_.stride, ld = padded_stride(inputs);
  gathered.resize(ld * BLOCK);
  for (size_t c = 0; c < count; ++c) {
    float* row = &gathered[c * ld];
    const float* stored = weights_.row(active.ids[first + c], row);
    if (stored != row) std::memcpy(row, stored, inputs * sizeof(float));
  }
}

// The algorithm for floats or bf16 pairs.
template <class Number> struct DenseLayer::Softmax {
  DenseLayer& layer;
  size_t inputs = layer.weights_.stride, ld = padded_stride(inputs), inner = numbers_for<Number>(inputs),
         ld_left = padded_stride(inner);

  static Operands<Number>& operands(Scratch& s) { return std::get<Operands<Number>>(s.operands); }
  Aligned<Number>& transposed() const { return std::get<Aligned<Number>>(layer.transposed_); }
  static const Number* exponentials_in(const float* block, size_t row) {
    return reinterpret_cast<const Number*>(block + kept_at<Number>(row));
  }

  // The transposed batch, by chunk: (inputs x rows), zero columns up to the next multiple of LANES.
  void transpose_rows(const float* x, size_t rows, Range range) const {
    transposed().resize(std::max(transposed().size(), chunk_at(rows + CHUNK - 1, inner)));
    parallel_for(range.size(), CHUNK, threads(), [&](size_t begin, size_t end, int) {
      Aligned<Bf16Pair> rounded(IS_FLOAT<Number> ? 0 : CHUNK * inner);
      each_chunk({range.begin + begin, range.begin + end}, [&](const Chunk& chunk) {
        const float* row[CHUNK];
        for (size_t i = 0; i < chunk.rows(); ++i) {
          row[i] = x + (chunk.begin + i) * inputs;
          if constexpr (!IS_FLOAT<Number>) {
            kernels().pair_neighbours(row[i], inputs, &rounded[i * inner]);
            row[i] = reinterpret_cast<const float*>(&rounded[i * inner]);  // a pair is moved like a float
          }
        }
        float* const out = reinterpret_cast<float*>(&transposed()[chunk_at(chunk.begin, inner)]);
        kernels().pack(row, chunk.rows(), chunk.width(), inner, out, chunk.ld());
      });
    });
  }

  // Gathers the weights of a block as left operand; with `both`, as right operand too.
  void gather(const ActiveSet& active, size_t first, size_t count, bool both, Scratch& s) const {
    Operands<Number>& o = operands(s);
    if constexpr (IS_FLOAT<Number>) {
      layer.gather(active, first, count, o.left);
    } else {
      layer.gather(active, first, count, s.gathered);
      o.left.resize(ld_left * BLOCK);
      for (size_t c = 0; c < count; ++c) kernels().pair_neighbours(&s.gathered[c * ld], inputs, &o.left[c * ld_left]);
      if (!both) return;
      o.right.resize(ld * BLOCK / 2);
      pair_rows(s.gathered.data(), count, inputs, ld, o.right.data(), ld);
    }
  }

  // Where a chunk's logits are computed: where they are kept, or for pairs a float buffer that is rounded later.
  float* logits_at(float* block, const Chunk& chunk, Scratch& s) const {
    if constexpr (IS_FLOAT<Number>) {
      return block + kept_at<Number>(chunk.begin);
    } else {
      s.logits.resize(std::max(s.logits.size(), BLOCK * padded_stride(CHUNK)));
      return s.logits.data();
    }
  }
  void compute_logits(size_t count, const Chunk& chunk, Scratch& s, float* z, PrefetchQueue* queue) const {
    multiply(count, chunk.width(), inputs, operands(s).left.data(), ld_left, 1,
             &transposed()[chunk_at(chunk.begin, inner)], chunk.ld(), z, chunk.ld(), false, queue);
  }
  // Stores a chunk's exponentials in their block, unless they were computed there.
  void keep(size_t count, const Chunk& chunk, const float* z, float* block) const {
    if constexpr (!IS_FLOAT<Number>) {
      auto* const out = reinterpret_cast<Number*>(block + kept_at<Number>(chunk.begin));
      for (size_t c = 0; c < count; ++c) {
        kernels().pair_neighbours(z + c * chunk.ld(), chunk.width(), out + c * chunk.ld_kept<Number>());
      }
    }
  }
  // dx (rows x inputs) = or += exponentials times weights
  void add_weights(size_t count, const Chunk& chunk, const float* z, Scratch& s, float* dx, bool accumulate,
                   PrefetchQueue* queue) const {
    Operands<Number>& o = operands(s);
    if constexpr (IS_FLOAT<Number>) {
      multiply(chunk.rows(), inputs, count, z, 1, chunk.ld(), o.left.data(), ld, dx, ld, accumulate, queue);
    } else {
      o.exponentials.resize(BLOCK / 2 * padded_stride(CHUNK));
      pair_rows(z, count, chunk.width(), chunk.ld(), o.exponentials.data(), chunk.ld());
      multiply(chunk.rows(), inputs, count, o.exponentials.data(), 1, chunk.ld(), o.right.data(), ld, dx, ld,
               accumulate, queue);
    }
  }

  void forward(const float* x, const ActiveSet& active, Range range, FoundLabels* labels, const SoftmaxSums& sums,
               float* kept) const {
    const size_t rows = active.rows;
    const int parts = threads();
    transpose_rows(x, rows, range);
    const PriorByBlock prior(active.prior, range, block_count(active.ids.size()));
    layer.scratch_.resize(parts);
    parallel_for(active.ids.size(), BLOCK, parts, [&](size_t begin, size_t end, int thread) {
      Scratch& s = layer.scratch_[thread];
      s.reference.assign(rows + LANES, -std::numeric_limits<float>::infinity());
      s.sum.assign(rows + LANES, 0.0f);
      if (!kept) s.recomputed.resize(kept_block<Number>(rows));
      if (sums.mean) s.dx.resize(range.size() * ld);
      for (size_t first = begin; first < end; first += BLOCK) {
        const size_t count = std::min(BLOCK, end - first), block = first / BLOCK;
        const BlockTerms terms(active, layer.bias_, first, count);
        float* const block_kept = kept ? kept + block * kept_block<Number>(rows) : s.recomputed.data();
        gather(active, first, count, sums.mean, s);
        PrefetchQueue queue =
            layer.prefetch_queue(active, {}, {first + count, std::min(first + count + BLOCK, end)}, s.ranges);
        size_t next = prior.first(block, range.begin);
        each_chunk(range, [&](const Chunk& chunk) {
          const size_t r = chunk.begin, ldz = chunk.ld();
          float* const z = logits_at(block_kept, chunk, s);
          compute_logits(count, chunk, s, z, &queue);
          prior.add(block, r, chunk.rows(), z, 1, ldz, next);
          if (labels) labels->store_logits(block, {r, chunk.end}, z, ldz, terms.bias);
          float before[CHUNK];
          std::copy_n(&s.reference[r], chunk.rows(), before);
          const bool raised =
              kernels().exponentials(count, chunk.width(), z, ldz, terms.shift, &s.reference[r], &s.sum[r]);
          if (kept) keep(count, chunk, z, block_kept);
          if (!sums.mean) return;
          float* const dx = &s.dx[(r - range.begin) * ld];
          for (size_t i = 0; raised && first > begin && i < chunk.rows(); ++i) {  // rescale the sums so far
            if (s.reference[r + i] == before[i]) continue;
            const float factor = std::exp(before[i] - s.reference[r + i]);
            for (size_t j = 0; j < inputs; ++j) dx[i * ld + j] *= factor;
          }
          add_weights(count, chunk, z, s, dx, first > begin, &queue);
        });
        std::copy(&s.reference[range.begin], &s.reference[range.end],
                  block_kept + references_at<Number>(rows) + range.begin);
      }
    });
    layer.join_sums(active, range, sums, parts);
  }

  // Recomputes a block's exponentials, relative to the normaliser, that were not kept: (count x rows).
  const float* recompute_exponentials(const ActiveSet& active, const PriorByBlock& prior, size_t first, size_t count,
                                      const float* log_norm, Scratch& s) const {
    const size_t rows = active.rows;
    const BlockTerms terms(active, layer.bias_, first, count);
    s.recomputed.assign(kept_block<Number>(rows), 0.0f);
    s.unused_sum.assign(whole_vectors(rows), 0.0f);
    float* const reference = s.recomputed.data() + references_at<Number>(rows);
    std::copy_n(log_norm, rows, reference);
    gather(active, first, count, false, s);
    size_t next = prior.first(first / BLOCK, 0);
    each_chunk({0, rows}, [&](const Chunk& chunk) {
      float* const z = logits_at(s.recomputed.data(), chunk, s);
      compute_logits(count, chunk, s, z, nullptr);
      prior.add(first / BLOCK, chunk.begin, chunk.rows(), z, 1, chunk.ld(), next);
      kernels().exponentials(count, chunk.width(), z, chunk.ld(), terms.shift, reference + chunk.begin,
                             &s.unused_sum[chunk.begin]);
      keep(count, chunk, z, s.recomputed.data());
    });
    return s.recomputed.data();
  }

  // Computes the factors that turn exponentials relative to `reference` (rows) into gradients of logits, and the inputs
  // times these factors. Does nothing if they are up to date.
  void scale_rows(const float* x, size_t rows, const float* reference, const float* log_norm, float scale,
                  Scratch& s) const {
    if (std::memcmp(reference, s.reference.data(), rows * sizeof(float)) == 0) return;
    std::copy_n(reference, rows, s.reference.data());
    Operands<Number>& o = operands(s);
    o.scaled.resize(numbers_for<Number>(rows) * ld);
    o.factor.resize(numbers_for<Number>(rows));
    float factor[CHUNK];
    each_chunk({0, rows}, [&](const Chunk& chunk) {
      float* const out = scaled_rows(chunk, s);
      for (size_t i = 0; i < chunk.rows(); ++i) {
        const size_t row = chunk.begin + i;
        factor[i] = scale * std::exp(reference[row] - log_norm[row]);
        for (size_t j = 0; j < inputs; ++j) out[i * ld + j] = factor[i] * x[row * inputs + j];
      }
      if constexpr (IS_FLOAT<Number>) {
        std::copy_n(factor, chunk.rows(), &o.factor[chunk.begin]);
      } else {
        kernels().pair_neighbours(factor, chunk.rows(), &o.factor[chunk.begin / 2]);
        pair_rows(out, chunk.rows(), inputs, ld, &o.scaled[chunk.begin / 2 * ld], ld);
      }
    });
  }
  // Where a chunk's scaled inputs are computed: in place, or for pairs a float buffer that is rounded later.
  float* scaled_rows(const Chunk& chunk, Scratch& s) const {
    if constexpr (IS_FLOAT<Number>) {
      return &operands(s).scaled[chunk.begin * ld];
    } else {
      s.dx.resize(std::max(s.dx.size(), CHUNK * ld));
      return s.dx.data();
    }
  }

  bool step(const float* x, ActiveSet& active, const FoundLabels& labels, const float* log_norm, float scale,
            const float* kept, const Optimizer& optimizer) const {
    const size_t rows = active.rows;
    const PriorLogits none;
    std::vector<float>& prior_gradient = active.prior.gradient;
    const bool use_prior = !kept || !prior_gradient.empty();
    const PriorByBlock prior(use_prior ? active.prior : none, {0, rows}, block_count(active.ids.size()));
    if (!kept) transpose_rows(x, rows, {0, rows});
    const int parts = threads();
    layer.scratch_.resize(parts);
    std::atomic<bool> finite = true;
    for (Scratch& s : layer.scratch_) s.reference.assign(rows, -std::numeric_limits<float>::infinity());
    parallel_for_dynamic(active.ids.size(), BLOCK, parts, [&](size_t first, size_t end, int thread) {
      Scratch& s = layer.scratch_[thread];
      const Operands<Number>& o = operands(s);
      const size_t count = end - first, block = first / BLOCK;
      const float* const e = kept ? kept + block * kept_block<Number>(rows)
                                  : recompute_exponentials(active, prior, first, count, log_norm, s);
      scale_rows(x, rows, e + references_at<Number>(rows), log_norm, scale, s);
      layer.prefetch_queue(active, {first, end}, {first, end}, s.ranges);
      if (kept && block > 0) add_exponentials<Number>(e - kept_block<Number>(rows), rows, s.ranges);  // needed next
      PrefetchQueue queue{s.ranges.data(), s.ranges.data() + s.ranges.size()};
      s.gradient.resize(ld * BLOCK);
      float bias_gradient[BLOCK] = {};
      each_chunk({0, rows}, [&](const Chunk& chunk) {
        const Number* const here = exponentials_in(e, chunk.begin);
        const size_t lde = chunk.ld_kept<Number>(), at = numbers_for<Number>(chunk.begin);
        multiply(count, inputs, chunk.rows(), here, lde, 1, &o.scaled[at * ld], ld, s.gradient.data(), ld,
                 chunk.begin > 0, &queue);
        for (size_t c = 0; c < count; ++c) bias_gradient[c] += dot(here + c * lde, &o.factor[at], chunk.rows());
        if (prior_gradient.empty()) return;
        prior.each(block, chunk.begin, chunk.rows(), [&](const Entry& entry) {
          const size_t i = entry.row - chunk.begin;
          prior_gradient[entry.element] = number_at(here + entry.column * lde, i) * number_at(&o.factor[at], i);
        });
      });
      for (const Entry* l = labels.begin(block, 0); l != labels.end(block); ++l) {
        const float gradient = -scale * labels.target(l->element);
        if (!prior_gradient.empty()) {
          prior.each(block, l->row, 1, [&](const Entry& entry) {
            if (entry.column == l->column) prior_gradient[entry.element] += gradient;
          });
        }
        bias_gradient[l->column] += gradient;
        kernels().axpy(gradient, x + l->row * inputs, &s.gradient[l->column * ld], inputs);
      }
      if (!layer.step_block(active, first, count, s.gradient.data(), bias_gradient, optimizer)) finite = false;
    });
    return finite;
  }
};

void DenseLayer::softmax_forward(const float* x, const ActiveSet& active, Range rows, FoundLabels* labels,
                                 const SoftmaxSums& sums, float* kept) {
  if (bf16_products_) return Softmax<Bf16Pair>{*this}.forward(x, active, rows, labels, sums, kept);
  Softmax<float>{*this}.forward(x, active, rows, labels, sums, kept);
}

bool DenseLayer::softmax_step(const float* x, ActiveSet& active, const FoundLabels& labels, const float* log_norm,
                              float scale, const float* kept, const Optimizer& optimizer) {
  if (bf16_products_) {
    return Softmax<Bf16Pair>{*this}.step(x, active, labels, log_norm, scale, kept, optimizer);
  }
  return Softmax<float>{*this}.step(x, active, labels, log_norm, scale, kept, optimizer);
}

// Combines the sums of all threads, rescaled to one reference per row.
void DenseLayer::join_sums(const ActiveSet& active, Range range, const SoftmaxSums& sums, int parts) const {
  const size_t inputs = weights_.stride, ld = padded_stride(inputs);
  parallel_each(range.size(), [&](size_t row) {
    const size_t i = range.begin + row;
    float reference = -std::numeric_limits<float>::infinity(), sum = 0;
    float* const mean = sums.mean ? sums.mean + i * inputs : nullptr;
    if (mean) std::fill_n(mean, inputs, 0.0f);
    const auto each_part = [&](const auto& use) {
      for (int t = 0; t < parts; ++t) {
        const Range own = part(active.ids.size(), parts, t, BLOCK);
        if (own.begin < own.end) use(scratch_[t]);
      }
    };
    each_part([&](const Scratch& s) { reference = std::max(reference, s.reference[i]); });
    each_part([&](const Scratch& s) {
      const float factor = std::exp(s.reference[i] - reference);
      sum += factor * s.sum[i];
      if (mean) kernels().axpy(factor, &s.dx[row * ld], mean, inputs);
    });
    sums.reference[i] = reference;
    sums.sum[i] = sum;
  });
}

double DenseLayer::softmax_backward(const ActiveSet& active, Range range, const FoundLabels& labels,
                                    const float* reference, const float* log_norm, float scale, float* dx) const {
  const Kernels& kernel = kernels();
  const size_t inputs = weights_.stride;
  std::vector<double> losses(range.size(), 0.0);  // summed in row order, so the result does not depend on threads
  parallel_for(losses.size(), [&](size_t begin, size_t end, int) {
    AlignedFloats widened(weights_.scratch_floats(1));
    std::vector<CacheLines> next;  // weights of the next row's labels
    const auto each_label = [&](size_t row, const auto& use) {
      const int64_t* const offsets = labels.lists.offsets;
      for (int64_t e = offsets[row]; e < offsets[row + 1]; ++e) {
        if (labels.found[e] >= 0) use(e, active.ids[labels.found[e]]);
      }
    };
    for (size_t i = begin; i < end; ++i) {
      const size_t row = range.begin + i;
      next.clear();
      if (i + 1 < end) each_label(row + 1, [&](int64_t, size_t neuron) { weights_.add_value(neuron, next); });
      for (const CacheLines& range_of : next) prefetch(range_of);
      float* const out = dx ? dx + row * inputs : nullptr;
      const float factor = scale * std::exp(reference[row] - log_norm[row]);
      for (size_t j = 0; out && j < inputs; ++j) out[j] *= factor;
      each_label(row, [&](int64_t e, size_t neuron) {
        losses[i] += softmax_label_loss(labels.lists.values[e], labels.logits[e], log_norm[row]);
        if (!out) return;
        kernel.axpy(-scale * labels.lists.values[e], weights_.row(neuron, widened.data()), out, inputs);
      });
    }
  });
  double loss = 0;
  for (const double row : losses) loss += row;
  return loss;
}
}  // namespace dslide
