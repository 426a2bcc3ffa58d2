#include "layers/dense_layer.hpp"
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include "layers/block.hpp"
#include "runtime/checks.hpp"

namespace dslide {
namespace {
constexpr size_t ROWS = 96;              // rows of the batch at a time: their logits (24 KB) stay in L1
constexpr size_t PREFETCH_DISTANCE = 2;  // in neurons: a second prefetch right before the step

// Kept gradients of the logits of the block at position `first`, from row r on: (rows x 64), block after block.
template <class Float> Float* kept_gradients(Float* kept, const ActiveSet& active, size_t first, size_t r) {
  return kept + (first / BLOCK * active.rows + r) * BLOCK;
}
}  // namespace

// Arguments of one pass over the blocks of active neurons.
struct DenseLayer::Pass {
  const float* x;  // (rows x stride)
  const ActiveSet& active;
  Range rows;                  // of the batch
  float* dx;                   // null: not computed
  const Optimizer* optimizer;  // null: no step
  float* kept;                 // gradients of the logits; null: not kept
  int parts = threads();
};

DenseLayer::DenseLayer(const Parameters& weights, const Parameters& bias, bool bf16_products, bool unit_rows,
                       bool steps_bias)
    : weights_(weights), bias_(bias), bf16_products_(bf16_products), unit_rows_(unit_rows), steps_bias_(steps_bias) {
  check_bias(bias, weights.rows);
  require(!unit_rows || !weights.clock || !weights.value.is_bf16, "rows of length 1 are trained as floats");
  require(weights.stride % 16 == 0, "rows of weights must be padded to a multiple of 16");
}

// Copies rows of x with a padded leading dimension: row r is at r * padded_stride(inputs).
void DenseLayer::copy_padded(const float* x, Range rows, AlignedFloats& batch) const {
  const size_t inputs = weights_.stride, ld = padded_stride(inputs);
  if (batch.size() < rows.end * ld) batch.resize(rows.end * ld);
  parallel_each(rows.size(), [&](size_t i) {
    const size_t r = rows.begin + i;
    std::memcpy(&batch[r * ld], x + r * inputs, inputs * sizeof(float));
  });
}

// What to prefetch: the optimizer state of the neurons in `stepped`, and the weights of those in `next`.
PrefetchQueue DenseLayer::prefetch_queue(const ActiveSet& active, Range stepped, Range next,
                                         std::vector<CacheLines>& ranges) const {
  ranges.clear();
  const auto add = [&](Range positions, const Parameters& of, auto member) {
    for (size_t p = positions.begin; p < positions.end; ++p) (of.*member)(active.ids[p], ranges);
  };
  add(stepped, weights_, &Parameters::add_moments);
  add(next, weights_, &Parameters::add_value);
  add(stepped, weights_, &Parameters::add_clock);
  add(stepped, bias_, &Parameters::add_moments);
  add(stepped, bias_, &Parameters::add_clock);
  add(next, bias_, &Parameters::add_value);
  return {ranges.data(), ranges.data() + ranges.size()};
}

// The transposed block: (stride x 64), columns from `count` on are zero. `widened` is scratch for bf16 rows.
void DenseLayer::pack(const ActiveSet& active, size_t first, size_t count, float* packed,
                      AlignedFloats& widened) const {
  const float* rows[BLOCK];
  widened.resize(weights_.scratch_floats(BLOCK));
  for (size_t c = 0; c < count; ++c) {
    rows[c] = weights_.row(active.ids[first + c], widened.data() + weights_.scratch_floats(c));
  }
  kernels().pack(rows, count, BLOCK, weights_.stride, packed, PACKED);
}

void DenseLayer::forward(const float* x, const ActiveSet& active, float* z, size_t ldz) {
  const Kernels& kernel = kernels();
  const size_t inputs = weights_.stride, rows = active.rows;
  if (active.is_per_row) {
    parallel_for(active.ids.size(), [&](size_t begin, size_t end, int) {
      AlignedFloats widened(weights_.scratch_floats(1));
      for (size_t p = begin; p < end; ++p) {
        const size_t neuron = active.ids[p];
        const float* w = weights_.row(neuron, widened.data());
        for (int64_t s = active.neuron_begin[p]; s < active.neuron_begin[p + 1]; ++s) {
          const size_t row = active.neuron_row[s];
          z[active.neuron_slot[s]] = kernel.dot(x + row * inputs, w, inputs) + bias_.at(neuron, 0);
        }
      }
    });
    return;
  }
  const PriorByBlock prior(active.prior, {0, rows}, block_count(active.ids.size()));
  parallel_for(active.ids.size(), BLOCK, threads(), [&](size_t begin, size_t end, int) {
    AlignedFloats packed(inputs * PACKED), logits(ROWS * BLOCK), widened;
    for (size_t first = begin; first < end; first += BLOCK) {
      const size_t count = std::min(BLOCK, end - first);
      pack(active, first, count, packed.data(), widened);
      size_t next = prior.first(first / BLOCK, 0);
      for (size_t r = 0; r < rows; r += ROWS) {
        const size_t chunk = std::min(ROWS, rows - r);
        kernel.gemm(chunk, BLOCK, inputs, x + r * inputs, inputs, 1, packed.data(), PACKED, logits.data(), BLOCK, false,
                    nullptr);
        prior.add(first / BLOCK, r, chunk, logits.data(), BLOCK, 1, next);
        for (size_t i = 0; i < chunk; ++i) {
          float* out = z + (r + i) * ldz + first;
          for (size_t c = 0; c < count; ++c) {
            out[c] = logits[i * BLOCK + c] + bias_.at(active.ids[first + c], 0);
          }
        }
      }
    }
  });
}

// Optimizer step of a neuron; the gradient of its weights may change. False: some number was not finite.
bool DenseLayer::step_neuron(size_t neuron, float* gradient, const float* bias_gradient,
                             const Optimizer& optimizer) const {
  const size_t inputs = weights_.width;
  float* const w = unit_rows_ ? static_cast<float*>(weights_.value_of(neuron).data) : nullptr;
  if (w) kernels().axpy(-kernels().dot(gradient, w, inputs), w, gradient, inputs);
  bool finite = weights_.update(neuron, gradient, optimizer);
  if (w) {
    const float square = kernels().dot(w, w, inputs);
    const float factor = square > 0 ? 1 / std::sqrt(square) : 1;
    for (size_t j = 0; j < inputs; ++j) w[j] *= factor;
  }
  if (steps_bias_) finite = bias_.update(neuron, bias_gradient, optimizer) && finite;
  return finite;
}

// Optimizer step of a block's neurons; gradients: (count x inputs, padded) and (count). False: some were not finite.
bool DenseLayer::step_block(const ActiveSet& active, size_t first, size_t count, float* gradient,
                            const float* bias_gradient, const Optimizer& optimizer) const {
  bool finite = true;
  for (size_t c = 0; c < count; ++c) {
    if (c + PREFETCH_DISTANCE < count) {
      const size_t later = active.ids[first + c + PREFETCH_DISTANCE];
      weights_.prefetch_row(later);
      bias_.prefetch_row(later);
    }
    float* const row = gradient + c * padded_stride(weights_.stride);
    finite = step_neuron(active.ids[first + c], row, bias_gradient + c, optimizer) && finite;
  }
  return finite;
}

// make_gradient(first position, count, first row, rows, scratch, thread) -> {dz of that block and chunk, its leading
// dimension}; called for a block's chunks in order.
template <class MakeGradient> bool DenseLayer::learn_blocks(const Pass& pass, const MakeGradient& make_gradient) {
  const Kernels& kernel = kernels();
  const ActiveSet& active = pass.active;
  const size_t inputs = weights_.stride, ld = padded_stride(inputs), rows = pass.rows.size();
  copy_padded(pass.x, pass.rows, batch_);
  std::atomic<bool> finite = true;
  begin_dx(pass.dx ? rows : 0, pass.parts);
  parallel_for(active.ids.size(), BLOCK, static_cast<int>(scratch_.size()), [&](size_t begin, size_t end, int thread) {
    Scratch& s = scratch_[thread];
    s.packed.resize(inputs * PACKED);
    s.gradient.resize(ld * BLOCK);
    s.logits.resize(ROWS * BLOCK);
    for (size_t block = block_count(end - begin); block-- > 0;) {  // backwards: the forward's last are still in cache
      const size_t first = begin + block * BLOCK, count = std::min(BLOCK, end - first);
      if (pass.dx) gather(active, first, count, s.gathered);
      float bias_gradient[BLOCK] = {};
      PrefetchQueue queue = prefetch_queue(active, {first, pass.optimizer ? first + count : first},
                                           {block > 0 ? first - BLOCK : first, first}, s.ranges);
      for (size_t r = pass.rows.begin; r < pass.rows.end; r += ROWS) {
        const size_t chunk = std::min(ROWS, pass.rows.end - r);
        const auto [dz, ldz] = make_gradient(first, count, r, chunk, s, thread);
        if (pass.dx) {
          kernel.gemm(chunk, inputs, count, dz, ldz, 1, s.gathered.data(), ld, &s.dx[(r - pass.rows.begin) * ld], ld,
                      true, &queue);
        }
        if (!pass.optimizer) continue;
        kernel.gemm(count, inputs, chunk, dz, 1, ldz, &batch_[r * ld], ld, s.gradient.data(), ld, r > pass.rows.begin,
                    &queue);
        kernel.column_sums(chunk, count, dz, ldz, bias_gradient);
      }
      if (pass.optimizer && !step_block(active, first, count, s.gradient.data(), bias_gradient, *pass.optimizer)) {
        finite = false;
      }
    }
  });
  if (pass.dx) sum_dx(pass.rows, pass.dx);
  return finite;
}

bool DenseLayer::learn(const float* x, const ActiveSet& active, const float* dz, size_t ldz, float* dx,
                       const Optimizer& optimizer) {
  if (active.is_per_row) return learn_per_row(x, active, dz, dx, optimizer);
  return learn_blocks(
      {x, active, {0, active.rows}, dx, &optimizer, nullptr},
      [&](size_t first, size_t, size_t r, size_t, Scratch&, int) { return std::pair(dz + r * ldz + first, ldz); });
}

bool DenseLayer::learn_per_row(const float* x, const ActiveSet& active, const float* dz, float* dx,
                               const Optimizer& optimizer) {
  const Kernels& kernel = kernels();
  const size_t inputs = weights_.stride;
  std::atomic<bool> finite = true;
  begin_dx(active.rows, threads());
  parallel_for(active.ids.size(), 1, static_cast<int>(scratch_.size()), [&](size_t begin, size_t end, int thread) {
    Scratch& s = scratch_[thread];
    s.gradient.resize(std::max(s.gradient.size(), inputs));
    s.widened.resize(weights_.scratch_floats(1));
    for (size_t p = begin; p < end; ++p) {
      const size_t neuron = active.ids[p];
      const float* w = weights_.row(neuron, s.widened.data());
      std::fill_n(s.gradient.begin(), inputs, 0.0f);
      float bias_gradient = 0;
      for (int64_t e = active.neuron_begin[p]; e < active.neuron_begin[p + 1]; ++e) {
        const size_t row = active.neuron_row[e];
        const float g = dz[active.neuron_slot[e]];
        kernel.axpy(g, x + row * inputs, s.gradient.data(), inputs);
        kernel.axpy(g, w, &s.dx[row * padded_stride(inputs)], inputs);
        bias_gradient += g;
      }
      if (!step_neuron(neuron, s.gradient.data(), &bias_gradient, optimizer)) finite = false;
    }
  });
  sum_dx({0, active.rows}, dx);
  return finite;
}

bool DenseLayer::sigmoid_learn(const float* x, ActiveSet& active, const FoundLabels& labels, float scale, float* dx,
                               const Optimizer& optimizer, double* loss) {
  const Pass pass{x, active, {0, active.rows}, dx, &optimizer, nullptr};
  return sigmoid_learn(pass, labels, scale, loss, active.prior.gradient.data());
}

double DenseLayer::sigmoid_backward(const float* x, ActiveSet& active, Range rows, const FoundLabels& labels,
                                    float scale, float* dx, float* kept) {
  double loss = 0;
  const Pass pass{x, active, rows, dx, nullptr, kept};
  sigmoid_learn(pass, labels, scale, &loss, active.prior.gradient.data());
  return loss;
}

bool DenseLayer::sigmoid_step(const float* x, const ActiveSet& active, const float* kept, const Optimizer& optimizer) {
  return learn_blocks({x, active, {0, active.rows}, nullptr, &optimizer, nullptr},
                      [&](size_t first, size_t, size_t r, size_t, Scratch&, int) {
    return std::pair(kept_gradients(kept, active, first, r), BLOCK);
  });
}

bool DenseLayer::sigmoid_learn(const Pass& pass, const FoundLabels& labels, float scale, double* loss,
                               float* prior_gradient) {
  const Kernels& kernel = kernels();
  const ActiveSet& active = pass.active;
  const size_t inputs = weights_.stride, ld = padded_stride(inputs);
  const PriorByBlock prior(active.prior, pass.rows, block_count(active.ids.size()));
  struct alignas(2 * CACHE_LINE) State {  // per thread
    BlockTerms terms;
    const Entry* label;  // the next label of the block
    size_t next_prior;
    std::vector<Correction> corrections;
    double loss = 0;
  };
  std::vector<State> states(pass.parts);
  const bool finite =
      learn_blocks(pass, [&](size_t first, size_t count, size_t r, size_t chunk, Scratch& s, int thread) {
    State& state = states[thread];
    const size_t block = first / BLOCK;
    if (r == pass.rows.begin) {
      pack(active, first, count, s.packed.data(), s.widened);
      state.terms = BlockTerms(active, bias_, first, count);
      state.label = labels.begin(block, r);
      state.next_prior = prior.first(block, pass.rows.begin);
    }
    float* z = pass.kept ? kept_gradients(pass.kept, active, first, r) : s.logits.data();
    kernel.gemm(chunk, BLOCK, inputs, &batch_[r * ld], ld, 1, s.packed.data(), PACKED, z, BLOCK, false, nullptr);
    prior.add(block, r, chunk, z, BLOCK, 1, state.next_prior);
    const Entry* const begin = state.label;
    state.corrections.clear();
    for (; state.label != labels.end(block) && state.label->row < r + chunk; ++state.label) {
      const Entry& e = *state.label;
      const float logit = z[(e.row - r) * BLOCK + e.column] + state.terms.bias[e.column];
      state.corrections.push_back(sigmoid_label(labels.target(e.element), state.terms.weight[e.column], logit));
      state.loss += state.corrections.back().loss;
    }
    for (size_t i = 0; i < chunk; ++i) {
      state.loss += kernel.sigmoid_gradient(z + i * BLOCK, state.terms.bias, state.terms.weight, BLOCK, scale);
    }
    for (size_t k = 0; k < state.corrections.size(); ++k) {
      z[(begin[k].row - r) * BLOCK + begin[k].column] += scale * state.corrections[k].gradient;
    }
    if (prior_gradient) {
      prior.each(block, r, chunk,
                 [&](const Entry& e) { prior_gradient[e.element] = z[(e.row - r) * BLOCK + e.column]; });
    }
    return std::pair(z, BLOCK);
  });
  *loss = 0;
  for (const State& s : states) *loss += s.loss;
  return finite;
}

void DenseLayer::begin_dx(size_t rows, int parts) {
  scratch_.resize(parts);
  run_threads(parts, [&](int thread) { scratch_[thread].dx.assign(rows * padded_stride(weights_.stride), 0.0f); });
}

void DenseLayer::sum_dx(Range rows, float* dx) const {
  const size_t inputs = weights_.stride, ld = padded_stride(inputs);
  parallel_each(rows.size(), [&](size_t r) {
    float* out = dx + (rows.begin + r) * inputs;
    std::memcpy(out, &scratch_[0].dx[r * ld], inputs * sizeof(float));
    for (size_t t = 1; t < scratch_.size(); ++t) kernels().axpy(1.0f, &scratch_[t].dx[r * ld], out, inputs);
  });
}
}  // namespace dslide
