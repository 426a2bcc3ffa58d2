// Scratch memory for calls that may come from several threads at once: each takes a piece for itself, and gives it back
// for the next one. Nobody waits for the lock, which a forked child may find locked for ever: a call that can't have it
// makes a new piece, or lets its own go.
#pragma once
#include <exception>
#include <memory>
#include <mutex>
#include <vector>

namespace dslide {
template <class T> class ScratchPool {
 public:
  // A piece while it is used: as its last user left it, or new. It is dropped if an exception interrupts the use.
  class Lease {
   public:
    explicit Lease(ScratchPool& pool) : pool_(pool), piece_(pool.take()) {}
    ~Lease() {
      if (std::uncaught_exceptions() == exceptions_) pool_.give_back(std::move(piece_));
    }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    T& operator*() { return *piece_; }

   private:
    ScratchPool& pool_;
    std::unique_ptr<T> piece_;
    int exceptions_ = std::uncaught_exceptions();
  };

 private:
  std::unique_ptr<T> take() {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock || free_.empty()) return std::make_unique<T>();
    std::unique_ptr<T> piece = std::move(free_.back());
    free_.pop_back();
    return piece;
  }
  void give_back(std::unique_ptr<T> piece) {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (lock) free_.push_back(std::move(piece));
  }

  std::mutex mutex_;
  std::vector<std::unique_ptr<T>> free_;
};
}  // namespace dslide
