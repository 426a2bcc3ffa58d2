#include "dense_layer.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "block.hpp"
#include "pool.hpp"

namespace dslide {
namespace {

constexpr size_t CHUNK = 96;  // rows of the batch at a time: their logits (24 KB) stay in the first-level cache
constexpr size_t SOON = 2;    // neurons before its turn that the memory of one to be stepped is brought to that cache

// Logits of the block that begins at position `first`, from row r on: (rows x 64), block after block.
float* kept_block(float* kept, const ActiveSet& active, size_t first, size_t r) {
  return kept + (first / BLOCK * active.rows + r) * BLOCK;
}

size_t block_count(size_t neurons) { return (neurons + BLOCK - 1) / BLOCK; }

}  // namespace

// One pass over blocks of active neurons.
struct DenseLayer::Pass {
  const float* x;              // as the caller has them
  const ActiveSet& active;
  Range rows;                  // of the batch
  float* dx;                   // null: not wanted
  const Optimizer* optimizer;  // null: no step
  float* kept;                 // null: logits are not kept
  int parts = threads();
};

DenseLayer::DenseLayer(const Parameters& weights, const Parameters& bias) : weights_(weights), bias_(bias) {
  check_bias(bias, weights.rows);
  if (weights.stride % 16 != 0) throw std::invalid_argument("rows of weights must be padded to a multiple of 16");
}

// The rows of x that are asked for, spread: row r is at r * spread(inputs).
void DenseLayer::spread_rows(const float* x, Range rows, AlignedFloats& batch) const {
  const size_t inputs = weights_.stride, ld = spread(inputs);
  if (batch.size() < rows.end * ld) batch.resize(rows.end * ld);
  run_parts(rows.end - rows.begin, [&](size_t begin, size_t end, int) {
    for (size_t r = rows.begin + begin; r < rows.begin + end; ++r) {
      std::memcpy(&batch[r * ld], x + r * inputs, inputs * sizeof(float));
    }
  });
}

// The memory that is needed next: what the optimizer keeps of the neurons in `stepped`, and the weights of those in
// `next`.
Ahead DenseLayer::ahead_of(const ActiveSet& active, Range stepped, Range next, std::vector<Piece>& pieces) const {
  pieces.clear();
  const auto add = [&](Range positions, const Parameters& of, auto member) {
    for (size_t p = positions.begin; p < positions.end; ++p) (of.*member)(static_cast<size_t>(active.ids[p]), pieces);
  };
  add(stepped, weights_, &Parameters::add_moments);
  add(next, weights_, &Parameters::add_value);
  add(stepped, weights_, &Parameters::add_clock);
  add(stepped, bias_, &Parameters::add_moments);
  add(stepped, bias_, &Parameters::add_clock);
  add(next, bias_, &Parameters::add_value);
  return {pieces.data(), pieces.data() + pieces.size()};
}

// The transposed block: (stride x 64), columns past `count` zero. `room` is for the block's rows, if they need it.
void DenseLayer::pack(const ActiveSet& active, size_t first, size_t count, float* packed, AlignedFloats& room) const {
  const float* rows[BLOCK];
  room.resize(weights_.room(BLOCK));
  for (size_t c = 0; c < count; ++c) {
    rows[c] = weights_.row(static_cast<size_t>(active.ids[first + c]), room.data() + weights_.room(c));
  }
  kernels().pack(rows, count, BLOCK, weights_.stride, packed, PACKED);
}

void DenseLayer::forward(const float* x, const ActiveSet& active, float* z, size_t ldz) {
  const Kernels& kernel = kernels();
  const size_t inputs = weights_.stride, rows = active.rows;
  if (active.is_per_row) {
    run_parts(active.ids.size(), [&](size_t begin, size_t end, int) {
      AlignedFloats room(weights_.room(1));
      for (size_t p = begin; p < end; ++p) {
        const auto neuron = static_cast<size_t>(active.ids[p]);
        const float* w = weights_.row(neuron, room.data());
        for (int64_t s = active.neuron_begin[p]; s < active.neuron_begin[p + 1]; ++s) {
          const auto row = static_cast<size_t>(active.neuron_row[static_cast<size_t>(s)]);
          z[active.neuron_slot[static_cast<size_t>(s)]] =
              kernel.dot(x + row * inputs, w, inputs) + bias_.value[neuron];
        }
      }
    });
    return;
  }
  const AddedByBlock added(active.added, {0, rows}, block_count(active.ids.size()));
  run_parts(active.ids.size(), [&](size_t begin, size_t end, int) {
    AlignedFloats packed(inputs * PACKED), logits(CHUNK * BLOCK), room;
    for (size_t first = begin; first < end; first += BLOCK) {
      const size_t count = std::min(BLOCK, end - first);
      pack(active, first, count, packed.data(), room);
      size_t next = added.first(first / BLOCK);
      for (size_t r = 0; r < rows; r += CHUNK) {
        const size_t chunk = std::min(CHUNK, rows - r);
        kernel.gemm(chunk, BLOCK, inputs, x + r * inputs, inputs, 1, packed.data(), PACKED, logits.data(), BLOCK, false,
                    nullptr);
        added.add(first / BLOCK, r, chunk, logits.data(), next);
        for (size_t i = 0; i < chunk; ++i) {
          float* out = z + (r + i) * ldz + first;
          for (size_t c = 0; c < count; ++c) {
            out[c] = logits[i * BLOCK + c] + bias_.value[active.ids[first + c]];
          }
        }
      }
    }
  }, BLOCK);
}

// make_gradient(first position, count, first row, rows, scratch, thread) -> {dz of that block and chunk, distance of rows};
// called for a block's chunks in order.
template <class MakeGradient>
bool DenseLayer::learn_blocks(const Pass& pass, const MakeGradient& make_gradient) {
  const Kernels& kernel = kernels();
  const ActiveSet& active = pass.active;
  const size_t inputs = weights_.stride, ld = spread(inputs), rows = pass.rows.end - pass.rows.begin;
  spread_rows(pass.x, pass.rows, batch_);
  std::atomic<bool> fine = true;
  begin_dx(pass.dx ? rows : 0, pass.parts);
  run_parts(active.ids.size(), [&](size_t begin, size_t end, int thread) {
    Scratch& s = scratch_[static_cast<size_t>(thread)];
    s.packed.resize(inputs * PACKED);
    s.gathered.resize(ld * BLOCK);
    s.gradient.resize(ld * BLOCK);
    s.logits.resize(CHUNK * PACKED);
    for (size_t block = block_count(end - begin); block-- > 0;) {  // what the first pass had last is still in cache
      const size_t first = begin + block * BLOCK, count = std::min(BLOCK, end - first);
      for (size_t c = 0; pass.dx && c < count; ++c) {
        float* row = &s.gathered[c * ld];
        const float* stored = weights_.row(static_cast<size_t>(active.ids[first + c]), row);
        if (stored != row) std::memcpy(row, stored, inputs * sizeof(float));
      }
      float bias_gradient[BLOCK] = {};
      Ahead ahead = ahead_of(active, {first, pass.optimizer ? first + count : first},
                             {block > 0 ? first - BLOCK : first, first}, s.pieces);
      for (size_t r = pass.rows.begin; r < pass.rows.end; r += CHUNK) {
        const size_t chunk = std::min(CHUNK, pass.rows.end - r);
        const auto [dz, ldz] = make_gradient(first, count, r, chunk, s, thread);
        if (pass.dx) {
          kernel.gemm(chunk, inputs, count, dz, ldz, 1, s.gathered.data(), ld, &s.dx[(r - pass.rows.begin) * ld], ld,
                      true, &ahead);
        }
        if (!pass.optimizer) continue;
        kernel.gemm(count, inputs, chunk, dz, 1, ldz, &batch_[r * ld], ld, s.gradient.data(), ld, r > pass.rows.begin,
                    &ahead);
        kernel.column_sums(chunk, count, dz, ldz, bias_gradient);
      }
      for (size_t c = 0; pass.optimizer && c < count; ++c) {
        if (const size_t soon = first + c + SOON; soon < first + count) {
          ahead_of(active, {soon, soon + 1}, {soon, soon + 1}, s.pieces);
          for (const Piece& piece : s.pieces) ask_for(piece);
        }
        const auto neuron = static_cast<size_t>(active.ids[first + c]);
        if (!weights_.update(neuron, &s.gradient[c * ld], *pass.optimizer) ||
            !bias_.update(neuron, &bias_gradient[c], *pass.optimizer)) {
          fine = false;
        }
      }
    }
  }, BLOCK, static_cast<int>(scratch_.size()));
  if (pass.dx) sum_dx(pass.rows, pass.dx);
  return fine;
}

bool DenseLayer::learn(const float* x, const ActiveSet& active, const float* dz, size_t ldz, float* dx,
                       const Optimizer& optimizer) {
  if (active.is_per_row) return learn_per_row(x, active, dz, dx, optimizer);
  return learn_blocks({x, active, {0, active.rows}, dx, &optimizer, nullptr},
                      [&](size_t first, size_t, size_t r, size_t, Scratch&, int) {
                        return std::pair<const float*, size_t>(dz + r * ldz + first, ldz);
                      });
}

bool DenseLayer::learn_per_row(const float* x, const ActiveSet& active, const float* dz, float* dx,
                               const Optimizer& optimizer) {
  const Kernels& kernel = kernels();
  const size_t inputs = weights_.stride;
  std::atomic<bool> fine = true;
  begin_dx(active.rows, threads());
  run_parts(active.ids.size(), [&](size_t begin, size_t end, int thread) {
    Scratch& s = scratch_[static_cast<size_t>(thread)];
    s.gradient.resize(std::max(s.gradient.size(), inputs));
    s.room.resize(weights_.room(1));
    for (size_t p = begin; p < end; ++p) {
      const auto neuron = static_cast<size_t>(active.ids[p]);
      const float* w = weights_.row(neuron, s.room.data());
      std::fill_n(s.gradient.begin(), inputs, 0.0f);
      float bias_gradient = 0;
      for (auto e = static_cast<size_t>(active.neuron_begin[p]); e < static_cast<size_t>(active.neuron_begin[p + 1]);
           ++e) {
        const auto row = static_cast<size_t>(active.neuron_row[e]);
        const float g = dz[active.neuron_slot[e]];
        kernel.axpy(g, x + row * inputs, s.gradient.data(), inputs);
        kernel.axpy(g, w, &s.dx[row * spread(inputs)], inputs);
        bias_gradient += g;
      }
      if (!weights_.update(neuron, s.gradient.data(), optimizer) || !bias_.update(neuron, &bias_gradient, optimizer)) {
        fine = false;
      }
    }
  }, 1, static_cast<int>(scratch_.size()));
  sum_dx({0, active.rows}, dx);
  return fine;
}

size_t DenseLayer::kept_size(const ActiveSet& active) {
  return block_count(active.ids.size()) * BLOCK * active.rows;
}

void DenseLayer::softmax_stats(const float* x, const ActiveSet& active, Range range, float* reference, float* sum,
                               float* kept) {
  const Kernels& kernel = kernels();
  const size_t inputs = weights_.stride, ld = spread(inputs), rows = active.rows;
  const int parts = threads();
  spread_rows(x, range, batch_);
  const AddedByBlock added(active.added, range, block_count(active.ids.size()));
  std::vector<float> references(static_cast<size_t>(parts) * rows, -std::numeric_limits<float>::infinity());
  std::vector<float> sums(static_cast<size_t>(parts) * rows, 0.0f);
  run_parts(active.ids.size(), [&](size_t begin, size_t end, int thread) {
    AlignedFloats packed(inputs * PACKED), logits(CHUNK * BLOCK), room;
    std::vector<Piece> pieces;
    const size_t at = static_cast<size_t>(thread) * rows;
    for (size_t first = begin; first < end; first += BLOCK) {
      const size_t count = std::min(BLOCK, end - first);
      const BlockTerms terms(active, bias_, first, count);
      pack(active, first, count, packed.data(), room);
      Ahead ahead = ahead_of(active, {}, {first + count, std::min(first + count + BLOCK, end)}, pieces);
      size_t next = added.first(first / BLOCK);
      for (size_t r = range.begin; r < range.end; r += CHUNK) {
        const size_t chunk = std::min(CHUNK, range.end - r);
        float* z = kept ? kept_block(kept, active, first, r) : logits.data();
        kernel.gemm(chunk, BLOCK, inputs, &batch_[r * ld], ld, 1, packed.data(), PACKED, z, BLOCK, false, &ahead);
        added.add(first / BLOCK, r, chunk, z, next);
        kernel.softmax_stats(chunk, BLOCK, z, BLOCK, terms.shift, &references[at + r], &sums[at + r]);
      }
    }
  }, BLOCK, parts);
  for (size_t i = range.begin; i < range.end; ++i) {
    for (size_t t = 0; t < static_cast<size_t>(parts); ++t) {
      const float m = references[t * rows + i], s = sums[t * rows + i];
      if (s <= 0) continue;
      const float now = std::max(reference[i], m);
      sum[i] = (sum[i] > 0 ? sum[i] * std::exp(reference[i] - now) : 0.0f) + s * std::exp(m - now);
      reference[i] = now;
    }
  }
}

// rows_gradient(first row, rows, z, block, dz, lddz): of rows of 64 logits z, without bias, gradients dz, which may be the
// same; returns loss.
// label_gradient(row, label, logit with bias, weight) -> Correction to add for a label.
template <class RowsGradient, class LabelGradient>
bool DenseLayer::learn_fused(const Pass& pass, const Labels& labels, double* loss, bool have_logits,
                             const RowsGradient& rows_gradient, const LabelGradient& label_gradient) {
  const Kernels& kernel = kernels();
  const ActiveSet& active = pass.active;
  const size_t inputs = weights_.stride, ld = spread(inputs);
  const EntriesByBlock by_block(labels.lists.offsets, [&](int64_t e) { return labels.found[e]; }, pass.rows,
                                block_count(active.ids.size()));
  const Added nothing;
  const AddedByBlock added(have_logits ? nothing : active.added, pass.rows, block_count(active.ids.size()));
  struct alignas(2 * CACHE_LINE) State {  // of a thread
    BlockTerms terms;
    size_t entry;  // the next label of its block
    size_t next_added;
    std::vector<Correction> corrections;
    double loss;
  };
  std::vector<State> states(static_cast<size_t>(pass.parts));
  for (State& s : states) s.loss = 0;

  const bool fine = learn_blocks(
      pass, [&](size_t first, size_t count, size_t r, size_t chunk, Scratch& s, int thread) {
        State& state = states[static_cast<size_t>(thread)];
        const size_t block = first / BLOCK;
        if (r == pass.rows.begin) {
          if (!have_logits) pack(active, first, count, s.packed.data(), s.room);
          state.terms = BlockTerms(active, bias_, first, count);
          state.entry = by_block.begin[block];
          state.next_added = added.first(block);
        }
        float* z = pass.kept ? kept_block(pass.kept, active, first, r) : s.logits.data();
        if (!have_logits) {
          kernel.gemm(chunk, BLOCK, inputs, &batch_[r * ld], ld, 1, s.packed.data(), PACKED, z, BLOCK, false,
                      nullptr);
          added.add(block, r, chunk, z, state.next_added);
        }
        // Gradients are kept only for a step to come. If not, rows are spread, as gradients are read by columns, too.
        const bool spread_out = pass.kept && pass.optimizer;
        float* dz = spread_out ? s.logits.data() : z;
        const size_t lddz = spread_out ? PACKED : BLOCK;
        const size_t begin = state.entry;
        state.corrections.clear();
        for (; state.entry < by_block.begin[block + 1] && by_block.entries[state.entry].row < r + chunk; ++state.entry) {
          const Entry& e = by_block.entries[state.entry];
          const float logit = z[(e.row - r) * BLOCK + e.column] + state.terms.bias[e.column];
          state.corrections.push_back(label_gradient(e.row, e.element, logit, state.terms.weight[e.column]));
          state.loss += state.corrections.back().loss;
        }
        state.loss += rows_gradient(r, chunk, z, state.terms, dz, lddz);
        for (size_t k = 0; k < state.corrections.size(); ++k) {
          const Entry& e = by_block.entries[begin + k];
          dz[(e.row - r) * lddz + e.column] += state.corrections[k].gradient;
        }
        return std::pair<const float*, size_t>(dz, lddz);
      });
  *loss = 0;
  for (const State& s : states) *loss += s.loss;
  return fine;
}

bool DenseLayer::learn_softmax(const float* x, const ActiveSet& active, const Labels& labels, const float* log_norm,
                               float scale, float* dx, const Optimizer& optimizer, double* loss, float* kept) {
  return learn_softmax({x, active, {0, active.rows}, dx, &optimizer, kept}, labels, log_norm, scale, loss);
}

double DenseLayer::backward_softmax(const float* x, const ActiveSet& active, Range rows, const Labels& labels,
                                    const float* log_norm, float scale, float* dx, float* kept) {
  double loss = 0;
  learn_softmax({x, active, rows, dx, nullptr, kept}, labels, log_norm, scale, &loss);
  return loss;
}

bool DenseLayer::learn_softmax(const Pass& pass, const Labels& labels, const float* log_norm, float scale,
                               double* loss) {
  const Kernels& kernel = kernels();
  return learn_fused(
      pass, labels, loss, pass.kept != nullptr,
      [&](size_t row, size_t rows, const float* z, const BlockTerms& terms, float* dz, size_t lddz) {
        kernel.softmax_gradient(rows, BLOCK, z, BLOCK, terms.shift, log_norm + row, scale, dz, lddz);
        return 0.0;
      },
      [&](size_t row, int64_t label, float logit, float) {
        const float target = labels.targets[label];
        return Correction{softmax_label_loss(target, logit, log_norm[row]), -scale * target};
      });
}

bool DenseLayer::learn_sigmoid(const float* x, const ActiveSet& active, const Labels& labels, float scale, float* dx,
                               const Optimizer& optimizer, double* loss) {
  return learn_sigmoid({x, active, {0, active.rows}, dx, &optimizer, nullptr}, labels, scale, loss);
}

double DenseLayer::backward_sigmoid(const float* x, const ActiveSet& active, Range rows, const Labels& labels,
                                    float scale, float* dx, float* kept) {
  double loss = 0;
  learn_sigmoid({x, active, rows, dx, nullptr, kept}, labels, scale, &loss);
  return loss;
}

bool DenseLayer::step(const float* x, const ActiveSet& active, float* kept, const Optimizer& optimizer) {
  return learn_blocks({x, active, {0, active.rows}, nullptr, &optimizer, kept},
                      [&](size_t first, size_t, size_t r, size_t, Scratch&, int) {
                        return std::pair<const float*, size_t>(kept_block(kept, active, first, r), BLOCK);
                      });
}

bool DenseLayer::learn_sigmoid(const Pass& pass, const Labels& labels, float scale, double* loss) {
  const Kernels& kernel = kernels();
  return learn_fused(
      pass, labels, loss, false,
      [&](size_t, size_t rows, const float*, const BlockTerms& terms, float* dz, size_t) {
        double sum = 0;  // in place: these logits are not read again
        for (size_t i = 0; i < rows; ++i) {
          sum += kernel.sigmoid_gradient(dz + i * BLOCK, terms.bias, terms.weight, BLOCK, scale);
        }
        return sum;
      },
      [&](size_t, int64_t label, float logit, float weight) {
        const Correction c = sigmoid_label(labels.targets[label], weight, logit);
        return Correction{c.loss, scale * c.gradient};
      });
}

void DenseLayer::begin_dx(size_t rows, int parts) {
  scratch_.resize(static_cast<size_t>(parts));
  run(parts, [&](int thread) { scratch_[static_cast<size_t>(thread)].dx.assign(rows * spread(weights_.stride), 0.0f); });
}

void DenseLayer::sum_dx(Range rows, float* dx) const {
  const size_t inputs = weights_.stride, ld = spread(inputs);
  run_parts(rows.end - rows.begin, [&](size_t begin, size_t end, int) {
    for (size_t r = begin; r < end; ++r) {
      float* out = dx + (rows.begin + r) * inputs;
      std::memcpy(out, &scratch_[0].dx[r * ld], inputs * sizeof(float));
      for (size_t t = 1; t < scratch_.size(); ++t) kernels().axpy(1.0f, &scratch_[t].dx[r * ld], out, inputs);
    }
  });
}

}  // namespace dslide
