#include "layers/dense_layer.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "layers/block.hpp"
#include "runtime/thread_pool.hpp"

namespace dslide {
namespace {

constexpr size_t ROWS = 96;  // of the batch at a time: their logits (24 KB) stay in the first-level cache
constexpr size_t SOON = 2;   // neurons before its turn that the memory of one to be stepped is asked for again

// Gradients of logits of the block that begins at position `first`, from row r on: (rows x 64), block after block.
template <class Float>
Float* kept_block(Float* kept, const ActiveSet& active, size_t first, size_t r) {
  return kept + (first / BLOCK * active.rows + r) * BLOCK;
}

}  // namespace

// One pass over blocks of active neurons.
struct DenseLayer::Pass {
  const float* x;  // as the caller has them
  const ActiveSet& active;
  Range rows;                  // of the batch
  float* dx;                   // null: not wanted
  const Optimizer* optimizer;  // null: no step
  float* kept;                 // for gradients of the logits; null: they are not kept
  int parts = threads();
};

DenseLayer::DenseLayer(const Parameters& weights, const Parameters& bias, Products products)
    : weights_(weights), bias_(bias), products_(products) {
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
          z[active.neuron_slot[static_cast<size_t>(s)]] = kernel.dot(x + row * inputs, w, inputs) + bias_.at(neuron, 0);
        }
      }
    });
    return;
  }
  const AddedByBlock added(active.added, {0, rows}, block_count(active.ids.size()));
  run_parts(
      active.ids.size(),
      [&](size_t begin, size_t end, int) {
        AlignedFloats packed(inputs * PACKED), logits(ROWS * BLOCK), room;
        for (size_t first = begin; first < end; first += BLOCK) {
          const size_t count = std::min(BLOCK, end - first);
          pack(active, first, count, packed.data(), room);
          size_t next = added.first(first / BLOCK, 0);
          for (size_t r = 0; r < rows; r += ROWS) {
            const size_t chunk = std::min(ROWS, rows - r);
            kernel.gemm(chunk, BLOCK, inputs, x + r * inputs, inputs, 1, packed.data(), PACKED, logits.data(), BLOCK,
                        false, nullptr);
            added.add(first / BLOCK, r, chunk, logits.data(), BLOCK, 1, next);
            for (size_t i = 0; i < chunk; ++i) {
              float* out = z + (r + i) * ldz + first;
              for (size_t c = 0; c < count; ++c) {
                out[c] = logits[i * BLOCK + c] + bias_.at(static_cast<size_t>(active.ids[first + c]), 0);
              }
            }
          }
        }
      },
      BLOCK);
}

// The step of a block's neurons along gradients (count x inputs, rows spread) of weights and (count) of biases. False:
// some were not finite.
bool DenseLayer::step_block(const ActiveSet& active, size_t first, size_t count, const float* gradient,
                            const float* bias_gradient, const Optimizer& optimizer) const {
  bool fine = true;
  for (size_t c = 0; c < count; ++c) {
    if (c + SOON < count) {
      const auto soon = static_cast<size_t>(active.ids[first + c + SOON]);
      weights_.ask_for_row(soon);
      bias_.ask_for_row(soon);
    }
    const auto neuron = static_cast<size_t>(active.ids[first + c]);
    fine = weights_.update(neuron, gradient + c * spread(weights_.stride), optimizer) && fine;
    fine = bias_.update(neuron, bias_gradient + c, optimizer) && fine;
  }
  return fine;
}

// make_gradient(first position, count, first row, rows, scratch, thread) -> {dz of that block and chunk, distance of
// rows}; called for a block's chunks in order.
template <class MakeGradient>
bool DenseLayer::learn_blocks(const Pass& pass, const MakeGradient& make_gradient) {
  const Kernels& kernel = kernels();
  const ActiveSet& active = pass.active;
  const size_t inputs = weights_.stride, ld = spread(inputs), rows = pass.rows.end - pass.rows.begin;
  spread_rows(pass.x, pass.rows, batch_);
  std::atomic<bool> fine = true;
  begin_dx(pass.dx ? rows : 0, pass.parts);
  run_parts(
      active.ids.size(),
      [&](size_t begin, size_t end, int thread) {
        Scratch& s = scratch_[static_cast<size_t>(thread)];
        s.packed.resize(inputs * PACKED);
        s.gradient.resize(ld * BLOCK);
        s.logits.resize(ROWS * BLOCK);
        for (size_t block = block_count(end - begin); block-- > 0;) {  // what the first pass had last is still in cache
          const size_t first = begin + block * BLOCK, count = std::min(BLOCK, end - first);
          if (pass.dx) gather(active, first, count, s.gathered);
          float bias_gradient[BLOCK] = {};
          Ahead ahead = ahead_of(active, {first, pass.optimizer ? first + count : first},
                                 {block > 0 ? first - BLOCK : first, first}, s.pieces);
          for (size_t r = pass.rows.begin; r < pass.rows.end; r += ROWS) {
            const size_t chunk = std::min(ROWS, pass.rows.end - r);
            const auto [dz, ldz] = make_gradient(first, count, r, chunk, s, thread);
            if (pass.dx) {
              kernel.gemm(chunk, inputs, count, dz, ldz, 1, s.gathered.data(), ld, &s.dx[(r - pass.rows.begin) * ld],
                          ld, true, &ahead);
            }
            if (!pass.optimizer) continue;
            kernel.gemm(count, inputs, chunk, dz, 1, ldz, &batch_[r * ld], ld, s.gradient.data(), ld,
                        r > pass.rows.begin, &ahead);
            kernel.column_sums(chunk, count, dz, ldz, bias_gradient);
          }
          if (pass.optimizer && !step_block(active, first, count, s.gradient.data(), bias_gradient, *pass.optimizer)) {
            fine = false;
          }
        }
      },
      BLOCK, static_cast<int>(scratch_.size()));
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
  run_parts(
      active.ids.size(),
      [&](size_t begin, size_t end, int thread) {
        Scratch& s = scratch_[static_cast<size_t>(thread)];
        s.gradient.resize(std::max(s.gradient.size(), inputs));
        s.room.resize(weights_.room(1));
        for (size_t p = begin; p < end; ++p) {
          const auto neuron = static_cast<size_t>(active.ids[p]);
          const float* w = weights_.row(neuron, s.room.data());
          std::fill_n(s.gradient.begin(), inputs, 0.0f);
          float bias_gradient = 0;
          for (auto e = static_cast<size_t>(active.neuron_begin[p]);
               e < static_cast<size_t>(active.neuron_begin[p + 1]); ++e) {
            const auto row = static_cast<size_t>(active.neuron_row[e]);
            const float g = dz[active.neuron_slot[e]];
            kernel.axpy(g, x + row * inputs, s.gradient.data(), inputs);
            kernel.axpy(g, w, &s.dx[row * spread(inputs)], inputs);
            bias_gradient += g;
          }
          if (!weights_.update(neuron, s.gradient.data(), optimizer) ||
              !bias_.update(neuron, &bias_gradient, optimizer)) {
            fine = false;
          }
        }
      },
      1, static_cast<int>(scratch_.size()));
  sum_dx({0, active.rows}, dx);
  return fine;
}

bool DenseLayer::sigmoid_learn(const float* x, const ActiveSet& active, const FoundLabels& labels, float scale,
                               float* dx, const Optimizer& optimizer, double* loss) {
  return sigmoid_learn({x, active, {0, active.rows}, dx, &optimizer, nullptr}, labels, scale, loss);
}

double DenseLayer::sigmoid_backward(const float* x, const ActiveSet& active, Range rows, const FoundLabels& labels,
                                    float scale, float* dx, float* kept) {
  double loss = 0;
  sigmoid_learn({x, active, rows, dx, nullptr, kept}, labels, scale, &loss);
  return loss;
}

bool DenseLayer::sigmoid_step(const float* x, const ActiveSet& active, const float* kept, const Optimizer& optimizer) {
  return learn_blocks({x, active, {0, active.rows}, nullptr, &optimizer, nullptr},
                      [&](size_t first, size_t, size_t r, size_t, Scratch&, int) {
                        return std::pair<const float*, size_t>(kept_block(kept, active, first, r), BLOCK);
                      });
}

bool DenseLayer::sigmoid_learn(const Pass& pass, const FoundLabels& labels, float scale, double* loss) {
  const Kernels& kernel = kernels();
  const ActiveSet& active = pass.active;
  const size_t inputs = weights_.stride, ld = spread(inputs);
  const AddedByBlock added(active.added, pass.rows, block_count(active.ids.size()));
  struct alignas(2 * CACHE_LINE) State {  // of a thread
    BlockTerms terms;
    const Entry* label;  // the next one of its block
    size_t next_added;
    std::vector<Correction> corrections;
    double loss = 0;
  };
  std::vector<State> states(static_cast<size_t>(pass.parts));
  const bool fine = learn_blocks(pass, [&](size_t first, size_t count, size_t r, size_t chunk, Scratch& s, int thread) {
    State& state = states[static_cast<size_t>(thread)];
    const size_t block = first / BLOCK;
    if (r == pass.rows.begin) {
      pack(active, first, count, s.packed.data(), s.room);
      state.terms = BlockTerms(active, bias_, first, count);
      state.label = labels.begin(block, r);
      state.next_added = added.first(block, pass.rows.begin);
    }
    float* z = pass.kept ? kept_block(pass.kept, active, first, r) : s.logits.data();
    kernel.gemm(chunk, BLOCK, inputs, &batch_[r * ld], ld, 1, s.packed.data(), PACKED, z, BLOCK, false, nullptr);
    added.add(block, r, chunk, z, BLOCK, 1, state.next_added);
    const Entry* const begin = state.label;
    state.corrections.clear();
    for (; state.label != labels.end(block) && state.label->row < r + chunk; ++state.label) {
      const Entry& e = *state.label;
      const float logit = z[(e.row - r) * BLOCK + e.column] + state.terms.bias[e.column];
      state.corrections.push_back(sigmoid_label(labels.targets[e.element], state.terms.weight[e.column], logit));
      state.loss += state.corrections.back().loss;
    }
    for (size_t i = 0; i < chunk; ++i) {
      state.loss += kernel.sigmoid_gradient(z + i * BLOCK, state.terms.bias, state.terms.weight, BLOCK, scale);
    }
    for (size_t k = 0; k < state.corrections.size(); ++k) {
      z[(begin[k].row - r) * BLOCK + begin[k].column] += scale * state.corrections[k].gradient;
    }
    return std::pair<const float*, size_t>(z, BLOCK);
  });
  *loss = 0;
  for (const State& s : states) *loss += s.loss;
  return fine;
}

void DenseLayer::begin_dx(size_t rows, int parts) {
  scratch_.resize(static_cast<size_t>(parts));
  run(parts,
      [&](int thread) { scratch_[static_cast<size_t>(thread)].dx.assign(rows * spread(weights_.stride), 0.0f); });
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
