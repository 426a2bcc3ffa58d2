// Text files and sparse rows.
#include <nanobind/stl/pair.h>
#include <algorithm>
#include <utility>
#include "bindings.hpp"
#include "data/csr.hpp"
#include "data/gather_dense.hpp"
#include "data/parse_rows.hpp"
#include "runtime/thread_pool.hpp"

namespace dslide {
namespace {
nb::tuple arrays(CsrArrays csr) {
  return nb::make_tuple(owned(std::move(csr.offsets), {csr.rows + 1}), owned(std::move(csr.ids), {csr.nnz}),
                        owned(std::move(csr.values), {csr.nnz}));
}

nb::object seen(const IndexSeen& s) { return nb::make_tuple(s.min, s.min_line, s.max, s.max_line); }

nb::dict parse(nb::bytes text, std::pair<int64_t, int64_t> features, std::pair<int64_t, int64_t> labels, bool comments,
               size_t chunk_bytes, int parts) {
  const std::string_view view(text.c_str(), text.size());
  require(view.empty() || view.back() == '\n', "the text must end with a newline");
  const IndexLimits x{features.first, features.second}, y{labels.first, labels.second};
  const ParseOptions options{x, y, comments, chunk_bytes, parts > 0 ? parts : threads()};
  ParsedRows rows = released([&] { return parse_rows(view, options); });
  nb::dict out;
  if (rows.fault != Fault::none) {
    const nb::bytes word(rows.fault_text.data(), rows.fault_text.size());
    out["fault"] = nb::make_tuple(name(rows.fault), rows.fault_line, word);
    return out;
  }
  out["fault"] = nb::none();
  out["rows"] = rows.rows;
  out["lines"] = rows.lines;
  out["blank_end"] = rows.blank_end;
  out["x_seen"] = seen(rows.x.seen);
  out["y_seen"] = seen(rows.y.seen);
  out["x"] = arrays(std::move(rows.x.csr));
  out["y"] = arrays(std::move(rows.y.csr));
  return out;
}

nb::tuple gather(In<int64_t, 1> indptr, In<int32_t, 1> indices, In<float, 1> values, int64_t columns,
                 In<int64_t, 1> ids) {
  require(indptr.size() > 0, "indptr must not be empty");
  const Csr from{indptr.size() - 1, indptr.data(), indices.data(), values.data()};
  const size_t nnz = std::min(indices.size(), values.size());
  return arrays(released([&] { return gather_rows(from, nnz, columns, {ids.data(), ids.size()}); }));
}

// numpy has no type for float16 that nanobind knows: its numbers come as uint16.
Stored stored_type(const nb::dlpack::dtype& type) {
  if (type == nb::dtype<uint16_t>()) return Stored::float16;
  if (type == nb::dtype<float>()) return Stored::float32;
  require(type == nb::dtype<double>(), "expected numbers of uint16 (as float16), float32 or float64");
  return Stored::float64;
}

void gather_matrix(const InStored<2>& from, const In<int64_t, 1>& ids, const Out<float, 2>& out) {
  require(out.shape(0) == ids.size() && out.shape(1) >= from.shape(1), "out must be ids x at least the columns");
  const StoredMatrix matrix{from.data(), stored_type(from.dtype()), from.shape(0), from.shape(1)};
  released([&] { gather_dense(matrix, {ids.data(), ids.size()}, out.data(), out.shape(1)); });
}
}  // namespace

void bind_data(nb::module_& m) {
  m.def("parse_rows", &parse, "text"_a, "features"_a, "labels"_a, "comments"_a, "chunk_bytes"_a = size_t{1} << 18,
        "threads"_a = 0, "Parses lines `label,label:weight feature:value ...`; threads = 0: the number of the core.");
  m.def("gather_rows", &gather, "indptr"_a, "indices"_a, "values"_a, "columns"_a, "ids"_a,
        "The selected rows of a CSR matrix: (indptr, indices, values).");
  m.def("gather_dense", &gather_matrix, "matrix"_a, "ids"_a, "out"_a,
        "Copies the selected rows of a matrix, of float16 (as uint16), float32 or float64, and fills the rest with 0.");
}
}  // namespace dslide
