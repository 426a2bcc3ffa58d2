// How what softmax multiplies lies in memory, as floats or as pairs of bf16, and the products of either.
#pragma once
#include <algorithm>
#include <cstddef>
#include <type_traits>
#include <vector>

#include "kernels/kernels.hpp"
#include "layers/block.hpp"
#include "runtime/aligned.hpp"
#include "runtime/thread_pool.hpp"

namespace dslide {

template <class Number>
constexpr bool IS_FLOAT = std::is_same_v<Number, float>;

// How many such numbers hold n floats.
template <class Number>
constexpr size_t numbers_for(size_t n) {
  return IS_FLOAT<Number> ? n : (n + 1) / 2;
}

constexpr size_t whole_vectors(size_t n) { return (n + LANES - 1) / LANES * LANES; }

// Rows of the batch are laid out in chunks of CHUNK, the last one smaller. Numbers of one chunk lie close together:
// with all rows side by side each neuron or input would be on another page, and a core knows only so many pages by
// heart.
struct Chunk {
  size_t begin, end;  // rows
  size_t rows() const { return end - begin; }
  size_t wide() const { return whole_vectors(rows()); }  // columns that are computed
  size_t ld() const { return spread(wide()); }           // numbers from one row of numbers to the next
  // The same where numbers hold several rows of the batch.
  template <class Number>
  size_t ld_kept() const {
    return spread(whole_vectors(numbers_for<Number>(wide())));
  }
};

// fn(chunk) for those of a range of rows, which begins with a chunk.
template <class Fn>
void each_chunk(Range range, const Fn& fn) {
  for (size_t r = range.begin; r < range.end; r += CHUNK) fn(Chunk{r, std::min(r + CHUNK, range.end)});
}

// Numbers before the chunk that begins with a row, if every row of the batch has `height` numbers.
inline size_t chunk_at(size_t row, size_t height) { return row / CHUNK * spread(CHUNK) * height; }

// A block's exponentials, by chunk (BLOCK x rows), and behind them the references (rows).
template <class Number>
size_t kept_at(size_t row) {
  return row / CHUNK * spread(numbers_for<Number>(CHUNK)) * BLOCK;
}
template <class Number>
size_t references_at(size_t rows) {
  return kept_at<Number>(rows + CHUNK - 1);
}
template <class Number>
size_t kept_block(size_t rows) {
  return references_at<Number>(rows) + whole_vectors(rows);
}

// Adds a block's exponentials to a list of memory.
template <class Number>
void add_exponentials(const float* block, size_t rows, std::vector<Piece>& pieces) {
  each_chunk({0, rows}, [&](const Chunk& chunk) {
    const size_t lines = (numbers_for<Number>(chunk.wide()) * sizeof(Number) + CACHE_LINE - 1) / CACHE_LINE;
    for (size_t c = 0; c < BLOCK; ++c) {
      const float* const at = block + kept_at<Number>(chunk.begin) + c * chunk.ld_kept<Number>();
      pieces.push_back({reinterpret_cast<const char*>(at), lines});
    }
  });
}

// C = or += A B, as the kernels' gemm; k counts what A's rows have of floats.
inline void multiply(size_t m, size_t n, size_t k, const float* a, size_t a_row, size_t a_col, const float* b,
                     size_t ldb, float* c, size_t ldc, bool accumulate, Ahead* ahead) {
  kernels().gemm(m, n, k, a, a_row, a_col, b, ldb, c, ldc, accumulate, ahead);
}
inline void multiply(size_t m, size_t n, size_t k, const BfPair* a, size_t a_row, size_t a_col, const BfPair* b,
                     size_t ldb, float* c, size_t ldc, bool accumulate, Ahead* ahead) {
  kernels().gemm_pairs(m, n, numbers_for<BfPair>(k), a, a_row, a_col, b, ldb, c, ldc, accumulate, ahead);
}
inline float dot(const float* a, const float* b, size_t n) { return kernels().dot(a, b, n); }
inline float dot(const BfPair* a, const BfPair* b, size_t n) {
  return kernels().dot_pairs(a, b, numbers_for<BfPair>(n));
}

// Rows two by two, as a product's right side, or transposed as its left: (count x n), rows ld apart, becomes (half of
// that, rounded up, x n), rows ld_out apart; a row that is missing counts as 0.
inline void pair_rows(const float* rows, size_t count, size_t n, size_t ld, BfPair* out, size_t ld_out) {
  const Kernels& kernel = kernels();
  for (size_t i = 0; i + 1 < count; i += 2) kernel.pair_up(rows + i * ld, rows + (i + 1) * ld, n, out + i / 2 * ld_out);
  if (count % 2 == 0) return;
  const AlignedFloats nothing(n);
  kernel.pair_up(rows + (count - 1) * ld, nothing.data(), n, out + count / 2 * ld_out);
}

}  // namespace dslide
