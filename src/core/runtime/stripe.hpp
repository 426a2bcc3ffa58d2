// Every step-th of many things, from `first` on: the neurons of a layer that one of several processes owns.
#pragma once
#include <cstddef>

namespace dslide {

struct Stripe {
  size_t first = 0, step = 1;
  // The i-th of them, by its number among all.
  size_t whole(size_t i) const { return first + i * step; }
  // Whether it has the one of this number among all, which is then its (number / step)-th.
  bool has(size_t number) const { return number % step == first; }
};

}  // namespace dslide
