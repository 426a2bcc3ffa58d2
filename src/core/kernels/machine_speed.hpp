// How fast this machine computes and copies at best, measured: what the speed of training is held against.
#pragma once

namespace dslide {

struct Speeds {
  double gflops;          // float32 multiply-adds of the kernels in use, each counted as two, in 10^9 a second
  double copy_gigabytes;  // a copy in memory, bytes read and bytes written, in 10^9 a second
};

// The best of several short trials with so many threads; takes about half a second.
Speeds measure_speeds(int threads);

// What products of small matrices in near caches reach just now, in 10^9 operations a second: one trial of a few
// milliseconds. Whoever else uses the same cores, or their caches, shows in it.
double product_speed_now(int threads);

}  // namespace dslide
