// Peak speeds of this machine, measured: the reference for the speed of training.
#pragma once

namespace dslide {
struct Speeds {
  double gflops;          // 10^9 float32 operations/s (a multiply-add is two) of the kernels in use
  double copy_gigabytes;  // 10^9 bytes/s of a memory copy, bytes read plus bytes written
};

// The best of several short trials; takes about half a second.
Speeds measure_speeds(int threads);

// Speed of in-cache matrix products at this moment, in 10^9 operations/s: one trial of a few milliseconds. Load from
// other processes on the same cores shows in it.
double product_speed_now(int threads);
}  // namespace dslide
