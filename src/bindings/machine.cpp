// Threads.
#include "bindings.hpp"
#include "pool.hpp"

namespace dslide {

void bind_machine(nb::module_& m) {
  m.def("compiler", [] { return __VERSION__; }, "Version of the compiler that made the core.");
  m.def("set_threads", &set_threads, nb::arg("threads"), "Sets the number of threads the core works with (1 to 1024).");
  m.def("threads", &threads, "The number of threads the core works with.");
}

}  // namespace dslide
