// Locality-sensitive hash functions: similar vectors are more likely to get equal bucket numbers.
//
// For each of `tables` tables, k codes of a vector are combined into a bucket number below 2^table_bits. Families:
//   simhash  a code is the sign of a random +-1 projection (1 bit); sensitive to the angle.
//   wta      a code is the position of the largest of 8 random coordinates (3 bits); sensitive to the order of
//            coordinates, not to their magnitude.
//   dwta     the same among the coordinates that are not exactly 0; a bin without any borrows the code of another.
//   minhash  the set of a vector is its largest positive coordinates (an eighth of all); a code is the smallest hash
//            value in a bin of the set (one permutation, empty bins borrow); sensitive to the overlap of sets.
// wta and dwta read at most 8 k tables coordinates, which is poor for sparse rows of a much larger dimension.
//
// A vector gets the same bucket numbers in dense and sparse form (missing coordinates are 0, for wta too), with any
// number of threads and any instruction set.
#pragma once
#include <memory>
#include "data/csr.hpp"

namespace dslide {
enum class Family { simhash, wta, dwta, minhash };

struct HashSpec {
  Family family;
  size_t dimension;   // 1 to 2^31 - 1
  size_t k;           // 1 to 64
  size_t tables;      // 1 to 1024
  size_t table_bits;  // 1 to 24
  uint64_t seed;
};

// Rows of a row-major matrix: the first `count`, or those listed in `rows`.
struct DenseRows {
  const float* data;
  size_t count;
  size_t stride;                  // in floats, at least the dimension
  const int32_t* rows = nullptr;  // (count) or null

  const float* operator[](size_t i) const { return data + (rows ? static_cast<size_t>(rows[i]) : i) * stride; }
};

class HashFunctions {
 public:
  static std::unique_ptr<HashFunctions> make(const HashSpec& spec);
  virtual ~HashFunctions() = default;

  // codes is (count, tables). The ids of sparse rows must ascend strictly.
  void dense(const DenseRows& x, uint32_t* codes) const;
  void sparse(const Csr& x, uint32_t* codes) const;

  const HashSpec& spec() const { return spec_; }

 protected:
  explicit HashFunctions(const HashSpec& spec) : spec_(spec) {}

  // The same for rows [begin, end) on one thread; codes points to those of row 0.
  virtual void dense_part(const DenseRows& x, size_t begin, size_t end, uint32_t* codes) const = 0;
  virtual void sparse_part(const Csr& x, size_t begin, size_t end, uint32_t* codes) const = 0;

  const HashSpec spec_;
};
}  // namespace dslide
