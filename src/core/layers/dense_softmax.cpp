// Softmax over the active neurons of a layer, and what it learns.
//
// Exponentials of logits are laid out by neuron, a row of the batch in each column: then neither product of the first
// pass needs a block transposed, and the batch is transposed once. The first pass also sums exponentials times weights,
// which are the gradients of the inputs up to a factor for each row, and the labels' share. So the second pass has one
// product left, that of exponentials and inputs times those factors. No exponential is computed twice, and gradients of
// logits are never written out.
//
// Exponentials are relative to a reference for each row, a logit that seldom changes from one block of a thread to its
// next: it is kept with every block.
//
// Products are of floats, or of bf16 in pairs, which some CPUs multiply twice as fast. What is different then is how
// what is multiplied lies in memory, and that exponentials are rounded behind the first pass's sums.
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
  return block_count(active.ids.size()) * kept_block<float>(active.rows);  // pairs take less
}

// The weights of a block as floats: (count x inputs), rows spread.
void DenseLayer::gather(const ActiveSet& active, size_t first, size_t count, AlignedFloats& gathered) const {
  const size_t inputs = weights_.stride, ld = spread(inputs);
  gathered.resize(ld * BLOCK);
  for (size_t c = 0; c < count; ++c) {
    float* row = &gathered[c * ld];
    const float* stored = weights_.row(static_cast<size_t>(active.ids[first + c]), row);
    if (stored != row) std::memcpy(row, stored, inputs * sizeof(float));
  }
}

// What softmax does with floats or with pairs of bf16.
template <class Number>
struct DenseLayer::Softmax {
  DenseLayer& layer;
  size_t inputs = layer.weights_.stride, ld = spread(inputs), inner = numbers_for<Number>(inputs),
         ld_left = spread(inner);

  Operands<Number>& operands(Scratch& s) const {
    if constexpr (IS_FLOAT<Number>) {
      return s.floats;
    } else {
      return s.pairs;
    }
  }
  Aligned<Number>& turned() const {
    if constexpr (IS_FLOAT<Number>) {
      return layer.turned_;
    } else {
      return layer.turned_pairs_;
    }
  }
  static const Number* exponentials_in(const float* block, size_t row) {
    return reinterpret_cast<const Number*>(block + kept_at<Number>(row));
  }

  // The batch, by chunk, transposed: (inputs x rows), columns from the last row to the next multiple of LANES zero.
  void turn_rows(const float* x, size_t rows, Range range) const {
    turned().resize(std::max(turned().size(), chunk_at(rows + CHUNK - 1, inner)));
    run_parts(
        range.end - range.begin,
        [&](size_t begin, size_t end, int) {
          Aligned<BfPair> rounded(IS_FLOAT<Number> ? 0 : CHUNK * inner);
          each_chunk({range.begin + begin, range.begin + end}, [&](const Chunk& chunk) {
            const float* row[CHUNK];
            for (size_t i = 0; i < chunk.rows(); ++i) {
              row[i] = x + (chunk.begin + i) * inputs;
              if constexpr (!IS_FLOAT<Number>) {
                kernels().pair_neighbours(row[i], inputs, &rounded[i * inner]);
                row[i] = reinterpret_cast<const float*>(&rounded[i * inner]);  // pairs change places as floats do
              }
            }
            float* const out = reinterpret_cast<float*>(&turned()[chunk_at(chunk.begin, inner)]);
            kernels().pack(row, chunk.rows(), chunk.wide(), inner, out, chunk.ld());
          });
        },
        CHUNK);
  }

  // The weights of a block, as left side; as right side too if that is wanted.
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

  // Where the logits of a block and chunk are computed: where they are kept, or for pairs where they are rounded from.
  float* logits_at(float* block, const Chunk& chunk, Scratch& s) const {
    if constexpr (IS_FLOAT<Number>) {
      return block + kept_at<Number>(chunk.begin);
    } else {
      s.logits.resize(std::max(s.logits.size(), BLOCK * spread(CHUNK)));
      return s.logits.data();
    }
  }
  void compute_logits(size_t count, const Chunk& chunk, Scratch& s, float* z, Ahead* ahead) const {
    multiply(count, chunk.wide(), inputs, operands(s).left.data(), ld_left, 1, &turned()[chunk_at(chunk.begin, inner)],
             chunk.ld(), z, chunk.ld(), false, ahead);
  }
  // Keeps a chunk's exponentials with their block, if they are not there already.
  void keep(size_t count, const Chunk& chunk, const float* z, float* block) const {
    if constexpr (!IS_FLOAT<Number>) {
      auto* const out = reinterpret_cast<Number*>(block + kept_at<Number>(chunk.begin));
      for (size_t c = 0; c < count; ++c) {
        kernels().pair_neighbours(z + c * chunk.ld(), chunk.wide(), out + c * chunk.ld_kept<Number>());
      }
    }
  }
  // dx (rows x inputs) = or += exponentials times weights
  void add_weights(size_t count, const Chunk& chunk, const float* z, Scratch& s, float* dx, bool accumulate,
                   Ahead* ahead) const {
    Operands<Number>& o = operands(s);
    if constexpr (IS_FLOAT<Number>) {
      multiply(chunk.rows(), inputs, count, z, 1, chunk.ld(), o.left.data(), ld, dx, ld, accumulate, ahead);
    } else {
      o.exponentials.resize(BLOCK / 2 * spread(CHUNK));
      pair_rows(z, count, chunk.wide(), chunk.ld(), o.exponentials.data(), chunk.ld());
      multiply(chunk.rows(), inputs, count, o.exponentials.data(), 1, chunk.ld(), o.right.data(), ld, dx, ld,
               accumulate, ahead);
    }
  }

  void first_pass(const float* x, const ActiveSet& active, Range range, FoundLabels* labels, const SoftmaxSums& sums,
                  float* kept) const {
    const size_t rows = active.rows;
    const int parts = threads();
    turn_rows(x, rows, range);
    const AddedByBlock added(active.added, range, block_count(active.ids.size()));
    layer.scratch_.resize(static_cast<size_t>(parts));
    run_parts(
        active.ids.size(),
        [&](size_t begin, size_t end, int thread) {
          Scratch& s = layer.scratch_[static_cast<size_t>(thread)];
          s.reference.assign(rows + LANES, -std::numeric_limits<float>::infinity());
          s.sum.assign(rows + LANES, 0.0f);
          if (!kept) s.again.resize(kept_block<Number>(rows));
          if (sums.mean) s.dx.resize((range.end - range.begin) * ld);
          for (size_t first = begin; first < end; first += BLOCK) {
            const size_t count = std::min(BLOCK, end - first), block = first / BLOCK;
            const BlockTerms terms(active, layer.bias_, first, count);
            float* const block_kept = kept ? kept + block * kept_block<Number>(rows) : s.again.data();
            gather(active, first, count, sums.mean, s);
            Ahead ahead = layer.ahead_of(active, {}, {first + count, std::min(first + count + BLOCK, end)}, s.pieces);
            size_t next = added.first(block, range.begin);
            each_chunk(range, [&](const Chunk& chunk) {
              const size_t r = chunk.begin, ldz = chunk.ld();
              float* const z = logits_at(block_kept, chunk, s);
              compute_logits(count, chunk, s, z, &ahead);
              added.add(block, r, chunk.rows(), z, 1, ldz, next);
              if (labels) labels->note_logits(block, {r, chunk.end}, z, ldz, terms.bias);
              float before[CHUNK];
              std::copy_n(&s.reference[r], chunk.rows(), before);
              const bool raised =
                  kernels().exponentials(count, chunk.wide(), z, ldz, terms.shift, &s.reference[r], &s.sum[r]);
              if (kept) keep(count, chunk, z, block_kept);
              if (!sums.mean) return;
              float* const dx = &s.dx[(r - range.begin) * ld];
              for (size_t i = 0; raised && first > begin && i < chunk.rows(); ++i) {  // sums so far are brought along
                if (s.reference[r + i] == before[i]) continue;
                const float factor = std::exp(before[i] - s.reference[r + i]);
                for (size_t j = 0; j < inputs; ++j) dx[i * ld + j] *= factor;
              }
              add_weights(count, chunk, z, s, dx, first > begin, &ahead);
            });
            std::copy(&s.reference[range.begin], &s.reference[range.end],
                      block_kept + references_at<Number>(rows) + range.begin);
          }
        },
        BLOCK, parts);
    layer.join_sums(active, range, sums, parts);
  }

  // The block's exponentials, relative to the normaliser, where they were not kept: (count x rows).
  const float* exponentials_again(const ActiveSet& active, const AddedByBlock& added, size_t first, size_t count,
                                  const float* log_norm, Scratch& s) const {
    const size_t rows = active.rows;
    const BlockTerms terms(active, layer.bias_, first, count);
    s.again.assign(kept_block<Number>(rows), 0.0f);
    s.room.assign(whole_vectors(rows), 0.0f);  // sums that nobody asks for
    float* const reference = s.again.data() + references_at<Number>(rows);
    std::copy_n(log_norm, rows, reference);
    gather(active, first, count, false, s);
    size_t next = added.first(first / BLOCK, 0);
    each_chunk({0, rows}, [&](const Chunk& chunk) {
      float* const z = logits_at(s.again.data(), chunk, s);
      compute_logits(count, chunk, s, z, nullptr);
      added.add(first / BLOCK, chunk.begin, chunk.rows(), z, 1, chunk.ld(), next);
      kernels().exponentials(count, chunk.wide(), z, chunk.ld(), terms.shift, reference + chunk.begin,
                             &s.room[chunk.begin]);
      keep(count, chunk, z, s.again.data());
    });
    return s.again.data();
  }

  // What exponentials relative to `reference` (rows) have to be multiplied with, to be gradients of logits, and inputs
  // times that. Nothing is done if both are there already.
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
  // Where a chunk's scaled inputs are computed: where they stay, or for pairs where they are rounded from.
  float* scaled_rows(const Chunk& chunk, Scratch& s) const {
    if constexpr (IS_FLOAT<Number>) {
      return &s.floats.scaled[chunk.begin * ld];
    } else {
      s.dx.resize(std::max(s.dx.size(), CHUNK * ld));
      return s.dx.data();
    }
  }

  bool step(const float* x, const ActiveSet& active, const FoundLabels& labels, const float* log_norm, float scale,
            const float* kept, const Optimizer& optimizer) const {
    const size_t rows = active.rows;
    const Added nothing;
    const AddedByBlock added(kept ? nothing : active.added, {0, rows}, block_count(active.ids.size()));
    if (!kept) turn_rows(x, rows, {0, rows});
    const int parts = threads();
    layer.scratch_.resize(static_cast<size_t>(parts));
    std::atomic<bool> fine = true;
    for (Scratch& s : layer.scratch_) s.reference.assign(rows, -std::numeric_limits<float>::infinity());
    run_shared(
        active.ids.size(), BLOCK,
        [&](size_t first, size_t end, int thread) {
          Scratch& s = layer.scratch_[static_cast<size_t>(thread)];
          const Operands<Number>& o = operands(s);
          const size_t count = end - first, block = first / BLOCK;
          const float* const e = kept ? kept + block * kept_block<Number>(rows)
                                      : exponentials_again(active, added, first, count, log_norm, s);
          scale_rows(x, rows, e + references_at<Number>(rows), log_norm, scale, s);
          layer.ahead_of(active, {first, end}, {first, end}, s.pieces);
          if (kept && block > 0)
            add_exponentials<Number>(e - kept_block<Number>(rows), rows, s.pieces);  // their turn is next
          Ahead ahead{s.pieces.data(), s.pieces.data() + s.pieces.size()};
          s.gradient.resize(ld * BLOCK);
          float bias_gradient[BLOCK] = {};
          each_chunk({0, rows}, [&](const Chunk& chunk) {
            const Number* const here = exponentials_in(e, chunk.begin);
            const size_t lde = chunk.ld_kept<Number>(), at = numbers_for<Number>(chunk.begin);
            multiply(count, inputs, chunk.rows(), here, lde, 1, &o.scaled[at * ld], ld, s.gradient.data(), ld,
                     chunk.begin > 0, &ahead);
            for (size_t c = 0; c < count; ++c) bias_gradient[c] += dot(here + c * lde, &o.factor[at], chunk.rows());
          });
          for (const Entry* l = labels.begin(block, 0); l != labels.end(block); ++l) {
            const float gradient = -scale * labels.targets[l->element];
            bias_gradient[l->column] += gradient;
            kernels().axpy(gradient, x + l->row * inputs, &s.gradient[l->column * ld], inputs);
          }
          if (!layer.step_block(active, first, count, s.gradient.data(), bias_gradient, optimizer)) fine = false;
        },
        parts);
    return fine;
  }
};

void DenseLayer::softmax_first(const float* x, const ActiveSet& active, Range rows, FoundLabels* labels,
                               const SoftmaxSums& sums, float* kept) {
  if (products_ == Products::bf16) return Softmax<BfPair>{*this}.first_pass(x, active, rows, labels, sums, kept);
  Softmax<float>{*this}.first_pass(x, active, rows, labels, sums, kept);
}

bool DenseLayer::softmax_step(const float* x, const ActiveSet& active, const FoundLabels& labels, const float* log_norm,
                              float scale, const float* kept, const Optimizer& optimizer) {
  if (products_ == Products::bf16) {
    return Softmax<BfPair>{*this}.step(x, active, labels, log_norm, scale, kept, optimizer);
  }
  return Softmax<float>{*this}.step(x, active, labels, log_norm, scale, kept, optimizer);
}

// The sums of all threads, brought to one reference for each row.
void DenseLayer::join_sums(const ActiveSet& active, Range range, const SoftmaxSums& sums, int parts) const {
  const size_t inputs = weights_.stride, ld = spread(inputs);
  run_parts(range.end - range.begin, [&](size_t begin, size_t end, int) {
    for (size_t i = range.begin + begin; i < range.begin + end; ++i) {
      float reference = -std::numeric_limits<float>::infinity(), sum = 0;
      float* const mean = sums.mean ? sums.mean + i * inputs : nullptr;
      if (mean) std::fill_n(mean, inputs, 0.0f);
      const auto each_part = [&](const auto& use) {
        for (int t = 0; t < parts; ++t) {
          const Range own = part(active.ids.size(), static_cast<size_t>(parts), static_cast<size_t>(t), BLOCK);
          if (own.begin < own.end) use(scratch_[static_cast<size_t>(t)]);
        }
      };
      each_part([&](const Scratch& s) { reference = std::max(reference, s.reference[i]); });
      each_part([&](const Scratch& s) {
        const float factor = std::exp(s.reference[i] - reference);
        sum += factor * s.sum[i];
        if (mean) kernels().axpy(factor, &s.dx[(i - range.begin) * ld], mean, inputs);
      });
      sums.reference[i] = reference;
      sums.sum[i] = sum;
    }
  });
}

double DenseLayer::softmax_backward(const ActiveSet& active, Range range, const FoundLabels& labels,
                                    const float* reference, const float* log_norm, float scale, float* dx) const {
  const Kernels& kernel = kernels();
  const size_t inputs = weights_.stride;
  std::vector<double> losses(range.end - range.begin, 0.0);  // summed in order, so that threads don't matter
  run_parts(losses.size(), [&](size_t begin, size_t end, int) {
    AlignedFloats room(weights_.room(1));
    std::vector<Piece> next;  // weights of the next row's labels
    const auto each_label = [&](size_t row, const auto& use) {
      const int64_t* const offsets = labels.lists.offsets;
      for (auto e = static_cast<size_t>(offsets[row]); e < static_cast<size_t>(offsets[row + 1]); ++e) {
        if (labels.found[e] >= 0) use(e, static_cast<size_t>(active.ids[static_cast<size_t>(labels.found[e])]));
      }
    };
    for (size_t i = begin; i < end; ++i) {
      const size_t row = range.begin + i;
      next.clear();
      if (i + 1 < end) each_label(row + 1, [&](size_t, size_t neuron) { weights_.add_value(neuron, next); });
      for (const Piece& piece : next) ask_for(piece);
      float* const out = dx + row * inputs;
      const float factor = scale * std::exp(reference[row] - log_norm[row]);
      for (size_t j = 0; j < inputs; ++j) out[j] *= factor;
      each_label(row, [&](size_t e, size_t neuron) {
        losses[i] += softmax_label_loss(labels.targets[e], labels.logits[e], log_norm[row]);
        kernel.axpy(-scale * labels.targets[e], weights_.row(neuron, room.data()), out, inputs);
      });
    }
  });
  double loss = 0;
  for (const double row : losses) loss += row;
  return loss;
}

}  // namespace dslide
