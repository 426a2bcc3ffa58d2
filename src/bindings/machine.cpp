// Threads, speeds and random numbers.
#include <nanobind/stl/pair.h>

#include <utility>

#include "bindings.hpp"
#include "kernels/machine_speed.hpp"
#include "runtime/rng.hpp"
#include "runtime/thread_pool.hpp"

namespace dslide {

void bind_machine(nb::module_& m) {
  m.def("compiler", [] { return __VERSION__; }, "Version of the compiler that built the core.");
  m.def("set_threads", &set_threads, nb::arg("threads"), "Sets the number of threads of the core (1 to 1024).");
  m.def("threads", &threads, "The number of threads of the core.");
  m.def(
      "measure_speeds",
      [](int threads) {
        const Speeds speeds = measure_speeds(threads);
        return std::pair(speeds.gflops, speeds.copy_gigabytes);
      },
      nb::arg("threads"), nb::call_guard<nb::gil_scoped_release>(),
      "Peak speeds: 10^9 float operations/s, and 10^9 bytes/s of memory copies.");
  m.def("product_speed_now", &product_speed_now, nb::arg("threads"), nb::call_guard<nb::gil_scoped_release>(),
        "Speed of small matrix products at this moment, in 10^9 operations/s; takes a few milliseconds.");
  m.def(
      "mix", [](uint64_t a, uint64_t b) { return mix(a, b); }, nb::arg("a"), nb::arg("b"),
      "A 64-bit hash of two numbers.");
}

}  // namespace dslide
