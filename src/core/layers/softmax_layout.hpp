// Memory layout of the operands of softmax, as floats or as bf16 pairs, and the products of either.
#pragma once
#include <algorithm>
#include <type_traits>
#include <vector>
#include "kernels/kernels.hpp"
#include "layers/block.hpp"
#include "runtime/memory.hpp"
#include "runtime/thread_pool.hpp"

namespace dslide {
template <class Number> constexpr bool IS_FLOAT = std::is_same_v<Number, float>;

// Numbers that hold n floats.
template <class Number> constexpr size_t numbers_for(size_t n) { return IS_FLOAT<Number> ? n : (n + 1) / 2; }

constexpr size_t whole_vectors(size_t n) { return (n + LANES - 1) / LANES * LANES; }

// The rows of the batch are stored in chunks of CHUNK; the last one may be smaller. With all rows adjacent instead,
// each neuron or input would be on a page of its own, and the TLB is small.
struct Chunk {
  size_t begin, end;  // rows
  size_t rows() const { return end - begin; }
  size_t width() const { return whole_vectors(rows()); }  // columns that are computed
  size_t ld() const { return padded_stride(width()); }    // leading dimension, in numbers
  // The same for numbers that hold several rows of the batch.
  template <class Number> size_t ld_kept() const { return padded_stride(whole_vectors(numbers_for<Number>(width()))); }
};

// fn(chunk) for the chunks of a range of rows, which must begin at a chunk.
template <class Fn> void each_chunk(Range range, const Fn& fn) {
  for (size_t r = range.begin; r < range.end; r += CHUNK) fn(Chunk{r, std::min(r + CHUNK, range.end)});
}

// Offset of the chunk that begins at `row`, if each row of the batch has `height` numbers.
inline size_t chunk_at(size_t row, size_t height) { return row / CHUNK * padded_stride(CHUNK) * height; }

// A kept block: its exponentials by chunk (BLOCK x rows), followed by the references (rows). Offsets in floats.
template <class Number> size_t kept_at(size_t row) {
  return row / CHUNK * padded_stride(numbers_for<Number>(CHUNK)) * BLOCK;
}
template <class Number> size_t references_at(size_t rows) { return kept_at<Number>(rows + CHUNK - 1); }
template <class Number> size_t kept_block(size_t rows) { return references_at<Number>(rows) + whole_vectors(rows); }

// Appends the cache lines of a block's exponentials to a list.
template <class Number> void add_exponentials(const float* block, size_t rows, std::vector<CacheLines>& ranges) {
  each_chunk({0, rows}, [&](const Chunk& chunk) {
    const size_t lines = (numbers_for<Number>(chunk.width()) * sizeof(Number) + CACHE_LINE - 1) / CACHE_LINE;
    for (size_t c = 0; c < BLOCK; ++c) {
      const float* const at = block + kept_at<Number>(chunk.begin) + c * chunk.ld_kept<Number>();
      ranges.push_back({reinterpret_cast<const char*>(at), lines});
    }
  });
}

// C = or += A B, as gemm of the kernels; k is in floats.
inline void multiply(size_t m, size_t n, size_t k, const float* a, size_t a_row, size_t a_col, const float* b,
                     size_t ldb, float* c, size_t ldc, bool accumulate, PrefetchQueue* queue) {
  kernels().gemm(m, n, k, a, a_row, a_col, b, ldb, c, ldc, accumulate, queue);
}
inline void multiply(size_t m, size_t n, size_t k, const Bf16Pair* a, size_t a_row, size_t a_col, const Bf16Pair* b,
                     size_t ldb, float* c, size_t ldc, bool accumulate, PrefetchQueue* queue) {
  kernels().gemm_pairs(m, n, numbers_for<Bf16Pair>(k), a, a_row, a_col, b, ldb, c, ldc, accumulate, queue);
}
inline float dot(const float* a, const float* b, size_t n) { return kernels().dot(a, b, n); }
inline float dot(const Bf16Pair* a, const Bf16Pair* b, size_t n) {
  return kernels().dot_pairs(a, b, numbers_for<Bf16Pair>(n));
}

// The i-th float.
inline float number_at(const float* x, size_t i) { return x[i]; }
inline float number_at(const Bf16Pair* x, size_t i) {
  return widen(Bf16{static_cast<uint16_t>(x[i / 2].bits >> (i % 2 * 16))});
}

// Pairs adjacent rows, for the right operand of a product or (transposed) the left one: (count x n) with leading
// dimension ld becomes (ceil(count / 2) x n) with leading dimension ld_out; a missing last row counts as 0.
inline void pair_rows(const float* rows, size_t count, size_t n, size_t ld, Bf16Pair* out, size_t ld_out) {
  const Kernels& kernel = kernels();
  for (size_t i = 0; i + 1 < count; i += 2) kernel.pair_up(rows + i * ld, rows + (i + 1) * ld, n, out + i / 2 * ld_out);
  if (count % 2 == 0) return;
  const AlignedFloats zeros(n);
  kernel.pair_up(rows + (count - 1) * ld, zeros.data(), n, out + count / 2 * ld_out);
}
}  // namespace dslide
