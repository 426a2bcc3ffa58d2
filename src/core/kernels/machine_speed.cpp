#include "kernels/machine_speed.hpp"
#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>
#include "kernels/kernels.hpp"
#include "runtime/checks.hpp"
#include "runtime/memory.hpp"
#include "runtime/thread_pool.hpp"

namespace dslide {
namespace {
constexpr double TRIALS_SECONDS = 0.2;  // total of one measurement
constexpr size_t ROUNDS = 1 << 20;      // a few milliseconds
constexpr size_t PRODUCTS = 100, PRODUCT_ROWS = 96, PRODUCT_COLUMNS = 64,
                 PRODUCT_DEPTH = 128;                                      // about two milliseconds
constexpr size_t MIN_COPIED = 64 << 20, MIN_COPIED_PER_THREAD = 16 << 20;  // bytes: far larger than the caches

// Seconds that `fn` takes on all threads together.
template <class Fn> double seconds_of(int threads, const Fn& fn) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  run_threads(threads, fn);
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The shortest time in seconds over at least three trials; the first one wakes the threads and warms the caches.
template <class Fn> double shortest(int threads, const Fn& fn) {
  double best = 1e9, total = 0;
  for (int trial = 0; trial < 3 || total < TRIALS_SECONDS; ++trial) {
    const double seconds = seconds_of(threads, fn);
    best = std::min(best, seconds);
    total += seconds;
  }
  return best;
}

void check_threads(int threads) { require(threads >= 1, "at least one thread is needed to measure speeds"); }

double multiply_add_speed(int threads) {
  const Kernels& k = kernels();
  const size_t sums = CHAINS * k.lanes;
  std::vector<AlignedFloats> each(threads, AlignedFloats(sums));
  const double seconds = shortest(threads, [&](int t) { k.multiply_add(ROUNDS, 0.999f, 0.001f, each[t].data()); });
  return 2e-9 * static_cast<double>(ROUNDS * sums * each.size()) / seconds;
}

double copy_speed(int threads) {
  const size_t parts = static_cast<size_t>(threads), bytes = std::max(MIN_COPIED / parts, MIN_COPIED_PER_THREAD);
  // First touch by the thread that uses the memory: on NUMA machines it is then local.
  std::vector<std::vector<char>> from(parts), to(parts);
  run_threads(threads, [&](int thread) {
    from[thread].assign(bytes, 1);
    to[thread].assign(bytes, 0);
  });
  const double seconds = shortest(threads, [&](int t) { std::memcpy(to[t].data(), from[t].data(), bytes); });
  return 2e-9 * static_cast<double>(bytes * parts) / seconds;
}
}  // namespace

Speeds measure_speeds(int threads) {
  check_threads(threads);
  return {multiply_add_speed(threads), copy_speed(threads)};
}

double product_speed_now(int threads) {
  check_threads(threads);
  constexpr size_t lda = padded_stride(PRODUCT_DEPTH), ldb = padded_stride(PRODUCT_COLUMNS), ldc = PRODUCT_COLUMNS;
  struct Matrices {
    AlignedFloats a = AlignedFloats(PRODUCT_ROWS * lda, 0.5f), b = AlignedFloats(PRODUCT_DEPTH * ldb, 0.5f),
                  c = AlignedFloats(PRODUCT_ROWS * ldc);
  };
  std::vector<Matrices> each(threads);
  const auto multiply = [&](int thread, size_t times) {
    Matrices& m = each[thread];
    for (size_t i = 0; i < times; ++i) {
      kernels().gemm(PRODUCT_ROWS, PRODUCT_COLUMNS, PRODUCT_DEPTH, m.a.data(), lda, 1, m.b.data(), ldb, m.c.data(), ldc,
                     false, nullptr);
    }
  };
  run_threads(threads, [&](int thread) { multiply(thread, 2); });  // wakes the threads, warms the caches
  const double seconds = seconds_of(threads, [&](int thread) { multiply(thread, PRODUCTS); });
  return 2e-9 * static_cast<double>(PRODUCTS * PRODUCT_ROWS * PRODUCT_COLUMNS * PRODUCT_DEPTH * each.size()) / seconds;
}
}  // namespace dslide
