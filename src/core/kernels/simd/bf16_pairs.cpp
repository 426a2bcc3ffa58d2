// Products of bf16 pairs with float sums. AVX512-BF16 multiplies two bf16 in the time of one float; without it, bf16 is
// widened first, with no gain.
#include "kernels/simd/gemm.hpp"

namespace dslide::DSLIDE_LEVEL {
namespace {
inline U load_bits(const void* p) {
  U v;
  memcpy(&v, p, sizeof v);
  return v;
}

struct Pairs {  // element type for gemm.hpp
  using Number = Bf16Pair;
  using Vector = U;
  static U load_vector(const Bf16Pair* p) { return load_bits(p); }
  static U broadcast(const Bf16Pair* p) { return U{} + p->bits; }
  static V multiply_add(U left, U right, V sum) {
#if defined(__AVX512BF16__)
    return _mm512_dpbf16_ps(sum, same_bits<__m512bh>(left), same_bits<__m512bh>(right));
#else
    sum += same_bits<V>(left << 16) * same_bits<V>(right << 16);
    return sum + same_bits<V>(left & 0xffff0000u) * same_bits<V>(right & 0xffff0000u);
#endif
  }
  static float multiply_add(Bf16Pair left, Bf16Pair right, float sum) {
    sum += same_bits<float>(left.bits << 16) * same_bits<float>(right.bits << 16);
    return sum + same_bits<float>(left.bits & 0xffff0000u) * same_bits<float>(right.bits & 0xffff0000u);
  }
};

void gemm_pairs(size_t m, size_t n, size_t k, const Bf16Pair* a, size_t a_row, size_t a_col, const Bf16Pair* b,
                size_t ldb, float* c, size_t ldc, bool accumulate, PrefetchQueue* queue) {
  (accumulate ? product<Pairs, true> : product<Pairs, false>)(m, n, k, a, a_row, a_col, b, ldb, c, ldc, queue);
}

float dot_pairs(const Bf16Pair* a, const Bf16Pair* b, size_t n) {
  V sum{};
  size_t i = 0;
  for (; i + W <= n; i += W) sum = Pairs::multiply_add(Pairs::load_vector(a + i), Pairs::load_vector(b + i), sum);
  float tail = 0;
  for (; i < n; ++i) tail = Pairs::multiply_add(a[i], b[i], tail);
  return sum_lanes(sum) + tail;
}

// Rounds to nearest even in the upper half; the lower half is to be dropped.
template <class Bits> inline Bits to_nearest(Bits bits) { return bits + 0x7fffu + (bits >> 16 & 1u); }
inline uint32_t joined(float low, float high) {
  return to_nearest(same_bits<uint32_t>(low)) >> 16 | (to_nearest(same_bits<uint32_t>(high)) & 0xffff0000u);
}

void pair_up(const float* low, const float* high, size_t n, Bf16Pair* out) {
  size_t i = 0;
  for (; i + W <= n; i += W) {
    const U pairs = to_nearest(load_bits(low + i)) >> 16 | (to_nearest(load_bits(high + i)) & 0xffff0000u);
    memcpy(out + i, &pairs, sizeof pairs);
  }
  for (; i < n; ++i) out[i].bits = joined(low[i], high[i]);
}

void pair_neighbours(const float* x, size_t n, Bf16Pair* out) {
  size_t i = 0;
#if defined(__AVX512BF16__)
  for (; i + 2 * W <= n; i += 2 * W) {
    const __m512bh pairs = _mm512_cvtne2ps_pbh(load(x + i + W), load(x + i));
    memcpy(out + i / 2, &pairs, sizeof pairs);
  }
#endif
  for (; i + 1 < n; i += 2) out[i / 2].bits = joined(x[i], x[i + 1]);
  if (i < n) out[i / 2].bits = joined(x[i], 0.0f);
}
}  // namespace

void register_bf16_pairs(Kernels& table) {
  table.gemm_pairs = gemm_pairs;
  table.dot_pairs = dot_pairs;
  table.pair_up = pair_up;
  table.pair_neighbours = pair_neighbours;
}
}  // namespace dslide::DSLIDE_LEVEL
