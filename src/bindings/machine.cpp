// The module, with threads, speeds and random numbers.
#include <nanobind/stl/pair.h>
#include "bindings.hpp"
#include "kernels/machine_speed.hpp"
#include "runtime/rng.hpp"
#include "runtime/thread_pool.hpp"

namespace dslide {
void bind_machine(nb::module_& m) {
  m.def("compiler", [] { return __VERSION__; }, "Version of the compiler that built the core.");
  m.def("set_threads", &set_threads, "threads"_a, "Sets the number of threads of the core (1 to 1024).");
  m.def("threads", &threads, "The number of threads of the core.");
  define(m, "measure_speeds",
         args("threads"_a, "Peak speeds: 10^9 float operations/s, and 10^9 bytes/s of memory copies."),
         [](int threads) {
    const Speeds speeds = measure_speeds(threads);
    return std::pair(speeds.gflops, speeds.copy_gigabytes);
  });
  define(m, "product_speed_now",
         args("threads"_a,
              "Speed of small matrix products at this moment, in 10^9 operations/s; takes a few milliseconds."),
         &product_speed_now);
  m.def("mix", [](uint64_t a, uint64_t b) { return mix(a, b); }, "a"_a, "b"_a, "A 64-bit hash of two numbers.");
}
}  // namespace dslide

NB_MODULE(_core, m) {
  m.doc() = "The native core of dslide. Internal: use the classes and functions of the package.";
  dslide::bind_hashing(m);
  dslide::bind_data(m);
  dslide::bind_machine(m);
  dslide::bind_kernels(m);
  dslide::bind_active(m);
  dslide::bind_layers(m);
  dslide::bind_label_prior(m);
  dslide::bind_candidates(m);
  dslide::bind_neighbours(m);
  dslide::bind_wire(m);
}
