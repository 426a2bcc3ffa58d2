// Argument checks: an unchecked value would lead to out-of-bounds memory access.
#pragma once
#include <algorithm>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>

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

// The value of an enum from its name; `names` are those of all values in order.
template <class Enum, class... Parts>
Enum named(std::string_view name, std::initializer_list<std::string_view> names, const Parts&... message) {
  const auto at = std::find(names.begin(), names.end(), name);
  require(at != names.end(), message...);
  return static_cast<Enum>(at - names.begin());
}

inline void check_range(const char* name, size_t value, size_t low, size_t high) {
  require(value >= low && value <= high, name, " must be ", low, " to ", high, ", not ", value);
}
}  // namespace dslide
