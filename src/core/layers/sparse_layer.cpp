#include "layers/sparse_layer.hpp"
#include <algorithm>
#include <atomic>

namespace dslide {
namespace {
constexpr size_t ROWS = 8;                // rows of the batch per task
constexpr size_t INPUTS = 256;            // inputs per task
constexpr size_t PREFETCH_DISTANCE = 16;  // in inputs

// Position in active.ids of a slot of a row.
size_t slot_position(const ActiveSet& active, Range slots, size_t slot) {
  return active.is_per_row ? static_cast<size_t>(active.position[slot]) : slot - slots.begin;
}
}  // namespace

SparseLayer::SparseLayer(const Parameters& weights, const Parameters& bias) : weights_(weights), bias_(bias) {
  check_bias(bias, weights.width);
}

void SparseLayer::forward(const Csr& x, const DenseInputs& dense, const ActiveSet& active, float* z, size_t ldz) {
  std::vector<float> bias(bias_.rows);
  for (size_t j = 0; j < bias.size(); ++j) bias[j] = bias_.at(j, 0);
  parallel_for_dynamic(active.rows, ROWS, threads(), [&](size_t begin, size_t end, int) {
    for (size_t i = begin; i < end; ++i) {
      const int64_t first = x.offsets[i];
      const size_t count = x.offsets[i + 1] - first;
      if (active.is_everything) {
        float* out = z + i * ldz;
        std::copy(bias.begin(), bias.end(), out);
        weights_.add_rows(x.ids + first, x.values + first, count, x.offsets[end] - first, out);
        continue;
      }
      const Range slots = active.slots_of(i);
      for (size_t s = slots.begin; s < slots.end; ++s) {
        const size_t neuron = active.ids[slot_position(active, slots, s)];
        float sum = bias[neuron];
        for (int64_t e = first; e < x.offsets[i + 1]; ++e) {
          sum += x.values[e] * weights_.at(x.ids[e], neuron);
        }
        z[s] = sum;
      }
    }
  });
  products_.add(weights_, dense, z, ldz);
}

bool SparseLayer::learn(const Csr& x, const DenseInputs& dense, const ActiveSet& active, const float* dz, size_t ldz,
                        float* dx, const Optimizer& optimizer, const GroupedInputs* given) {
  if (!given) group_by_input(x, groups_);
  const std::vector<InputGroups>& groups = given ? given->parts : groups_;
  std::atomic<bool> finite = true;
  const auto inputs_of = [&](size_t t) { return groups[t].input.size(); };
  parallel_for_queues(static_cast<int>(groups.size()), inputs_of, INPUTS, [&](size_t t, size_t begin, size_t end, int) {
    const InputGroups& g = groups[t];
    if (!(active.is_everything ? learn_dense(g, {begin, end}, dz, ldz, dx, optimizer)
                               : learn_sampled(g, {begin, end}, active, dz, dx, optimizer))) {
      finite = false;
    }
  });
  if (!products_.step(weights_, dense, dz, ldz, optimizer)) finite = false;
  return learn_bias(active, dz, ldz, optimizer) && finite;
}

bool SparseLayer::learn_dense(const InputGroups& g, Range some, const float* dz, size_t ldz, float* dx,
                              const Optimizer& optimizer) const {
  const Kernels& kernel = kernels();
  const size_t neurons = weights_.width;
  bool finite = true;
  AlignedFloats gradient(neurons), widened(weights_.scratch_floats(1));
  for (size_t k = some.end; k-- > some.begin;) {  // backwards: the inputs before these are next
    if (k >= PREFETCH_DISTANCE) weights_.prefetch_row(g.input[k - PREFETCH_DISTANCE]);
    const size_t input = g.input[k], first = g.begin[k], count = g.begin[k + 1] - first;
    std::fill(gradient.begin(), gradient.end(), 0.0f);
    kernel.weighted_sum(gradient.data(), neurons, &g.row[first], &g.value[first], count, count, dz, ldz);
    if (dx) {
      const float* w = weights_.row(input, widened.data());
      for (size_t e = first; e < first + count; ++e) dx[g.element[e]] = kernel.dot(w, dz + g.row[e] * ldz, neurons);
    }
    if (!weights_.update(input, gradient.data(), optimizer)) finite = false;
  }
  return finite;
}

bool SparseLayer::learn_sampled(const InputGroups& g, Range some, const ActiveSet& active, const float* dz, float* dx,
                                const Optimizer& optimizer) const {
  bool finite = true;
  std::vector<float> sum(active.ids.size()), gradient;  // by position; by touched column
  std::vector<uint8_t> touched(active.ids.size(), 0);
  std::vector<int32_t> positions, columns;
  for (size_t k = some.begin; k < some.end; ++k) {
    const size_t input = g.input[k];
    positions.clear();
    for (size_t e = g.begin[k]; e < g.begin[k + 1]; ++e) {
      const Range slots = active.slots_of(g.row[e]);
      float back = 0;
      for (size_t s = slots.begin; s < slots.end; ++s) {
        const size_t p = slot_position(active, slots, s);
        if (!touched[p]) {
          touched[p] = 1;
          sum[p] = 0;
          positions.push_back(static_cast<int32_t>(p));
        }
        sum[p] += g.value[e] * dz[s];
        back += weights_.at(input, active.ids[p]) * dz[s];
      }
      if (dx) dx[g.element[e]] = back;
    }
    gradient.clear();
    columns.clear();
    for (const int32_t p : positions) {
      touched[p] = 0;
      gradient.push_back(sum[p]);
      columns.push_back(active.ids[p]);
    }
    if (!weights_.update_columns(input, columns.data(), columns.size(), gradient.data(), optimizer)) finite = false;
  }
  return finite;
}

bool SparseLayer::learn_bias(const ActiveSet& active, const float* dz, size_t ldz, const Optimizer& optimizer) {
  std::vector<float> gradient(active.ids.size(), 0.0f);
  if (active.is_everything) kernels().column_sums(active.rows, gradient.size(), dz, ldz, gradient.data());
  for (size_t i = 0; i < active.rows && !active.is_everything; ++i) {
    const Range slots = active.slots_of(i);
    for (size_t s = slots.begin; s < slots.end; ++s) gradient[slot_position(active, slots, s)] += dz[s];
  }
  bool finite = true;
  for (size_t p = 0; p < gradient.size(); ++p) {
    finite = bias_.update(active.ids[p], &gradient[p], optimizer) && finite;
  }
  return finite;
}
}  // namespace dslide
