#include "layers/dense_inputs.hpp"
#include <algorithm>
#include <atomic>
#include <cstring>
#include "layers/block.hpp"
#include "runtime/thread_pool.hpp"

namespace dslide {
namespace {
constexpr size_t ROWS = 96;    // rows of the batch per task; a multiple of a product's tiles of 6 and 3 rows
constexpr size_t INPUTS = 48;  // inputs per task
constexpr size_t PACKED_AT_ONCE = 8;

size_t padded_width(size_t width) { return (width + LANES - 1) / LANES * LANES; }
}  // namespace

void DenseInputProducts::add(const Parameters& weights, const DenseInputs& in, float* z, size_t ldz) {
  if (!in) return;
  const size_t width = padded_width(weights.width), panel = in.inputs * PACKED, panels = block_count(width);
  packed_.resize(std::max(packed_.size(), panels * panel));
  parallel_for(in.inputs, PACKED_AT_ONCE, threads(), [&](size_t begin, size_t end, int) {
    AlignedFloats widened(weights.scratch_floats(1));
    for (size_t i = begin; i < end; ++i) {
      const float* w = weights.row(in.first + i, widened.data());
      for (size_t c = 0; c < width; c += BLOCK) {
        std::memcpy(&packed_[c / BLOCK * panel + i * PACKED], w + c, std::min(BLOCK, width - c) * sizeof(float));
      }
    }
  });
  const size_t chunks = (in.rows + ROWS - 1) / ROWS;
  parallel_for_dynamic(panels * chunks, 1, threads(), [&](size_t begin, size_t end, int) {
    for (size_t t = begin; t < end; ++t) {
      const size_t p = t / chunks, r = t % chunks * ROWS, c = p * BLOCK;
      kernels().gemm(std::min(ROWS, in.rows - r), std::min(BLOCK, width - c), in.inputs, in.x + r * in.stride,
                     in.stride, 1, &packed_[p * panel], PACKED, z + r * ldz + c, ldz, true, nullptr);
    }
  });
}

bool DenseInputProducts::step(const Parameters& weights, const DenseInputs& in, const float* dz, size_t ldz,
                              const Optimizer& optimizer) {
  if (!in) return true;
  const size_t width = padded_width(weights.width), ld = padded_stride(width);
  gradient_.resize(std::max(gradient_.size(), in.rows * ld));
  parallel_each(in.rows, [&](size_t r) {
    std::copy_n(dz + r * ldz, weights.width, &gradient_[r * ld]);
    std::fill(&gradient_[r * ld] + weights.width, &gradient_[r * ld] + width, 0.0f);
  });
  std::atomic<bool> finite = true;
  parallel_for_dynamic(in.inputs, INPUTS, threads(), [&](size_t begin, size_t end, int) {
    AlignedFloats gradient((end - begin) * ld);
    kernels().gemm(end - begin, width, in.rows, in.x + begin, 1, in.stride, gradient_.data(), ld, gradient.data(), ld,
                   false, nullptr);
    for (size_t i = begin; i < end; ++i) {
      if (!weights.update(in.first + i, &gradient[(i - begin) * ld], optimizer)) finite = false;
    }
  });
  return finite;
}
}  // namespace dslide
