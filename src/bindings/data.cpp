// Text files and sparse rows.
#include <nanobind/stl/pair.h>

#include <span>
#include <stdexcept>

#include "bindings.hpp"
#include "data/gather_rows.hpp"
#include "data/parse_rows.hpp"
#include "runtime/thread_pool.hpp"

namespace dslide {
namespace {

template <class T>
std::span<const T> span_of(const In<T, 1>& array) {
  return {array.data(), array.size()};
}

nb::object matrix(ParsedMatrix& m, size_t rows) {
  return nb::make_tuple(owned(std::move(m.indptr), {rows + 1}), owned(std::move(m.indices), {m.nnz}),
                        owned(std::move(m.values), {m.nnz}));
}

nb::object seen(const IndexSeen& s) { return nb::make_tuple(s.min, s.min_line, s.max, s.max_line); }

nb::dict parse(nb::bytes text, std::pair<int64_t, int64_t> features, std::pair<int64_t, int64_t> labels, bool comments,
               size_t chunk_bytes, int parts) {
  const std::string_view view(text.c_str(), text.size());
  if (!view.empty() && view.back() != '\n') throw std::invalid_argument("the text must end with a newline");
  const ParseOptions options{{features.first, features.second},
                             {labels.first, labels.second},
                             comments,
                             chunk_bytes,
                             parts > 0 ? parts : threads()};
  ParsedRows rows;
  {
    nb::gil_scoped_release release;
    rows = parse_rows(view, options);
  }
  nb::dict out;
  if (rows.fault != Fault::none) {
    out["fault"] =
        nb::make_tuple(name(rows.fault), rows.fault_line, nb::bytes(rows.fault_text.data(), rows.fault_text.size()));
    return out;
  }
  out["fault"] = nb::none();
  out["rows"] = rows.rows;
  out["lines"] = rows.lines;
  out["blank_end"] = rows.blank_end;
  out["x_seen"] = seen(rows.x.seen);
  out["y_seen"] = seen(rows.y.seen);
  out["x"] = matrix(rows.x, rows.rows);
  out["y"] = matrix(rows.y, rows.rows);
  return out;
}

nb::tuple gather(In<int64_t, 1> indptr, In<int32_t, 1> indices, In<float, 1> values, int64_t columns,
                 In<int64_t, 1> ids) {
  if (indptr.size() == 0) throw std::invalid_argument("indptr must not be empty");
  const CsrView from{span_of(indptr), span_of(indices), span_of(values), columns};
  const size_t rows = ids.size();
  std::unique_ptr<int64_t[]> bounds(new int64_t[rows + 1]);
  std::unique_ptr<int32_t[]> out_indices;
  std::unique_ptr<float[]> out_values;
  size_t nnz;
  {
    nb::gil_scoped_release release;
    gather_bounds(from, span_of(ids), {bounds.get(), rows + 1});
    nnz = static_cast<size_t>(bounds[rows]);
    out_indices.reset(new int32_t[nnz]);
    out_values.reset(new float[nnz]);
    gather_rows(from, span_of(ids), {bounds.get(), rows + 1}, {out_indices.get(), nnz}, {out_values.get(), nnz});
  }
  return nb::make_tuple(owned(std::move(bounds), {rows + 1}), owned(std::move(out_indices), {nnz}),
                        owned(std::move(out_values), {nnz}));
}

}  // namespace

void bind_data(nb::module_& m) {
  m.def("parse_rows", &parse, nb::arg("text"), nb::arg("features"), nb::arg("labels"), nb::arg("comments"),
        nb::arg("chunk_bytes") = size_t{1} << 18, nb::arg("threads") = 0,
        "Reads lines `label,label:weight feature:value ...`; threads = 0 takes the core's number.");
  m.def("gather_rows", &gather, nb::arg("indptr"), nb::arg("indices"), nb::arg("values"), nb::arg("columns"),
        nb::arg("ids"), "The chosen rows of a CSR matrix: (indptr, indices, values).");
}

}  // namespace dslide
