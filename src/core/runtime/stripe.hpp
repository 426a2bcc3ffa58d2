// Every step-th element of a larger range, starting at `first`: the neurons, rows or columns that one rank owns.
#pragma once
#include <cstddef>

namespace dslide {
struct Stripe {
  size_t first = 0, step = 1;
  size_t to_global(size_t local) const { return first + local * step; }
  size_t to_local(size_t global) const { return global / step; }  // only for an element the stripe contains
  bool contains(size_t global) const { return global % step == first; }
};
}  // namespace dslide
