// Decimal text to float32, correctly rounded; values too small for a normal float become 0, as everywhere in the core.
// The text must be followed by a byte that is not part of a number (here: the newline at the end of each line), so that
// there are no bounds checks per digit.
#pragma once
#include <bit>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <system_error>
#include <version>
#ifndef __cpp_lib_to_chars
#include <locale.h>
#include <stdlib.h>
#ifdef __APPLE__
#include <xlocale.h>
#endif
#endif

namespace dslide {
inline bool is_digit(char c) { return static_cast<unsigned char>(c - '0') < 10; }

enum class ParseResult { ok, malformed, too_large };

// The float nearest to the number in [begin, end); false if it is too large or, perhaps, too small for one.
inline bool nearest_float(const char* begin, const char* end, float& out) {
#ifdef __cpp_lib_to_chars
  return std::from_chars(begin, end, out).ec == std::errc();
#else  // libc++ reads no floats; strtof stops where from_chars does, behind the number
  static const locale_t plain = newlocale(LC_ALL_MASK, "C", nullptr);
  static_cast<void>(end);
  out = strtof_l(begin, nullptr, plain);
  return std::isfinite(out) && out != 0;
#endif
}

// Slow path for any number of digits. [begin, end) is a well-formed unsigned number, `written` its exponent.
inline ParseResult exact_float(const char* begin, const char* end, int64_t written, float& out) {
  out = 0;
  if (nearest_float(begin, end, out)) {
    if (out < std::numeric_limits<float>::min()) out = 0;
    return ParseResult::ok;
  }
  // Out of range, too large or too small: find the first digit that is not 0.
  int64_t magnitude = written;
  bool leading = true, fraction = false;
  for (const char* p = begin; p < end && (is_digit(*p) || *p == '.'); ++p) {
    if (*p == '.') {
      fraction = true;
    } else {
      leading = leading && *p == '0';
      magnitude += fraction ? -static_cast<int64_t>(leading) : static_cast<int64_t>(!leading);
    }
  }
  out = 0;
  return magnitude > 0 && !leading ? ParseResult::too_large : ParseResult::ok;
}

// Parses `[+-] digits [. digits] [e [+-] digits]` (one digit beside the point is enough); moves `p` behind it.
inline ParseResult scan_float(const char*& p, float& out) {
  static constexpr float float_tens[] = {1e0f, 1e1f, 1e2f, 1e3f, 1e4f, 1e5f, 1e6f, 1e7f, 1e8f, 1e9f, 1e10f};
  static constexpr double double_tens[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                           1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
  const bool negative = *p == '-';
  if (*p == '-' || *p == '+') ++p;
  const char* const begin = p;
  uint64_t mantissa = 0;  // overflows beyond 19 digits, and is not used then
  for (; is_digit(*p); ++p) mantissa = mantissa * 10 + static_cast<uint64_t>(*p - '0');
  int64_t digits = p - begin, written = 0, exponent = 0;
  if (*p == '.') {
    const char* const point = ++p;
    for (; is_digit(*p); ++p) mantissa = mantissa * 10 + static_cast<uint64_t>(*p - '0');
    exponent = point - p;
    digits -= exponent;
  }
  if (digits == 0) return ParseResult::malformed;
  if (*p == 'e' || *p == 'E') {
    ++p;
    const bool small = *p == '-';
    if (*p == '-' || *p == '+') ++p;
    if (!is_digit(*p)) return ParseResult::malformed;
    for (; is_digit(*p); ++p) written = written < 1'000'000'000 ? written * 10 + (*p - '0') : written;
    written = small ? -written : written;
    exponent += written;
  }

  ParseResult result = ParseResult::ok;
  if (digits <= 19 && mantissa < (1u << 24) && exponent >= -10 && exponent <= 10) {
    // Both operands are exact in float32, so the single operation is correctly rounded.
    const float exact = static_cast<float>(mantissa);
    out = exponent < 0 ? exact / float_tens[-exponent] : exact * float_tens[exponent];
  } else if (digits <= 19 && mantissa < (1ull << 53) && exponent >= -22 && exponent <= 22) {
    // Correctly rounded in double; the second rounding is wrong only from exactly between two floats.
    const double exact = static_cast<double>(mantissa);
    const double wide = exponent < 0 ? exact / double_tens[-exponent] : exact * double_tens[exponent];
    out = static_cast<float>(wide);
    if ((std::bit_cast<uint64_t>(wide) & 0x1FFFFFFF) == 0x10000000) {
      result = exact_float(begin, p, written, out);
    }
  } else {
    result = exact_float(begin, p, written, out);
  }
  if (negative) out = -out;
  return result;
}
}  // namespace dslide
