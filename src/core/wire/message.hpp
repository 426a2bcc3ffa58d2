// Messages between ranks: selected columns of a float matrix, compressed.
//
// A message is a header (the letters DW, format, layout, rows and columns as 32-bit integers), for int8 one float scale
// per row, and the values: all of them ("dense"), or a bit mask per row, padded to whole bytes, followed by the nonzero
// values, if that is shorter by an eighth: masks take longer to write and to read. Little-endian.
//
//   float32   unchanged
//   bf16      the upper half of a float32, rounded to nearest even; infinities and NaN are preserved
//   int8      multiples, -127 to 127, of the row's scale, which is its largest absolute value / 127. A row with a value
//             that is not finite arrives as all NaN; one with no absolute value of 2^-118 or more arrives as zeros.
//
// A zero may lose its sign. Denormals are transmitted, but sums in wire_decode may flush them.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>
#include "runtime/stripe.hpp"

namespace dslide {
enum class WireFormat : uint8_t { float32, bf16, int8 };

// Throws std::invalid_argument for an unknown name.
WireFormat wire_format(std::string_view name);

// The first `count` columns of a stripe of a matrix with leading dimension `stride`.
template <class Float> struct ColumnView {
  Float* data;
  size_t rows, stride;
  Stripe columns;
  size_t count;
};

// An encoded matrix, and how its message is laid out: sparse if that is shorter by an eighth.
struct WirePlan {
  WireFormat format;
  bool dense;
  size_t rows, columns, bytes;  // of the message
  std::vector<float> scales;    // (rows), if the format has them
  std::vector<uint8_t> values;  // (rows x columns) in the format's type
  std::vector<size_t> before;   // (rows + 1) number of nonzero values before each row; the last is the total
};

// Throws std::invalid_argument if the columns are not all in the matrix.
WirePlan wire_plan(const ColumnView<const float>& x, WireFormat format);

// Writes the message of a plan.
void wire_write(const WirePlan& plan, std::span<uint8_t> message);

// Writes the message's values to the columns, or adds them. The message is not trusted: throws std::invalid_argument,
// and leaves `out` unchanged, if it is not a valid message for these rows and columns.
void wire_decode(std::span<const uint8_t> message, const ColumnView<float>& out, bool add);

// Bytes of a dense message, the maximum.
size_t wire_size(size_t rows, size_t columns, WireFormat format);
}  // namespace dslide
