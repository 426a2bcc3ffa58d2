// The process's worker threads, and the way to use them: run the same function on every thread. Where sums go over what
// several threads did, each takes its own fixed part of the work: parts depend on the number of threads alone, so sums
// come out bit-identical every time. Other work is shared out as it is done.
//
// Our own pool and not OpenMP because the thread sanitizer understands it, a fork()ed child gets a working one, and no
// runtime library has to be found. Calls from several Python threads queue up behind one another.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace dslide {

struct Range {
  size_t begin, end;
};

// Part `i` of `parts` nearly equal, contiguous parts of [0, n); boundaries are multiples of `grain`.
inline Range part(size_t n, size_t parts, size_t i, size_t grain = 1) {
  const size_t grains = (n + grain - 1) / grain;
  const size_t begin = grains * i / parts * grain, end = grains * (i + 1) / parts * grain;
  return {begin < n ? begin : n, end < n ? end : n};
}

// How many parts work is cut into, and so how many threads do it: 1 to 1024, at first the number of cores.
void set_threads(int threads);
int threads();

// Calls fn(0) ... fn(parts - 1), each on its own thread (0 on the caller's), and returns when all have. Denormals are
// flushed to zero inside. The first exception thrown is thrown again here. Not to be called from inside fn.
void run(int parts, const std::function<void(int)>& fn);

// run() over the parts of [0, n): fn(begin, end, thread). Who keeps something for each thread passes the number it has
// made room for: threads() may be another one at the next call.
template <class Fn>
void run_parts(size_t n, const Fn& fn, size_t grain = 1, int parts = threads()) {
  run(parts, [&](int thread) {
    const Range r = part(n, static_cast<size_t>(parts), static_cast<size_t>(thread), grain);
    if (r.begin < r.end) fn(r.begin, r.end, thread);
  });
}

// For work whose results don't depend on who does it. Owner i has own(i) things to be done, in pieces of `grain`, and
// is begun with by thread i; a thread that is done takes pieces of other owners: one that is held up, or sits on a
// slower core, does less. fn(owner, begin, end, thread), from an owner's last piece to its first: what was used last,
// before this, is still in cache.
template <class Own, class Fn>
void run_shared(int owners, const Own& own, size_t grain, const Fn& fn) {
  struct alignas(128) Left {  // threads that wrote to neighbouring lines would wait for each other
    std::atomic<int64_t> pieces;
  };
  std::vector<Left> left(static_cast<size_t>(owners));
  for (size_t i = 0; i < left.size(); ++i) left[i].pieces = static_cast<int64_t>((own(i) + grain - 1) / grain);
  run(owners, [&](int thread) {
    for (size_t i = 0; i < left.size(); ++i) {
      const size_t owner = (static_cast<size_t>(thread) + i) % left.size();
      for (int64_t piece; (piece = left[owner].pieces.fetch_sub(1, std::memory_order_relaxed)) > 0;) {
        const size_t begin = static_cast<size_t>(piece - 1) * grain, end = begin + grain;
        fn(owner, begin, end < own(owner) ? end : own(owner), thread);
      }
    }
  });
}

// The same for [0, n), of which every thread owns a part: fn(begin, end, thread).
template <class Fn>
void run_shared(size_t n, size_t grain, const Fn& fn, int parts = threads()) {
  const auto part_of = [&](size_t owner) { return part(n, static_cast<size_t>(parts), owner, grain); };
  run_shared(
      parts, [&](size_t owner) { return part_of(owner).end - part_of(owner).begin; }, grain,
      [&](size_t owner, size_t begin, size_t end, int thread) {
        fn(part_of(owner).begin + begin, part_of(owner).begin + end, thread);
      });
}

}  // namespace dslide
