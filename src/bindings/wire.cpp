// Messages between ranks.
#include <nanobind/stl/string.h>
#include <string>
#include "bindings.hpp"
#include "wire/message.hpp"

namespace dslide {
namespace {
nb::bytes encode(In<float, 2> x, size_t first, size_t step, size_t columns, const std::string& format) {
  const ColumnView<const float> view{x.data(), x.shape(0), x.shape(1), first, step, columns};
  const WirePlan plan = released([&] { return wire_plan(view, wire_format(format)); });
  auto message = nb::steal<nb::bytes>(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(plan.bytes)));
  if (!message.is_valid()) nb::raise_python_error();
  auto* bytes = reinterpret_cast<uint8_t*>(PyBytes_AsString(message.ptr()));  // not shared yet
  released([&] { wire_write(view, plan, {bytes, plan.bytes}); });
  return message;
}
}  // namespace

void bind_wire(nb::module_& m) {
  m.def("wire_encode", &encode, "x"_a, "first"_a, "step"_a, "columns"_a, "format"_a,
        "Encodes the `columns` columns first, first + step, ... of x: 'float32', 'bf16' or 'int8'.");
  define(
      m, "wire_decode",
      args(
          "message"_a, "out"_a, "first"_a, "step"_a, "columns"_a, "add"_a,
          nb::sig("def wire_decode(message: bytes | bytearray | memoryview, out: numpy.typing.NDArray[numpy.float32], "
                  "first: int, step: int, columns: int, add: bool) -> None"),
          "Writes a message's values to columns of out, or adds them; ValueError, and out unchanged, if the message is "
          "not valid for these rows and columns."),
      [](Kept<uint8_t, 1> message, Out<float, 2> out, size_t first, size_t step, size_t columns, bool add) {
    wire_decode({message.data(), message.size()}, {out.data(), out.shape(0), out.shape(1), first, step, columns}, add);
  });
  m.def("wire_size", [](size_t rows, size_t columns, const std::string& format) {
    return wire_size(rows, columns, wire_format(format));
  }, "rows"_a, "columns"_a, "format"_a, "Bytes of the longest message of this shape.");
}
}  // namespace dslide
