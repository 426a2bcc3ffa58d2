#include "runtime/thread_pool.hpp"
#include <pthread.h>
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include "runtime/checks.hpp"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace dslide {
namespace {
// Flushes denormals to zero during its lifetime: each costs about a hundred cycles and carries no information here.
class FlushDenormals {
 public:
#if defined(__x86_64__)
  FlushDenormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | 0x8040); }  // FTZ | DAZ
  ~FlushDenormals() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
#elif defined(__aarch64__)
  FlushDenormals() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    asm volatile("msr fpcr, %0" ::"r"(saved_ | (1ull << 24)));  // FZ
  }
  ~FlushDenormals() { asm volatile("msr fpcr, %0" ::"r"(saved_)); }

 private:
  unsigned long long saved_;
#endif
};

constexpr std::chrono::microseconds SPIN{500};  // how long a thread spins before it sleeps

// A hint to the CPU that this is a spin loop.
inline void spin_hint() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

class Pool {
 public:
  explicit Pool(int threads) {
    try {
      for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { work(i); });
    } catch (...) {  // out of threads: stop those already started
      stop();
      throw;
    }
  }

  ~Pool() { stop(); }

  int size() const { return static_cast<int>(workers_.size()) + 1; }

  void run(const std::function<void(int)>& fn) {
    fn_ = &fn;
    error_ = nullptr;
    running_.store(workers_.size(), std::memory_order_relaxed);
    {
      std::lock_guard lock(mutex_);  // so that no worker misses the notification on its way to sleep
      generation_.fetch_add(1, std::memory_order_release);
    }
    start_.notify_all();
    call(0);
    const auto done = [this] { return running_.load(std::memory_order_acquire) == 0; };
    if (!spin_until(done)) {
      std::unique_lock lock(mutex_);
      done_.wait(lock, done);
    }
    if (error_) std::rethrow_exception(error_);
  }

 private:
  // Busy-waits briefly: a training step is many short runs, and waking a thread can take as long as one of them. True
  // if `ready` became true.
  template <class Ready> static bool spin_until(const Ready& ready) {
    using Clock = std::chrono::steady_clock;
    const Clock::time_point begin = Clock::now();
    do {
      for (int i = 0; i < 64; ++i) {
        if (ready()) return true;
        spin_hint();
      }
      std::this_thread::yield();  // let others use this core
    } while (Clock::now() - begin < SPIN);
    return ready();
  }

  void stop() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
      generation_.fetch_add(1, std::memory_order_release);
    }
    start_.notify_all();
    for (auto& worker : workers_) worker.join();
  }

  void call(int thread) {
    try {
      FlushDenormals flush;
      (*fn_)(thread);
    } catch (...) {
      std::lock_guard lock(mutex_);
      if (!error_) error_ = std::current_exception();
    }
  }

  void work(int thread) {
    for (unsigned long long seen = 0;;) {
      const auto started = [&] { return generation_.load(std::memory_order_acquire) != seen; };
      if (!spin_until(started)) {
        std::unique_lock lock(mutex_);
        start_.wait(lock, started);
      }
      ++seen;  // run() waits for all workers, so none is more than one behind
      if (stop_) return;
      call(thread);
      if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
        std::lock_guard lock(mutex_);  // so that the caller does not miss the notification
        done_.notify_one();
      }
    }
  }

  std::mutex mutex_;
  std::condition_variable start_, done_;
  const std::function<void(int)>* fn_ = nullptr;
  std::exception_ptr error_;
  std::atomic<size_t> running_ = 0;
  std::atomic<unsigned long long> generation_ = 0;
  std::atomic<bool> stop_ = false;
  std::vector<std::thread> workers_;
};

struct State {
  std::mutex mutex;  // held during run(): concurrent callers compute on their own threads
  std::unique_ptr<Pool> pool;
  std::atomic<int> threads = 1;
};

// All parts one after the other on the calling thread, as the pool does: the first exception is thrown at the end.
void run_here(int parts, const std::function<void(int)>& fn) {
  const FlushDenormals flush;
  std::exception_ptr error;
  for (int i = 0; i < parts; ++i) {
    try {
      fn(i);
    } catch (...) {
      if (!error) error = std::current_exception();
    }
  }
  if (error) std::rethrow_exception(error);
}

State* state = nullptr;

// A forked child has no worker threads and possibly a locked mutex: drop the parent's state, keep its setting.
void reset_in_child() {
  State* parent = state;
  state = new State;
  state->threads = parent->threads.load();
}

State& get() {
  static const bool once = [] {
    state = new State;  // never destroyed: workers may outlive static destructors
    state->threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
    pthread_atfork(nullptr, nullptr, reset_in_child);
    return true;
  }();
  (void)once;
  return *state;
}
}  // namespace

void set_threads(int threads) {
  require(threads >= 1 && threads <= 1024, "threads must be 1 to 1024, not ", threads);
  get().threads = threads;
}

int threads() { return get().threads; }

void run_threads(int parts, const std::function<void(int)>& fn) {
  if (parts == 1) return run_here(parts, fn);
  State& s = get();
  const std::unique_lock lock(s.mutex, std::try_to_lock);
  if (!lock) return run_here(parts, fn);
  if (!s.pool || s.pool->size() != parts) {
    s.pool.reset();
    s.pool = std::make_unique<Pool>(parts);
  }
  s.pool->run(fn);
}
}  // namespace dslide
