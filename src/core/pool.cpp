#include "pool.hpp"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace dslide {
namespace {

// Denormal floats cost a hundred cycles each and carry no information here: flush them while one of these lives.
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

class Pool {
 public:
  explicit Pool(int threads) {
    try {
      for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { work(i); });
    } catch (...) {  // the system gives no more threads: end those there are
      stop();
      throw;
    }
  }

  ~Pool() { stop(); }

  int size() const { return static_cast<int>(workers_.size()) + 1; }

  void run(const std::function<void(int)>& fn) {
    {
      std::lock_guard lock(mutex_);
      fn_ = &fn;
      running_ = workers_.size();
      error_ = nullptr;
      ++generation_;
    }
    start_.notify_all();
    call(0);
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return running_ == 0; });
    if (error_) std::rethrow_exception(error_);
  }

 private:
  void stop() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
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
    unsigned long long seen = 0;
    for (;;) {
      {
        std::unique_lock lock(mutex_);
        start_.wait(lock, [&] { return stop_ || generation_ != seen; });
        if (stop_) return;
        seen = generation_;
      }
      call(thread);
      std::lock_guard lock(mutex_);
      if (--running_ == 0) done_.notify_one();
    }
  }

  std::mutex mutex_;
  std::condition_variable start_, done_;
  const std::function<void(int)>* fn_ = nullptr;
  std::exception_ptr error_;
  size_t running_ = 0;
  unsigned long long generation_ = 0;
  bool stop_ = false;
  std::vector<std::thread> workers_;
};

struct State {
  std::mutex mutex;  // held for the whole of a run(): callers queue up
  std::unique_ptr<Pool> pool;
  std::atomic<int> threads = 1;
};

State* state = nullptr;

// A forked child has none of the threads, and perhaps a locked mutex: forget the parent's state, keep its setting.
void forget_in_child() {
  State* parent = state;
  state = new State;
  state->threads = parent->threads.load();
}

State& get() {
  static const bool once = [] {
    state = new State;  // never destroyed: workers may outlive static destructors
    state->threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
    pthread_atfork(nullptr, nullptr, forget_in_child);
    return true;
  }();
  (void)once;
  return *state;
}

}  // namespace

void set_threads(int threads) {
  if (threads < 1 || threads > 1024) {
    throw std::invalid_argument("threads must be 1 to 1024, not " + std::to_string(threads));
  }
  get().threads = threads;
}

int threads() { return get().threads; }

void run(int parts, const std::function<void(int)>& fn) {
  State& s = get();
  std::lock_guard lock(s.mutex);
  if (!s.pool || s.pool->size() != parts) {
    s.pool.reset();
    s.pool = std::make_unique<Pool>(parts);
  }
  s.pool->run(fn);
}

}  // namespace dslide
