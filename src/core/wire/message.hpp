// Messages between ranks: some columns of a matrix of floats, in as few bytes as a format allows.
//
// A message is a header (the letters DW, format, layout, rows and columns as 32-bit numbers), for int8 one float scale
// a row, and the values: all of them ("dense"), or a bit mask a row, padded to whole bytes, and then those that are not
// zero, whichever is shorter. Little-endian throughout.
//
//   float32   as they are
//   bf16      the upper half of a float32, rounded to nearest even; what is not finite stays so
//   int8      multiples, -127 to 127, of the row's scale, which is its largest absolute value / 127. A row with a
//   number
//             that is not finite arrives as NaN throughout; one with nothing above 2^-118 arrives as zeros.
//
// A zero may lose its sign. Denormals cross the wire, but a sum of wire_decode may lose them, as everywhere in the
// core.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace dslide {

enum class WireFormat : uint8_t { float32, bf16, int8 };

// A format by name; throws std::invalid_argument if there is none.
WireFormat wire_format(std::string_view name);

// Columns first, first + step, ..., `count` of them, of a matrix with rows `stride` floats apart.
template <class Float>
struct Columns {
  Float* data;
  size_t rows, stride;
  size_t first, step, count;
};

// What a message will be, found out before there is memory for it.
struct WirePlan {
  WireFormat format;
  bool dense;
  size_t bytes;
  std::vector<size_t> before;  // (rows + 1) values that are not zero before each row; the last is their number
};

// Throws std::invalid_argument for columns that are not all in the matrix.
WirePlan wire_plan(const Columns<const float>& x, WireFormat format);

// The message of a plan for the same x, which has not changed since.
void wire_write(const Columns<const float>& x, const WirePlan& plan, std::span<uint8_t> message);

// Writes the message's numbers to the columns, or adds them. Throws std::invalid_argument, and leaves `out` as it was,
// if no plan for these rows and columns gives a message of this form; nothing in the message is trusted.
void wire_decode(std::span<const uint8_t> message, const Columns<float>& out, bool add);

// Bytes of a dense message: no message is longer.
size_t wire_size(size_t rows, size_t columns, WireFormat format);

}  // namespace dslide
