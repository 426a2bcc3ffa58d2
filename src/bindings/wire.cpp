// Messages between ranks.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <numeric>
#include <string>
#include "bindings.hpp"
#include "csr.hpp"
#include "wire/collectives.hpp"
#include "wire/message.hpp"

namespace dslide {
namespace {
using Message = Kept<uint8_t, 1>;
using Rankings = In<uint32_t, 1>;

nb::bytes new_bytes(size_t size) {
  auto made = nb::steal<nb::bytes>(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size)));
  if (!made.is_valid()) nb::raise_python_error();
  return made;
}

// For bytes that are not shared yet.
uint8_t* content(const nb::bytes& bytes) { return reinterpret_cast<uint8_t*>(PyBytes_AsString(bytes.ptr())); }

nb::bytes written(const WirePlan& plan) {
  const nb::bytes message = new_bytes(plan.bytes);
  released([&] { wire_write(plan, {content(message), plan.bytes}); });
  return message;
}

nb::bytes encode(In<float, 2> x, size_t first, size_t step, size_t columns, const std::string& format) {
  return written(released(
      [&] { return wire_plan({x.data(), x.shape(0), x.shape(1), {first, step}, columns}, wire_format(format)); }));
}

// Which of `width` columns each rank owns: of as many as all shares together, as many as its own.
template <class Array> auto shares_of(Array& x, const std::vector<size_t>& shares, size_t width) {
  using View = ColumnView<std::remove_pointer_t<decltype(x.data())>>;
  const size_t step = std::accumulate(shares.begin(), shares.end(), size_t{0});
  std::vector<View> views;
  size_t first = 0;
  for (const size_t share : shares) {
    const Stripe own = stripe({first, step, share});
    const size_t rest = width % step;
    const size_t count = width / step * share + (rest > first ? std::min(rest - first, share) : 0);
    views.push_back(View{x.data(), x.shape(0), x.shape(1), own, count});
    first += share;
  }
  return views;
}

nb::list encode_shares(In<float, 2> x, const std::vector<size_t>& shares, size_t width, const std::string& format) {
  std::vector<WirePlan> plans;
  released([&] {
    for (const auto& share : shares_of(x, shares, width)) plans.push_back(wire_plan(share, wire_format(format)));
  });
  nb::list messages;
  for (const WirePlan& plan : plans) messages.append(written(plan));
  return messages;
}

std::vector<Bytes> views(const std::vector<Message>& messages) {
  std::vector<Bytes> all;
  all.reserve(messages.size());
  for (const Message& m : messages) all.emplace_back(m.data(), m.size());
  return all;
}

void check_sizes(const std::vector<Message>& messages, size_t bytes) {
  require(!messages.empty(), "there are no messages");
  for (const Message& m : messages) {
    require(m.size() == bytes, "a message has ", m.size(), " bytes, not ", bytes);
  }
}

nb::bytes table(Offsets offsets, Rankings ranking, size_t want) {
  const size_t rows = check_offsets(offsets, ranking.shape(0));
  std::vector<uint32_t> made(rows * want);
  ranking_table({rows, offsets.data(), nullptr, nullptr}, ranking.data(), want, made.data());
  return nb::bytes(made.data(), made.size() * sizeof(uint32_t));
}

nb::tuple kept_hits(Offsets offsets, Ids ids, Rankings ranking, const std::vector<Message>& tables, size_t want) {
  const size_t rows = check_offsets(offsets, ids.shape(0));
  require(has_shape(ranking, ids.shape(0)), "as many rankings as hits are needed");
  require(want > 0, "at least one hit must be wanted");
  check_sizes(tables, rows * want * sizeof(uint32_t));
  const Csr hits{rows, offsets.data(), ids.data(), nullptr};
  const std::vector<size_t> kept = best_hits(hits, ranking.data(), views(tables), want);
  std::vector<int64_t> begin(rows + 1);
  std::vector<int32_t> neurons(kept.size());
  size_t row = 0;
  for (size_t i = 0; i < kept.size(); ++i) {
    while (static_cast<int64_t>(kept[i]) >= offsets(row + 1)) begin[++row] = static_cast<int64_t>(i);
    neurons[i] = ids(kept[i]);
  }
  while (row < rows) begin[++row] = static_cast<int64_t>(kept.size());
  return nb::make_tuple(owned(std::move(begin)), owned(std::move(neurons)));
}
}  // namespace

void bind_wire(nb::module_& m) {
  m.def("wire_encode", &encode, "x"_a, "first"_a, "step"_a, "columns"_a, "format"_a,
        "Encodes the `columns` columns first, first + step, ... of x: 'float32', 'bf16' or 'int8'.");
  m.def(
      "wire_encode_shares", &encode_shares, "x"_a, "shares"_a, "width"_a, "format"_a,
      "For each rank a message with its columns of the first `width` of x: of as many as all shares together, as many "
      "as its own.");
  define(
      m, "wire_decode",
      args(
          "message"_a, "out"_a, "first"_a, "step"_a, "columns"_a, "add"_a,
          nb::sig("def wire_decode(message: bytes | bytearray | memoryview, out: numpy.typing.NDArray[numpy.float32], "
                  "first: int, step: int, columns: int, add: bool) -> None"),
          "Writes a message's values to columns of out, or adds them; ValueError, and out unchanged, if the message is "
          "not valid for these rows and columns."),
      [](Message message, Out<float, 2> out, size_t first, size_t step, size_t columns, bool add) {
    wire_decode({message.data(), message.size()}, {out.data(), out.shape(0), out.shape(1), {first, step}, columns},
                add);
  });
  define(m, "wire_decode_shares",
         args("messages"_a, "out"_a, "shares"_a, "width"_a,
              nb::sig("def wire_decode_shares(messages: collections.abc.Sequence[bytes | bytearray | memoryview], out: "
                      "numpy.typing.NDArray[numpy.float32], shares: collections.abc.Sequence[int], width: int) -> "
                      "None"),
              "Writes each rank's share of the first `width` columns of out; ValueError if a message is not valid."),
         [](const std::vector<Message>& messages, Out<float, 2> out, const std::vector<size_t>& shares, size_t width) {
    require(messages.size() == shares.size(), "as many messages as shares are needed");
    const auto views = shares_of(out, shares, width);
    for (size_t r = 0; r < views.size(); ++r) {
      wire_decode({messages[r].data(), messages[r].size()}, views[r], false);
    }
  });
  define(m, "wire_decode_sum",
         args("messages"_a, "out"_a, "columns"_a,
              nb::sig("def wire_decode_sum(messages: collections.abc.Sequence[bytes | bytearray | memoryview], out: "
                      "numpy.typing.NDArray[numpy.float32], columns: int) -> None"),
              "Adds the values of all messages to the first columns of out; ValueError if a message is not valid."),
         [](const std::vector<Message>& messages, Out<float, 2> out, size_t columns) {
    for (const Message& message : messages) {
      wire_decode({message.data(), message.size()}, {out.data(), out.shape(0), out.shape(1), {}, columns}, true);
    }
  });
  m.def("wire_size", [](size_t rows, size_t columns, const std::string& format) {
    return wire_size(rows, columns, wire_format(format));
  }, "rows"_a, "columns"_a, "format"_a, "Bytes of the longest message of this shape.");

  m.def("ranking_table", &table, "offsets"_a, "ranking"_a, "want"_a,
        "The rankings of hits, at most `want` in a row, as a message to other ranks.");
  m.def("best_hits", &kept_hits, "offsets"_a, "ids"_a, "ranking"_a, "tables"_a, "want"_a,
        nb::sig("def best_hits(offsets: numpy.typing.NDArray[numpy.int64], ids: numpy.typing.NDArray[numpy.int32], "
                "ranking: numpy.typing.NDArray[numpy.uint32], tables: collections.abc.Sequence[bytes | bytearray | "
                "memoryview], want: int) -> tuple[numpy.typing.NDArray[numpy.int64], "
                "numpy.typing.NDArray[numpy.int32]]"),
        "Those of a rank's hits that are among the `want` best of their rows in the tables of all ranks.");
  define(m, "log_normaliser",
         args("messages"_a, "result"_a,
              nb::sig("def log_normaliser(messages: collections.abc.Sequence[bytes | bytearray | memoryview], result: "
                      "numpy.typing.NDArray[numpy.float32]) -> None"),
              "The log of the sum of exponentials over ranks, each of which gives (references, sums)."),
         [](const std::vector<Message>& messages, Out<float, 1> result) {
    check_sizes(messages, 2 * result.shape(0) * sizeof(float));
    log_normaliser(views(messages), result.shape(0), result.data());
  });
}
}  // namespace dslide
