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
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>

#include "block.hpp"
#include "dense_layer.hpp"

namespace dslide {
namespace {

// Rows of the batch are laid out in chunks of CHUNK, the last one smaller. Numbers of one chunk lie close together: with
// all rows side by side each neuron or input would be on another page, and a core knows only so many pages by heart.
struct Chunk {
  size_t begin, end;  // rows
  size_t rows() const { return end - begin; }
  size_t wide() const { return (rows() + LANES - 1) / LANES * LANES; }  // columns that are computed
  size_t ld() const { return spread(wide()); }                          // floats from one row of numbers to the next
};

// fn(chunk) for those of a range of rows, which begins with a chunk.
template <class Fn>
void each_chunk(Range range, const Fn& fn) {
  for (size_t r = range.begin; r < range.end; r += CHUNK) fn(Chunk{r, std::min(r + CHUNK, range.end)});
}

// Floats before the chunk that begins with a row, if every row of the batch has `height` numbers.
size_t chunk_at(size_t row, size_t height) { return row / CHUNK * spread(CHUNK) * height; }

// A block's exponentials, by chunk (BLOCK x rows), and behind them the references (rows).
size_t references_at(size_t rows) { return chunk_at(rows + CHUNK - 1, BLOCK); }
size_t kept_block(size_t rows) { return references_at(rows) + (rows + LANES - 1) / LANES * LANES; }

// Adds a block's exponentials to a list of memory.
void add_exponentials(const float* e, size_t rows, std::vector<Piece>& pieces) {
  each_chunk({0, rows}, [&](const Chunk& chunk) {
    for (size_t c = 0; c < BLOCK; ++c) {
      const float* const at = e + chunk_at(chunk.begin, BLOCK) + c * chunk.ld();
      pieces.push_back({reinterpret_cast<const char*>(at), chunk.wide() * sizeof(float) / CACHE_LINE});
    }
  });
}

}  // namespace

size_t DenseLayer::kept_size(const ActiveSet& active) {
  return block_count(active.ids.size()) * kept_block(active.rows);
}

// The batch, by chunk, transposed: (inputs x rows), columns from the last row to the next multiple of LANES zero.
void DenseLayer::turn_rows(const float* x, size_t rows, Range range) {
  const size_t inputs = weights_.stride;
  turned_.resize(std::max(turned_.size(), chunk_at(rows + CHUNK - 1, inputs)));
  run_parts(range.end - range.begin, [&](size_t begin, size_t end, int) {
    each_chunk({range.begin + begin, range.begin + end}, [&](const Chunk& chunk) {
      const float* row[CHUNK];
      for (size_t i = 0; i < chunk.rows(); ++i) row[i] = x + (chunk.begin + i) * inputs;
      kernels().pack(row, chunk.rows(), chunk.wide(), inputs, &turned_[chunk_at(chunk.begin, inputs)], chunk.ld());
    });
  }, CHUNK);
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

void DenseLayer::softmax_first(const float* x, const ActiveSet& active, Range range, FoundLabels* labels,
                               const SoftmaxSums& sums, float* kept) {
  const Kernels& kernel = kernels();
  const size_t inputs = weights_.stride, ld = spread(inputs), rows = active.rows;
  const int parts = threads();
  turn_rows(x, rows, range);
  const AddedByBlock added(active.added, range, block_count(active.ids.size()));
  scratch_.resize(static_cast<size_t>(parts));
  run_parts(active.ids.size(), [&](size_t begin, size_t end, int thread) {
    Scratch& s = scratch_[static_cast<size_t>(thread)];
    s.reference.assign(rows + LANES, -std::numeric_limits<float>::infinity());
    s.sum.assign(rows + LANES, 0.0f);
    if (!kept) s.logits.resize(kept_block(rows));
    if (sums.mean) s.dx.resize((range.end - range.begin) * ld);
    for (size_t first = begin; first < end; first += BLOCK) {
      const size_t count = std::min(BLOCK, end - first), block = first / BLOCK;
      const BlockTerms terms(active, bias_, first, count);
      float* const block_kept = kept ? kept + block * kept_block(rows) : s.logits.data();
      gather(active, first, count, s.gathered);
      Ahead ahead = ahead_of(active, {}, {first + count, std::min(first + count + BLOCK, end)}, s.pieces);
      size_t next = added.first(block, range.begin);
      each_chunk(range, [&](const Chunk& chunk) {
        const size_t r = chunk.begin, ldz = chunk.ld();
        float* const z = block_kept + chunk_at(r, BLOCK);
        kernel.gemm(count, chunk.wide(), inputs, s.gathered.data(), ld, 1, &turned_[chunk_at(r, inputs)], ldz, z, ldz,
                    false, &ahead);
        added.add(block, r, chunk.rows(), z, 1, ldz, next);
        if (labels) labels->note_logits(block, {r, chunk.end}, z, ldz, terms.bias);
        float before[CHUNK];
        std::copy_n(&s.reference[r], chunk.rows(), before);
        const bool raised = kernel.exponentials(count, chunk.wide(), z, ldz, terms.shift, &s.reference[r], &s.sum[r]);
        if (!sums.mean) return;
        float* const dx = &s.dx[(r - range.begin) * ld];
        for (size_t i = 0; raised && first > begin && i < chunk.rows(); ++i) {  // sums so far are brought along
          if (s.reference[r + i] == before[i]) continue;
          const float factor = std::exp(before[i] - s.reference[r + i]);
          for (size_t j = 0; j < inputs; ++j) dx[i * ld + j] *= factor;
        }
        kernel.gemm(chunk.rows(), inputs, count, z, 1, ldz, s.gathered.data(), ld, dx, ld, first > begin, &ahead);
      });
      std::copy(&s.reference[range.begin], &s.reference[range.end], block_kept + references_at(rows) + range.begin);
    }
  }, BLOCK, parts);
  join_sums(active, range, sums, parts);
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

// The block's exponentials, relative to the normaliser, where they were not kept: (count x rows).
void DenseLayer::exponentials_again(const ActiveSet& active, const AddedByBlock& added, size_t first, size_t count,
                                    const float* log_norm, Scratch& s) const {
  const Kernels& kernel = kernels();
  const size_t rows = active.rows, inputs = weights_.stride;
  const BlockTerms terms(active, bias_, first, count);
  s.logits.resize(kept_block(rows));
  s.room.assign(rows, 0.0f);  // sums that nobody asks for
  float* const reference = s.logits.data() + references_at(rows);
  std::copy_n(log_norm, rows, reference);
  gather(active, first, count, s.gathered);
  size_t next = added.first(first / BLOCK, 0);
  each_chunk({0, rows}, [&](const Chunk& chunk) {
    float* const z = &s.logits[chunk_at(chunk.begin, BLOCK)];
    kernel.gemm(count, chunk.wide(), inputs, s.gathered.data(), spread(inputs), 1,
                &turned_[chunk_at(chunk.begin, inputs)], chunk.ld(), z, chunk.ld(), false, nullptr);
    added.add(first / BLOCK, chunk.begin, chunk.rows(), z, 1, chunk.ld(), next);
    kernel.exponentials(count, chunk.rows(), z, chunk.ld(), terms.shift, reference + chunk.begin, &s.room[chunk.begin]);
  });
}

// What exponentials relative to `reference` (rows) have to be multiplied with, to be gradients of logits: into s.factor;
// and inputs times that: into s.dx. Nothing is done if both are there already.
void DenseLayer::scale_rows(const float* x, size_t rows, const float* reference, const float* log_norm, float scale,
                            Scratch& s) const {
  const size_t inputs = weights_.stride, ld = spread(inputs);
  if (std::memcmp(reference, s.reference.data(), rows * sizeof(float)) == 0) return;
  std::copy_n(reference, rows, s.reference.data());
  s.factor.resize(rows);
  s.dx.resize(rows * ld);
  for (size_t i = 0; i < rows; ++i) {
    s.factor[i] = scale * std::exp(reference[i] - log_norm[i]);
    for (size_t j = 0; j < inputs; ++j) s.dx[i * ld + j] = s.factor[i] * x[i * inputs + j];
  }
}

bool DenseLayer::softmax_step(const float* x, const ActiveSet& active, const FoundLabels& labels, const float* log_norm,
                              float scale, const float* kept, const Optimizer& optimizer) {
  const Kernels& kernel = kernels();
  const size_t inputs = weights_.stride, ld = spread(inputs), rows = active.rows;
  const Added nothing;
  const AddedByBlock added(kept ? nothing : active.added, {0, rows}, block_count(active.ids.size()));
  if (!kept) turn_rows(x, rows, {0, rows});
  const int parts = threads();
  scratch_.resize(static_cast<size_t>(parts));
  std::atomic<bool> fine = true;
  for (Scratch& s : scratch_) s.reference.assign(rows, -std::numeric_limits<float>::infinity());
  run_shared(active.ids.size(), BLOCK, [&](size_t first, size_t end, int thread) {
    Scratch& s = scratch_[static_cast<size_t>(thread)];
    const size_t count = end - first, block = first / BLOCK;
    if (!kept) exponentials_again(active, added, first, count, log_norm, s);
    const float* const e = kept ? kept + block * kept_block(rows) : s.logits.data();
    scale_rows(x, rows, e + references_at(rows), log_norm, scale, s);
    ahead_of(active, {first, end}, {first, end}, s.pieces);
    if (kept && block > 0) add_exponentials(e - kept_block(rows), rows, s.pieces);  // their turn is next
    Ahead ahead{s.pieces.data(), s.pieces.data() + s.pieces.size()};
    s.gradient.resize(ld * BLOCK);
    float bias_gradient[BLOCK] = {};
    each_chunk({0, rows}, [&](const Chunk& chunk) {
      const float* const here = e + chunk_at(chunk.begin, BLOCK);
      kernel.gemm(count, inputs, chunk.rows(), here, chunk.ld(), 1, &s.dx[chunk.begin * ld], ld, s.gradient.data(), ld,
                  chunk.begin > 0, &ahead);
      for (size_t c = 0; c < count; ++c) {
        bias_gradient[c] += kernel.dot(here + c * chunk.ld(), &s.factor[chunk.begin], chunk.rows());
      }
    });
    for (const Entry* l = labels.begin(block, 0); l != labels.end(block); ++l) {
      const float gradient = -scale * labels.targets[l->element];
      bias_gradient[l->column] += gradient;
      kernel.axpy(gradient, x + l->row * inputs, &s.gradient[l->column * ld], inputs);
    }
    if (!step_block(active, first, count, s.gradient.data(), bias_gradient, optimizer)) fine = false;
  }, parts);
  return fine;
}

}  // namespace dslide
