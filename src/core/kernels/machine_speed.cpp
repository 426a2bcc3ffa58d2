#include "kernels/machine_speed.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "kernels/kernels.hpp"
#include "layers/block.hpp"
#include "runtime/aligned.hpp"
#include "runtime/thread_pool.hpp"

namespace dslide {
namespace {

constexpr double TRIALS_SECONDS = 0.2;  // all trials of one measurement
constexpr size_t ROUNDS = 1 << 20;      // a few milliseconds
constexpr size_t PRODUCTS = 100, PRODUCT_ROWS = 96, PRODUCT_COLUMNS = 64, PRODUCT_DEPTH = 128;  // two milliseconds
constexpr size_t LEAST_COPIED = 64 << 20, LEAST_COPIED_BY_THREAD = 16 << 20;  // bytes: far beyond caches

// Seconds that `fn` takes on all threads together.
template <class Fn>
double seconds_of(int threads, const Fn& fn) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  run(threads, fn);
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The shortest time, in seconds, that `fn` takes on all threads together, in at least three trials: the first wakes the
// threads, and warms caches.
template <class Fn>
double shortest(int threads, const Fn& fn) {
  double best = 1e9, total = 0;
  for (int trial = 0; trial < 3 || total < TRIALS_SECONDS; ++trial) {
    const double seconds = seconds_of(threads, fn);
    best = std::min(best, seconds);
    total += seconds;
  }
  return best;
}

void check_threads(int threads) {
  if (threads < 1) throw std::invalid_argument("at least one thread is needed to measure speeds");
}

double multiply_add_speed(int threads) {
  const Kernels& k = kernels();
  const size_t sums = CHAINS * k.lanes;
  std::vector<AlignedFloats> each(static_cast<size_t>(threads), AlignedFloats(sums));
  const double seconds = shortest(
      threads, [&](int thread) { k.multiply_add(ROUNDS, 0.999f, 0.001f, each[static_cast<size_t>(thread)].data()); });
  return 2e-9 * static_cast<double>(ROUNDS * sums * each.size()) / seconds;
}

double copy_speed(int threads) {
  const size_t parts = static_cast<size_t>(threads), bytes = std::max(LEAST_COPIED / parts, LEAST_COPIED_BY_THREAD);
  // Each thread touches its own memory first, so that on a machine of several sockets it is near.
  std::vector<std::vector<char>> from(parts), to(parts);
  run(threads, [&](int thread) {
    from[static_cast<size_t>(thread)].assign(bytes, 1);
    to[static_cast<size_t>(thread)].assign(bytes, 0);
  });
  const double seconds = shortest(threads, [&](int thread) {
    std::memcpy(to[static_cast<size_t>(thread)].data(), from[static_cast<size_t>(thread)].data(), bytes);
  });
  return 2e-9 * static_cast<double>(bytes * parts) / seconds;
}

}  // namespace

Speeds measure_speeds(int threads) {
  check_threads(threads);
  return {multiply_add_speed(threads), copy_speed(threads)};
}

double product_speed_now(int threads) {
  check_threads(threads);
  constexpr size_t lda = spread(PRODUCT_DEPTH), ldb = spread(PRODUCT_COLUMNS), ldc = PRODUCT_COLUMNS;
  struct Matrices {
    AlignedFloats a = AlignedFloats(PRODUCT_ROWS * lda, 0.5f), b = AlignedFloats(PRODUCT_DEPTH * ldb, 0.5f),
                  c = AlignedFloats(PRODUCT_ROWS * ldc);
  };
  std::vector<Matrices> each(static_cast<size_t>(threads));
  const auto multiply = [&](int thread, size_t times) {
    Matrices& m = each[static_cast<size_t>(thread)];
    for (size_t i = 0; i < times; ++i) {
      kernels().gemm(PRODUCT_ROWS, PRODUCT_COLUMNS, PRODUCT_DEPTH, m.a.data(), lda, 1, m.b.data(), ldb, m.c.data(), ldc,
                     false, nullptr);
    }
  };
  run(threads, [&](int thread) { multiply(thread, 2); });  // wakes the threads, and warms caches
  const double seconds = seconds_of(threads, [&](int thread) { multiply(thread, PRODUCTS); });
  return 2e-9 * static_cast<double>(PRODUCTS * PRODUCT_ROWS * PRODUCT_COLUMNS * PRODUCT_DEPTH * each.size()) / seconds;
}

}  // namespace dslide
