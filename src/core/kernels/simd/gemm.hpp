// Matrix products, of floats or of whatever else two vectors can be multiplied to floats of: a kind of numbers, Of,
// says what a number is, how a vector of them and a vector of one of them are loaded, and what multiply_add() of
// vectors and of single numbers gives. Sums are floats.
#pragma once
#include "kernels/simd/vector.hpp"

namespace dslide {
namespace DSLIDE_LEVEL {
namespace {

#if defined(__AVX512F__)
constexpr int TILE_ROWS = 6;    // a gemm tile of 6 rows x 4 vectors takes 24 of 32 registers
constexpr size_t STRETCH = 32;  // steps of k between two requests for memory
#else
constexpr int TILE_ROWS = 3;     // 3 rows x 4 vectors take 12 of 16 registers, 3 + 1 are left for the factors
constexpr size_t STRETCH = 128;  // a step is a quarter of the work
#endif

// Asks for a line of each of the next few pieces. A request for a page not used lately holds up what comes behind it
// until the page is found; those of several pieces are found at once.
inline void fetch_some(Ahead* ahead) {
  if (!ahead) return;
  constexpr ptrdiff_t TOGETHER = 16;
  const Piece* const last = ahead->end - ahead->next > TOGETHER ? ahead->next + TOGETHER : ahead->end;
  const size_t line = ahead->line++;
  bool more = false;
  for (const Piece* piece = ahead->next; piece != last; ++piece) {
    if (line >= piece->lines) continue;
    __builtin_prefetch(piece->at + line * 64, 0, 2);  // into a farther cache: the product needs this one
    more |= line + 1 < piece->lines;
  }
  if (more) return;
  ahead->next = last;
  ahead->line = 0;
}

// ROWS x (VECTORS * W) of C, held in registers over the whole of k. Of A and B the smaller side is held as well while
// the other passes by. Four steps of k at a time: with one, counting and branching take a sixth of the time. Whether to
// accumulate is known to the compiler: deciding it here would put every sum into memory and back before the loop.
template <class Of, int ROWS, int VECTORS, bool ACCUMULATE>
inline void tile(size_t k, const typename Of::Number* a, size_t a_row, size_t a_col, const typename Of::Number* b,
                 size_t ldb, float* c, size_t ldc, Ahead* ahead) {
  V sum[ROWS][VECTORS];
#pragma GCC unroll 8
  for (int i = 0; i < ROWS; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < VECTORS; ++j) sum[i][j] = ACCUMULATE ? load(c + i * ldc + j * W) : V{};
  }
  for (size_t from = 0; from < k; from += STRETCH) {
    fetch_some(ahead);
    const size_t to = k - from < STRETCH ? k : from + STRETCH;
#pragma GCC unroll 4
    for (size_t p = from; p < to; ++p) {
      if constexpr (ROWS < VECTORS) {
        typename Of::Vector left[ROWS];
#pragma GCC unroll 8
        for (int i = 0; i < ROWS; ++i) left[i] = Of::each(a + i * a_row + p * a_col);
#pragma GCC unroll 8
        for (int j = 0; j < VECTORS; ++j) {
          const typename Of::Vector right = Of::many(b + p * ldb + j * W);
#pragma GCC unroll 8
          for (int i = 0; i < ROWS; ++i) sum[i][j] = Of::multiply_add(left[i], right, sum[i][j]);
        }
      } else {
        typename Of::Vector right[VECTORS];
#pragma GCC unroll 8
        for (int j = 0; j < VECTORS; ++j) right[j] = Of::many(b + p * ldb + j * W);
#pragma GCC unroll 8
        for (int i = 0; i < ROWS; ++i) {
          const typename Of::Vector left = Of::each(a + i * a_row + p * a_col);
#pragma GCC unroll 8
          for (int j = 0; j < VECTORS; ++j) sum[i][j] = Of::multiply_add(left, right[j], sum[i][j]);
        }
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < ROWS; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < VECTORS; ++j) store(c + i * ldc + j * W, sum[i][j]);
  }
}

// All m rows of a panel of VECTORS * W columns, ROWS at a time.
template <class Of, int ROWS, int VECTORS, bool ACCUMULATE>
void panel(size_t m, size_t k, const typename Of::Number* a, size_t a_row, size_t a_col, const typename Of::Number* b,
           size_t ldb, float* c, size_t ldc, Ahead* ahead) {
  size_t i = 0;
  for (; i + ROWS <= m && (m - i != ROWS + 1 || ROWS == 1); i += ROWS) {  // two small tiles rather than a single row
    tile<Of, ROWS, VECTORS, ACCUMULATE>(k, a + i * a_row, a_row, a_col, b, ldb, c + i * ldc, ldc, ahead);
  }
  if constexpr (ROWS > 1) {
    if (i < m) {
      panel<Of, (ROWS + 1) / 2, VECTORS, ACCUMULATE>(m - i, k, a + i * a_row, a_row, a_col, b, ldb, c + i * ldc, ldc,
                                                     ahead);
    }
  }
}

template <class Of, bool ACCUMULATE>
void product(size_t m, size_t n, size_t k, const typename Of::Number* a, size_t a_row, size_t a_col,
             const typename Of::Number* b, size_t ldb, float* c, size_t ldc, Ahead* ahead) {
  size_t j = 0;
  for (; j + 4 * W <= n; j += 4 * W) {
    panel<Of, TILE_ROWS, 4, ACCUMULATE>(m, k, a, a_row, a_col, b + j, ldb, c + j, ldc, ahead);
  }
  for (; j + W <= n; j += W) panel<Of, 6, 1, ACCUMULATE>(m, k, a, a_row, a_col, b + j, ldb, c + j, ldc, ahead);
  for (; j < n; ++j) {
    for (size_t i = 0; i < m; ++i) {
      float sum = ACCUMULATE ? c[i * ldc + j] : 0.0f;
      for (size_t p = 0; p < k; ++p) sum = Of::multiply_add(a[i * a_row + p * a_col], b[p * ldb + j], sum);
      c[i * ldc + j] = sum;
    }
  }
}

}  // namespace
}  // namespace DSLIDE_LEVEL
}  // namespace dslide
