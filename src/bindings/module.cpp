#include "bindings.hpp"

NB_MODULE(_core, m) {
  m.doc() = "The native core of dslide. Internal: use the classes and functions of the package.";
  dslide::bind_hashing(m);
  dslide::bind_data(m);
  dslide::bind_machine(m);
  dslide::bind_kernels(m);
  dslide::bind_active(m);
  dslide::bind_layers(m);
  dslide::bind_label_prior(m);
  dslide::bind_wire(m);
}
