// Hash functions, hash tables and their queries.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>
#include "bindings.hpp"
#include "csr.hpp"
#include "hashing/hash_functions.hpp"
#include "hashing/query.hpp"
#include "hashing/tables.hpp"

namespace dslide {
namespace {
// Rows of floats, each contiguous, with any stride between rows.
using FloatRows = Exact<const float, nb::ndim<2>, nb::device::cpu>;

std::unique_ptr<HashFunctions> make_functions(const std::string& family, size_t dimension, size_t k, size_t tables,
                                              size_t table_bits, uint64_t seed) {
  const auto kind = named<Family>(family, {"simhash", "wta", "dwta", "minhash"},
                                  "family must be simhash, wta, dwta or minhash, not ", family);
  return HashFunctions::make({kind, dimension, k, tables, table_bits, seed});
}

void check_equal(const char* name, size_t value, size_t expected) {
  require(value == expected, name, " must be ", expected, ", not ", value);
}

nb::ndarray<nb::numpy, uint32_t> hash_dense(const HashFunctions& self, const FloatRows& x,
                                            const std::optional<In<int32_t, 1>>& rows) {
  check_equal("the number of columns", x.shape(1), self.spec().dimension);
  const bool contiguous = x.shape(0) == 0 || x.shape(1) == 1 || x.stride(1) == 1;
  const bool apart = x.shape(0) < 2 || x.stride(0) >= static_cast<int64_t>(x.shape(1));
  require(contiguous && apart, "rows must be contiguous and must not overlap");
  for (size_t i = 0; rows && i < rows->size(); ++i) {
    require(rows->data()[i] >= 0 && static_cast<size_t>(rows->data()[i]) < x.shape(0), "row numbers must be below ",
            x.shape(0), ", not ", rows->data()[i]);
  }
  const DenseRows dense{x.data(), rows ? rows->size() : x.shape(0), static_cast<size_t>(x.stride(0)),
                        rows ? rows->data() : nullptr};
  auto codes = std::make_unique<uint32_t[]>(dense.count * self.spec().tables);
  released([&] { self.dense(dense, codes.get()); });
  return owned(std::move(codes), {dense.count, self.spec().tables});
}

nb::ndarray<nb::numpy, uint32_t> hash_sparse(const HashFunctions& self, const In<int64_t, 1>& indptr,
                                             const In<int32_t, 1>& indices, const In<float, 1>& values) {
  check_range("the length of indptr", indptr.size(), 1, SIZE_MAX);
  check_equal("the number of values", values.size(), indices.size());
  const size_t count = indptr.size() - 1;
  int64_t last = 0;
  for (size_t i = 0; i <= count; ++i) {
    require(indptr.data()[i] >= last && indptr.data()[i] <= static_cast<int64_t>(values.size()),
            "indptr must not descend and must end at most at the number of values");
    last = indptr.data()[i];
  }
  auto codes = std::make_unique<uint32_t[]>(count * self.spec().tables);
  released([&] { self.sparse({count, indptr.data(), indices.data(), values.data()}, codes.get()); });
  return owned(std::move(codes), {count, self.spec().tables});
}

void bind_functions(nb::module_& m) {
  nb::class_<HashFunctions> functions(m, "HashFunctions",
                                      "Maps vectors to one bucket number for each of some hash tables.");
  functions.def(nb::new_(&make_functions), "family"_a, "dimension"_a, "k"_a, "tables"_a, "table_bits"_a, "seed"_a);
  functions.def("dense", &hash_dense, "x"_a, "rows"_a = nb::none(),
                "Codes (rows, tables) of the rows of a float32 matrix, or of those numbered in `rows`.");
  functions.def("sparse", &hash_sparse, "indptr"_a, "indices"_a, "values"_a,
                "Codes (rows, tables) of CSR rows whose column numbers ascend.");
}

nb::ndarray<nb::numpy, int32_t> bucket(const Tables& self, size_t table, size_t code) {
  check_range("table", table, 0, self.spec().tables - 1);
  check_range("code", code, 0, self.buckets() - 1);
  const auto found = self.bucket(table, static_cast<uint32_t>(code));
  auto neurons = std::make_unique<int32_t[]>(found.size());
  std::copy(found.begin(), found.end(), neurons.get());
  return owned(std::move(neurons), {found.size()});
}

// A read-only view of the tables' memory that keeps them alive.
nb::ndarray<nb::numpy, const uint32_t> all_codes(nb::handle_t<Tables> self) {
  const Tables& tables = nb::cast<const Tables&>(self);
  return {tables.codes(0).data(), {tables.spec().tables, tables.spec().neurons}, self};
}

void bind_tables(nb::module_& m) {
  nb::class_<Occupancy>(m, "Occupancy", "How full the buckets are.")
      .def_ro("mean", &Occupancy::mean, "Mean number of neurons per bucket.")
      .def_ro("max", &Occupancy::max, "Neurons in the fullest bucket.")
      .def_ro("empty_share", &Occupancy::empty_share, "Share of empty buckets.")
      .def_ro("dropped", &Occupancy::dropped, "Neurons evicted from full buckets, over all tables.")
      .def_ro("by_size", &Occupancy::by_size, "Neurons, over all tables, in buckets of size 1, 2 to 3, 4 to 7, ...");
  m.attr("NO_BUCKET") = NO_BUCKET;
  nb::class_<Tables> tables(m, "Tables", "Hash tables over the neurons of a layer.");
  define(tables, "__init__", args("neurons"_a, "tables"_a, "table_bits"_a, "bucket_size"_a, "policy"_a, "seed"_a),
         [](Tables* self, size_t neurons, size_t count, size_t table_bits, size_t bucket_size,
            const std::string& policy, uint64_t seed) {
    const auto kind =
        named<BucketPolicy>(policy, {"fifo", "reservoir"}, "policy must be fifo or reservoir, not ", policy);
    new (self) Tables({neurons, count, table_bits, bucket_size, kind, seed});
  });
  define(tables, "set_codes",
         args("neurons"_a, "codes"_a, "Sets the codes (neurons, tables) of some neurons; buckets change at rebuild()."),
         [](Tables& self, In<int32_t, 1> neurons, In<uint32_t, 2> codes) {
    check_equal("the number of rows of codes", codes.shape(0), neurons.size());
    check_equal("the number of columns of codes", codes.shape(1), self.spec().tables);
    self.set_codes(neurons.data(), neurons.size(), codes.data());
  });
  tables.def_prop_ro("codes", &all_codes, "Codes (tables, neurons) of all neurons, as last set; no copy.");
  define(tables, "rebuild", args("Rebuilds all buckets from the codes."), &Tables::rebuild);
  tables.def("bucket", &bucket, "table"_a, "code"_a, "Neurons in a bucket, ascending.");
  define(tables, "occupancy", args(), &Tables::occupancy);
  tables.def("bytes", &Tables::bytes, "Memory used.");
}

void make_query(Query* self, const Tables& tables, const StripeArgument& stripe_of) {
  new (self) Query(tables, stripe(stripe_of));
}

using Codes = In<uint32_t, 2>;  // (rows, tables)

void check_codes(const Query& self, const Codes& codes) {
  check_equal("the number of columns of codes", codes.shape(1), self.tables().spec().tables);
}

nb::tuple counted(Query& self, Codes codes, size_t at_least, std::optional<size_t> limit, uint64_t seed, uint64_t step,
                  size_t first_row) {
  check_codes(self, codes);
  const RowSeeds seeds{seed, step, first_row};
  Hits hits =
      released([&] { return self.counted(codes.data(), codes.shape(0), at_least, limit.value_or(NO_LIMIT), seeds); });
  std::vector<uint32_t> ranking = self.ranking(hits, seeds);
  return nb::make_tuple(owned(std::move(hits.offsets)), owned(std::move(hits.neurons)), owned(std::move(hits.counts)),
                        owned(std::move(ranking)));
}

nb::tuple most_frequent(Query& self, Codes codes, std::optional<size_t> limit, uint64_t seed, uint64_t step,
                        size_t first_row) {
  return counted(self, codes, 1, limit, seed, step, first_row);
}

nb::tuple candidates(Query& self, Codes codes) { return counted(self, codes, 1, std::nullopt, 0, 0, 0); }

nb::tuple vanilla(Query& self, Codes codes, std::optional<size_t> limit, uint64_t seed, uint64_t step,
                  size_t first_row) {
  check_codes(self, codes);
  const RowSeeds seeds{seed, step, first_row};
  Hits hits = released([&] { return self.vanilla(codes.data(), codes.shape(0), limit.value_or(NO_LIMIT), seeds); });
  return nb::make_tuple(owned(std::move(hits.offsets)), owned(std::move(hits.neurons)));
}

void bind_query(nb::module_& m) {
  nb::class_<Query>(m, "Query",
                    "Looks rows up in hash tables. Every method takes codes (rows, tables) and returns offsets "
                    "(rows + 1) and neuron numbers, ascending within a row; all but vanilla also return the number of "
                    "tables in which each neuron was found, and a score, higher for preferred neurons. `limit` bounds "
                    "the neurons of a row; None: no limit. The tables hold a stripe of the layer's neurons.")
      .def("__init__", &make_query, "tables"_a, "stripe"_a = ALL, nb::keep_alive<1, 2>())
      .def("vanilla", &vanilla, "codes"_a, "limit"_a, "seed"_a, "step"_a, "first_row"_a = 0,
           "The first neurons found in the row's buckets, visited in random order.")
      .def("topk", &most_frequent, "codes"_a, "limit"_a, "seed"_a, "step"_a, "first_row"_a = 0,
           "The neurons found in most tables, random tie-break.")
      .def("threshold", &counted, "codes"_a, "threshold"_a, "limit"_a, "seed"_a, "step"_a, "first_row"_a = 0,
           "The neurons found in at least `threshold` tables, the most frequent first, random tie-break.")
      .def("candidates", &candidates, "codes"_a, "All neurons found.");
}
}  // namespace

void bind_hashing(nb::module_& m) {
  define(m, "mark", args("marks"_a, "ids"_a, "Sets the marks of some ids."),
         [](Out<bool, 1> marks, In<int32_t, 1> ids) {
    for (size_t i = 0; i < ids.shape(0); ++i) {
      require(ids(i) >= 0 && static_cast<size_t>(ids(i)) < marks.shape(0), "an id is out of range");
      marks(ids(i)) = true;
    }
  });
  bind_functions(m);
  bind_tables(m);
  bind_query(m);
}
}  // namespace dslide
