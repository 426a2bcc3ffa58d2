// Peak speeds of this machine, measured: the reference for the speed of training.
#pragma once

namespace dslide {
struct Speeds {
  double gflops;          // 10^9 float32 operations/s (a multiply-add is two) of the kernels in use
  double copy_gigabytes;  // 10^9 bytes/s of a memory copy, bytes read plus bytes written
};

// The best of several short trials; takes about half a second.
Speeds measure_speeds(int threads);

// Speed of in-cache matrix products now, in 10^9 operations/s: a trial of a few ms, in which load by others shows.
double product_speed_now(int threads);
}  // namespace dslide
