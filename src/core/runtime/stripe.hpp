// The elements of a larger range that one rank owns, be they neurons, rows or columns: of every `step` elements the
// `width` that begin at `first`.
#pragma once
#include <cstddef>

namespace dslide {
constexpr size_t MAX_STRIPE_WIDTH = 256;

struct Stripe {
  size_t first = 0, step = 1, width = 1;
  size_t to_global(size_t local) const {
    return width == 1 ? first + local * step : local / width * step + first + local % width;
  }
  // Only for an element that the stripe contains.
  size_t to_local(size_t global) const {
    return width == 1 ? global / step : global / step * width + global % step - first;
  }
  bool contains(size_t global) const { return global % step - first < width; }  // below `first` it wraps around
};
}  // namespace dslide
