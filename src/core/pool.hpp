// The process's worker threads, and the one way to use them: run the same function on every thread, each taking its
// own fixed part of the work. Parts depend on the number of threads alone, so sums come out bit-identical every time.
//
// Our own pool and not OpenMP because the thread sanitizer understands it, a fork()ed child gets a working one, and no
// runtime library has to be found. Calls from several Python threads queue up behind one another.
#pragma once
#include <cstddef>
#include <functional>

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

}  // namespace dslide
