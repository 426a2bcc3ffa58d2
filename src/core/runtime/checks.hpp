// Argument checks: an unchecked value would lead to out-of-bounds memory access.
#pragma once
#include <sstream>
#include <stdexcept>
#include <string>

namespace dslide {

// One text of strings and numbers.
template <class... Parts> std::string text(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

// Throws std::invalid_argument, with a message of these parts, unless the condition is true.
template <class... Parts> void require(bool condition, const Parts&... message) {
  if (!condition) [[unlikely]]
    throw std::invalid_argument(text(message...));
}

inline void check_range(const char* name, size_t value, size_t low, size_t high) {
  require(value >= low && value <= high, name, " must be ", low, " to ", high, ", not ", value);
}

}  // namespace dslide
