// Argument checks: an unchecked value would lead to out-of-bounds memory access.
#pragma once
#include <cstddef>
#include <stdexcept>
#include <string>

namespace dslide {

inline void check_range(const char* name, size_t value, size_t low, size_t high) {
  if (value < low || value > high) {
    throw std::invalid_argument(std::string(name) + " must be " + std::to_string(low) + " to " + std::to_string(high) +
                                ", not " + std::to_string(value));
  }
}

}  // namespace dslide
