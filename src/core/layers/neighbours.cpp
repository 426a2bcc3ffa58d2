#include "layers/neighbours.hpp"
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>
#include "layers/top_k.hpp"
#include "runtime/memory.hpp"
#include "runtime/thread_pool.hpp"

namespace dslide {
namespace {
constexpr size_t FEW_ROWS = 4;  // fewer are not worth waking threads for

// The rows scaled to length 1; a row of zeros stays as it is.
AlignedFloats of_length_one(const float* h, size_t rows, size_t stride) {
  AlignedFloats unit(rows * stride);
  for (size_t i = 0; i < rows; ++i) {
    const float* row = h + i * stride;
    const float square = std::inner_product(row, row + stride, row, 0.0f), factor = 1 / std::sqrt(square);
    for (size_t j = 0; j < stride; ++j) unit[i * stride + j] = square > 0 ? factor * row[j] : 0.0f;
  }
  return unit;
}

// Labels of a row by number, to find their places.
class Places {
 public:
  void set(std::span<const int32_t> labels) {
    sorted_.clear();
    for (size_t j = 0; j < labels.size(); ++j) sorted_.push_back({labels[j], j});
    std::sort(sorted_.begin(), sorted_.end());
  }
  // use(place) for each place of a label.
  template <class Use> void each(int32_t label, const Use& use) const {
    auto at = std::lower_bound(sorted_.begin(), sorted_.end(), std::pair<int32_t, size_t>{label, 0});
    for (; at != sorted_.end() && at->first == label; ++at) use(at->second);
  }

 private:
  std::vector<std::pair<int32_t, size_t>> sorted_;
};
}  // namespace

void NeighbourIndex::votes(const float* h, size_t rows, const int32_t* wanted, size_t labels,
                           const NeighbourOptions& options, float* votes) const {
  const size_t probes = options.probes, width = stride();
  const AlignedFloats unit = of_length_one(h, rows, width);
  std::vector<int32_t> cells(rows * probes);
  std::vector<float> nearness(rows * probes);
  centres_.topk(unit.data(), rows, probes, {}, {}, {}, cells.data(), nearness.data());
  const Parameters& vectors = vectors_.weights();
  parallel_for(rows, 1, rows < FEW_ROWS ? 1 : threads(), [&](size_t begin, size_t end, int) {
    TopK best;
    Places places;
    AlignedFloats widened(vectors.scratch_floats(1));
    for (size_t i = begin; i < end; ++i) {
      best.clear();
      for (size_t p = 0; p < probes; ++p) {
        const int32_t cell = cells[i * probes + p];
        if (cell < 0) continue;
        for (int64_t row = cells_[cell]; row < cells_[cell + 1]; ++row) {
          const float cosine = vectors.dot(row, &unit[i * width], widened.data());
          best.offer({cosine, static_cast<int32_t>(row)}, options.count);
        }
      }
      float* const found = votes + i * labels;
      std::fill(found, found + labels, 0.0f);
      places.set({wanted + i * labels, labels});
      float sum = 0;
      std::vector<Scored> nearest = best.all();
      std::sort(nearest.begin(), nearest.end());  // so that sums have one order
      for (const Scored& neighbour : nearest) {
        const float weight = std::pow(std::max(neighbour.score, 0.0f), options.power);
        sum += weight;
        for (const int32_t* label = labels_.begin(neighbour.id); label != labels_.end(neighbour.id); ++label) {
          places.each(*label, [&](size_t place) { found[place] += weight; });
        }
      }
      for (size_t j = 0; j < labels && sum > 0; ++j) found[j] /= sum;
    }
  });
}
}  // namespace dslide
