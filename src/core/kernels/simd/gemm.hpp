// Matrix product for any element type. `Of` defines the element, how to load a vector of elements and broadcast one,
// and multiply_add() of vectors and of single elements. Sums are floats.
#pragma once
#include "kernels/simd/vector.hpp"

namespace dslide::DSLIDE_LEVEL {
namespace {
#if defined(__AVX512F__)
constexpr int TILE_ROWS = 6;    // a tile of 6 rows x 4 vectors uses 24 of 32 registers
constexpr size_t STRETCH = 32;  // steps of k between prefetches
#else
constexpr int TILE_ROWS = 3;     // 3 rows x 4 vectors use 12 of 16 registers, 4 are left for the operands
constexpr size_t STRETCH = 128;  // a step does a quarter of the work
#endif

// Prefetches one line of each of the next few ranges. A prefetch that misses the TLB blocks those behind it until the
// page walk ends; page walks of several ranges overlap.
inline void prefetch_some(PrefetchQueue* queue) {
  if (!queue) return;
  constexpr ptrdiff_t TOGETHER = 16;
  const CacheLines* const last = queue->end - queue->next > TOGETHER ? queue->next + TOGETHER : queue->end;
  const size_t line = queue->line++;
  bool more = false;
  for (const CacheLines* range = queue->next; range != last; ++range) {
    if (line >= range->lines) continue;
    __builtin_prefetch(range->at + line * 64, 0, 2);  // into L2: the product needs L1
    more |= line + 1 < range->lines;
  }
  if (more) return;
  queue->next = last;
  queue->line = 0;
}

// ROWS x (VECTORS * W) of C, kept in registers over the whole of k. The smaller of A's and B's slice is kept in
// registers too, the other is streamed. Unrolled by four: otherwise loop overhead takes a sixth of the time. ACCUMULATE
// is a template argument: as a runtime branch it would spill every sum before the loop.
template <class Of, int ROWS, int VECTORS, bool ACCUMULATE>
inline void tile(size_t k, const typename Of::Number* a, size_t a_row, size_t a_col, const typename Of::Number* b,
                 size_t ldb, float* c, size_t ldc, PrefetchQueue* queue) {
  V sum[ROWS][VECTORS];
#pragma GCC unroll 8
  for (int i = 0; i < ROWS; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < VECTORS; ++j) sum[i][j] = ACCUMULATE ? load(c + i * ldc + j * W) : V{};
  }
  for (size_t from = 0; from < k; from += STRETCH) {
    prefetch_some(queue);
    const size_t to = k - from < STRETCH ? k : from + STRETCH;
#pragma GCC unroll 4
    for (size_t p = from; p < to; ++p) {
      if constexpr (ROWS < VECTORS) {
        typename Of::Vector left[ROWS];
#pragma GCC unroll 8
        for (int i = 0; i < ROWS; ++i) left[i] = Of::broadcast(a + i * a_row + p * a_col);
#pragma GCC unroll 8
        for (int j = 0; j < VECTORS; ++j) {
          const typename Of::Vector right = Of::load_vector(b + p * ldb + j * W);
#pragma GCC unroll 8
          for (int i = 0; i < ROWS; ++i) sum[i][j] = Of::multiply_add(left[i], right, sum[i][j]);
        }
      } else {
        typename Of::Vector right[VECTORS];
#pragma GCC unroll 8
        for (int j = 0; j < VECTORS; ++j) right[j] = Of::load_vector(b + p * ldb + j * W);
#pragma GCC unroll 8
        for (int i = 0; i < ROWS; ++i) {
          const typename Of::Vector left = Of::broadcast(a + i * a_row + p * a_col);
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
           size_t ldb, float* c, size_t ldc, PrefetchQueue* queue) {
  size_t i = 0;
  for (; i + ROWS <= m && (m - i != ROWS + 1 || ROWS == 1);
       i += ROWS) {  // two small tiles rather than one with a single row
    tile<Of, ROWS, VECTORS, ACCUMULATE>(k, a + i * a_row, a_row, a_col, b, ldb, c + i * ldc, ldc, queue);
  }
  if constexpr (ROWS > 1) {
    if (i < m) {
      panel<Of, (ROWS + 1) / 2, VECTORS, ACCUMULATE>(m - i, k, a + i * a_row, a_row, a_col, b, ldb, c + i * ldc, ldc,
                                                     queue);
    }
  }
}

template <class Of, bool ACCUMULATE> void product(size_t m, size_t n, size_t k, const typename Of::Number* a,
                                                  size_t a_row, size_t a_col, const typename Of::Number* b, size_t ldb,
                                                  float* c, size_t ldc, PrefetchQueue* queue) {
  size_t j = 0;
  for (; j + 4 * W <= n; j += 4 * W) {
    panel<Of, TILE_ROWS, 4, ACCUMULATE>(m, k, a, a_row, a_col, b + j, ldb, c + j, ldc, queue);
  }
  for (; j + W <= n; j += W) panel<Of, 6, 1, ACCUMULATE>(m, k, a, a_row, a_col, b + j, ldb, c + j, ldc, queue);
  for (; j < n; ++j) {
    for (size_t i = 0; i < m; ++i) {
      float sum = ACCUMULATE ? c[i * ldc + j] : 0.0f;
      for (size_t p = 0; p < k; ++p) sum = Of::multiply_add(a[i * a_row + p * a_col], b[p * ldb + j], sum);
      c[i * ldc + j] = sum;
    }
  }
}
}  // namespace
}  // namespace dslide::DSLIDE_LEVEL
