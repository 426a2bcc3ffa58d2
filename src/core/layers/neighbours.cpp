#include "layers/neighbours.hpp"
#include <algorithm>
#include <bit>
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

// Where some labels are among those that votes are wanted for: lists of places by hash value.
class Places {
 public:
  void set(std::span<const int32_t> labels) {
    labels_ = labels;
    shift_ = 32 - std::bit_width(labels.size() | 1);
    first_.assign(size_t{1} << (32 - shift_), NONE);
    next_.resize(labels.size());
    for (size_t j = 0; j < labels.size(); ++j) {
      int32_t& first = first_[list_of(labels[j])];
      next_[j] = first;
      first = static_cast<int32_t>(j);
    }
  }
  // use(place) for each place of a label.
  template <class Use> void each(int32_t label, const Use& use) const {
    for (int32_t j = first_[list_of(label)]; j != NONE; j = next_[j]) {
      if (labels_[j] == label) use(j);
    }
  }

 private:
  static constexpr int32_t NONE = -1;
  size_t list_of(int32_t label) const { return static_cast<uint32_t>(label) * 0x9e3779b1u >> shift_; }

  std::span<const int32_t> labels_;
  int shift_ = 31;              // of a 32-bit hash value, which leaves the number of a list
  std::vector<int32_t> first_;  // by list
  std::vector<int32_t> next_;   // by place: the next one in its list
};
}  // namespace

void NeighbourIndex::votes(const float* h, size_t rows, const int32_t* wanted, size_t labels,
                           const NeighbourOptions& options, float* votes) const {
  if (rows == 0) return;
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
          places.each(*label, [&](int32_t place) { found[place] += weight; });
        }
      }
      for (size_t j = 0; j < labels && sum > 0; ++j) found[j] /= sum;
    }
  });
}
}  // namespace dslide
