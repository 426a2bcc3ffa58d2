// The process's worker threads. Reductions over threads use a static partition of the work: parts depend only on the
// number of threads, so sums are bit-identical in every run. Other work is scheduled dynamically.
//
// An own pool and not OpenMP: ThreadSanitizer understands it, it works in a fork()ed child, and there is no runtime
// library to find. Of several Python threads that call at once, one has the workers; the others compute all parts
// themselves, one after the other, with the same result.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <vector>

namespace dslide {
struct Range {
  size_t begin, end;
  size_t size() const { return end - begin; }
};

// Part `i` of `parts` nearly equal contiguous parts of [0, n); boundaries are multiples of `grain`.
inline Range part(size_t n, size_t parts, size_t i, size_t grain = 1) {
  const size_t grains = (n + grain - 1) / grain;
  const size_t begin = grains * i / parts * grain, end = grains * (i + 1) / parts * grain;
  return {begin < n ? begin : n, end < n ? end : n};
}

// The number of threads, 1 to 1024, and so of parts; initially the number of cores.
void set_threads(int threads);
int threads();

// Calls fn(0) ... fn(parts - 1), each on its own thread (0 on the caller's), or all on the caller's if the workers are
// in use, and waits for all: parts must not wait for each other. Denormals are flushed to zero inside. Rethrows the
// first exception. Must not be called from inside fn.
void run_threads(int parts, const std::function<void(int)>& fn);

// Static schedule: fn(begin, end, thread) for the parts of [0, n), whose boundaries are multiples of `grain`. A caller
// with scratch per thread passes the number of parts that it allocated for: threads() may change between calls. What is
// one part wakes no other thread, which would then spin in the way of other callers.
template <class Fn> void parallel_for(size_t n, size_t grain, int parts, const Fn& fn) {
  const auto run = [&](int thread) {
    const Range r = part(n, parts, thread, grain);
    if (r.begin < r.end) fn(r.begin, r.end, thread);
  };
  if (n > grain) return run_threads(parts, run);
  run_threads(1, [&](int) {
    for (int thread = 0; thread < parts; ++thread) run(thread);
  });
}
template <class Fn> void parallel_for(size_t n, const Fn& fn) { parallel_for(n, 1, threads(), fn); }

// The same: fn(i) for each i in [0, n).
template <class Fn> void parallel_each(size_t n, const Fn& fn) {
  parallel_for(n, [&](size_t begin, size_t end, int) {
    for (size_t i = begin; i < end; ++i) fn(i);
  });
}

// Dynamic schedule with work stealing, for results that do not depend on which thread computes them. Queue i has
// size(i) items, taken in pieces of `grain`: by thread i first, then by threads whose own queue is empty. Calls
// fn(queue, begin, end, thread), from a queue's last piece to its first: what was used last is still in cache.
template <class Size, class Fn> void parallel_for_queues(int queues, const Size& size, size_t grain, const Fn& fn) {
  struct alignas(128) Left {  // no false sharing
    std::atomic<int64_t> pieces;
  };
  std::vector<Left> left(queues);
  for (size_t i = 0; i < left.size(); ++i) left[i].pieces = static_cast<int64_t>((size(i) + grain - 1) / grain);
  run_threads(queues, [&](int thread) {
    for (size_t i = 0; i < left.size(); ++i) {
      const size_t queue = (thread + i) % left.size();
      for (int64_t piece; (piece = left[queue].pieces.fetch_sub(1, std::memory_order_relaxed)) > 0;) {
        const size_t begin = static_cast<size_t>(piece - 1) * grain, end = begin + grain;
        fn(queue, begin, end < size(queue) ? end : size(queue), thread);
      }
    }
  });
}

// The same for [0, n), with a part of it as the queue of each thread: fn(begin, end, thread).
template <class Fn> void parallel_for_dynamic(size_t n, size_t grain, int parts, const Fn& fn) {
  if (n <= grain) return parallel_for(n, grain, 1, fn);
  const auto part_of = [&](size_t queue) { return part(n, parts, queue, grain); };
  parallel_for_queues(parts, [&](size_t queue) { return part_of(queue).end - part_of(queue).begin; }, grain,
                      [&](size_t queue, size_t begin, size_t end, int thread) {
    fn(part_of(queue).begin + begin, part_of(queue).begin + end, thread);
  });
}
}  // namespace dslide
