#include "layers/topk_of_cells.hpp"
#include <algorithm>
#include <vector>
#include "layers/candidates.hpp"
#include "layers/neuron_sums.hpp"
#include "layers/top_k.hpp"
#include "runtime/thread_pool.hpp"

namespace dslide {
namespace {
constexpr size_t PREFETCH_DISTANCE = 8;  // in candidates

struct Candidate {
  int32_t neuron;
  float prior;
};

// Scratch memory of a thread.
struct Scratch {
  std::vector<Candidate> candidates;
  std::vector<uint64_t> keys, ranked;
  TopK best;
  std::vector<Scored> written;
  AlignedFloats widened;
};

// Rows by list, so that the weights of a list's neurons are in cache for all of its rows.
std::vector<uint32_t> by_list(std::span<const int32_t> list_of, size_t lists) {
  std::vector<uint32_t> next(lists + 1), order(list_of.size());
  for (const int32_t list : list_of) ++next[list + 1];
  for (size_t list = 0; list < lists; ++list) next[list + 1] += next[list];
  for (size_t i = 0; i < list_of.size(); ++i) order[next[list_of[i]]++] = static_cast<uint32_t>(i);
  return order;
}

// The neurons of a cell, with what the prior adds to them, and then the best of the prior.
void find_candidates(const int32_t* first, const int32_t* last, NeuronSums& sums, const DenseLayer& layer, size_t want,
                     Scratch& scratch) {
  std::vector<Candidate>& found = scratch.candidates;
  found.clear();
  for (; first != last; ++first) {
    NeuronSums::Slot* const slot = sums.find(*first);
    if (slot) slot->is_chosen = true;
    found.push_back({*first, slot ? slot->sum : 0.0f});
  }
  scratch.keys.resize(sums.size());
  for (size_t j = 0; j < sums.size(); ++j) {
    scratch.keys[j] = rank_key(sums[j].sum + layer.bias().at(sums[j].neuron, 0), sums[j].neuron);
  }
  const uint64_t least = least_of_best(scratch.keys, want, scratch.ranked);
  for (size_t j = 0; j < sums.size(); ++j) {
    if (scratch.keys[j] >= least && !sums[j].is_chosen) found.push_back({sums[j].neuron, sums[j].sum});
  }
}
}  // namespace

void topk_of_cells(const DenseLayer& layer, const float* h, const Csr& cells, std::span<const int32_t> list_of,
                   const PriorOfRows& prior, const Csr& excluded, size_t k, const Calibration& calibration,
                   int32_t* ids, float* scores) {
  const Parameters &weights = layer.weights(), &bias = layer.bias();
  const std::vector<uint32_t> order = by_list(list_of, cells.rows);
  const int parts = order.size() < 2 ? 1 : threads();
  static ScratchPool<Scratch> free_scratch;
  static ScratchPool<NeuronSums> free_sums;
  parallel_for(order.size(), 1, parts, [&](size_t begin, size_t end, int) {
    ScratchPool<Scratch>::Lease scratch_lease(free_scratch);
    ScratchPool<NeuronSums>::Lease sums_lease(free_sums);
    Scratch& scratch = *scratch_lease;
    NeuronSums& sums = *sums_lease;
    scratch.widened.resize(weights.scratch_floats(1));
    for (size_t place = begin; place < end; ++place) {
      const size_t i = order[place];
      if (prior.prior) prior.prior->logits_of_row(prior.x, i, prior.norms[i], sums);
      find_candidates(cells.begin(list_of[i]), cells.end(list_of[i]), sums, layer, prior.want, scratch);
      sums.clear();
      std::vector<Candidate>& found = scratch.candidates;
      if (excluded) {
        std::erase_if(found, [&](const Candidate& each) {
          return std::binary_search(excluded.begin(i), excluded.end(i), each.neuron);
        });
      }
      scratch.best.clear();
      for (size_t j = 0; j < found.size(); ++j) {
        if (j + PREFETCH_DISTANCE < found.size()) weights.prefetch_value(found[j + PREFETCH_DISTANCE].neuron);
        const auto [neuron, added] = found[j];
        const float z =
            weights.dot(neuron, h + i * weights.stride, scratch.widened.data()) + bias.at(neuron, 0) + added;
        scratch.best.offer({calibration.score(z, neuron), neuron}, k);
      }
      scratch.written = scratch.best.all();
      write_row(scratch.written, k, ids + i * k, scores + i * k);
    }
  });
}
}  // namespace dslide
