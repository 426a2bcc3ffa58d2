#include "hashing/hash_functions.hpp"
#include "hashing/hash_family.hpp"
#include "runtime/checks.hpp"
#include "runtime/thread_pool.hpp"

namespace dslide {
namespace {
void check_ascending(const Csr& x, size_t row, size_t dimension) {
  int64_t least = 0;
  for (int64_t i = x.offsets[row]; i < x.offsets[row + 1]; ++i) {
    const int64_t column = x.ids[i];
    require(column >= least && column < static_cast<int64_t>(dimension), "row ", row,
            ": column numbers must ascend and be below ", dimension, ", but there is ", column);
    least = column + 1;
  }
}
}  // namespace

std::unique_ptr<HashFunctions> HashFunctions::make(const HashSpec& spec) {
  check_range("dimension", spec.dimension, 1, 0x7FFFFFFF);
  check_range("k", spec.k, 1, 64);
  check_range("tables", spec.tables, 1, 1024);
  check_range("table_bits", spec.table_bits, 1, 24);
  switch (spec.family) {
    case Family::simhash: return make_simhash(spec);
    case Family::wta:
    case Family::dwta: return make_wta(spec);
    case Family::minhash: return make_minhash(spec);
  }
  throw std::invalid_argument("there is no such family of hash functions");
}

void HashFunctions::dense(const DenseRows& x, uint32_t* codes) const {
  parallel_for(x.count, [&](size_t begin, size_t end, int) { dense_part(x, begin, end, codes); });
}

void HashFunctions::sparse(const Csr& x, uint32_t* codes) const {
  parallel_for(x.rows, [&](size_t begin, size_t end, int) {
    for (size_t row = begin; row < end; ++row) check_ascending(x, row, spec_.dimension);
    sparse_part(x, begin, end, codes);
  });
}
}  // namespace dslide
