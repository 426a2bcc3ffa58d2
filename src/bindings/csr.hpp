// Checked arguments: stripes, CSR matrices and calibration.
#pragma once
#include <nanobind/stl/tuple.h>
#include <algorithm>
#include <optional>
#include <tuple>
#include "bindings.hpp"
#include "data/csr.hpp"
#include "layers/calibration.hpp"
#include "layers/input_groups.hpp"
#include "runtime/stripe.hpp"

namespace dslide {
using Offsets = In<int64_t, 1>;
using Ids = In<int32_t, 1>;
using Floats = In<float, 1>;

constexpr size_t ANY_ID = 0x80000000u;  // upper bound of ids that are not checked against a size

// Of every `step` elements those from `first` on, as many as `width`: as Python gives them.
using StripeArgument = std::tuple<size_t, size_t, size_t>;
constexpr StripeArgument ALL{0, 1, 1};

inline Stripe stripe(const StripeArgument& given) {
  const auto [first, step, width] = given;
  require(0 < width && width <= MAX_STRIPE_WIDTH && width <= step && first <= step - width && step <= 0x7fffffff,
          "a stripe's elements must be 1 to ", MAX_STRIPE_WIDTH, " among those that it repeats after");
  return {first, step, width};
}

// The number of rows. Checks that the offsets start at 0, do not decrease and end at `elements`.
template <class Array> size_t check_offsets(const Array& offsets, size_t elements) {
  require(offsets.shape(0) > 0, "offsets must have one element more than there are rows");
  const size_t rows = offsets.shape(0) - 1;
  require(offsets(0) == 0 && static_cast<size_t>(offsets(rows)) == elements, "offsets don't span the ids");
  for (size_t i = 0; i < rows; ++i) require(offsets(i) <= offsets(i + 1), "offsets must not decrease");
  return rows;
}

// CSR lists without values, with valid offsets and with ids below `bound`.
template <class Offsets, class Ids> Csr lists(const Offsets& offsets, const Ids& ids, size_t rows, size_t bound) {
  require(check_offsets(offsets, ids.shape(0)) == rows, "offsets must have one element more than there are rows");
  const int32_t* id = ids.data();
  uint32_t largest = 0;  // a negative id is huge as unsigned; branch-free, so that the loop is vectorised
  for (size_t e = 0; e < ids.shape(0); ++e) largest = std::max(largest, static_cast<uint32_t>(id[e]));
  require(ids.shape(0) == 0 || largest < std::min(bound, ANY_ID), "an id is out of range");
  return {rows, offsets.data(), id, nullptr};
}

// The same for optional arguments; a null view if they are None.
inline Csr lists(const std::optional<Offsets>& offsets, const std::optional<Ids>& ids, size_t rows, size_t bound) {
  return offsets && ids ? lists(*offsets, *ids, rows, bound) : Csr{};
}

// The same with a value for each id.
template <class Offsets, class Ids, class Floats>
Csr matrix(const Offsets& offsets, const Ids& ids, const Floats& values, size_t rows, size_t bound,
           const char* mismatch = "as many values as ids are needed") {
  require(ids.shape(0) == values.shape(0), mismatch);
  Csr csr = lists(offsets, ids, rows, bound);
  csr.values = values.data();
  return csr;
}

// Groups of a batch's elements, which may be None.
inline const GroupedInputs* groups_of(const GroupedInputs* groups, const Csr& x, size_t inputs) {
  require(!groups || groups->fit(x, inputs), "these are the groups of another batch");
  return groups;
}

// The calibration of a layer; of the identity if there are no numbers.
inline Calibration calibration_of(size_t neurons, const std::optional<In<float, 2>>& numbers, bool saturates) {
  require(!numbers || has_shape(*numbers, neurons, Calibration::NUMBERS), "calibration must be neurons x 7");
  return {numbers ? numbers->data() : nullptr, saturates};
}
}  // namespace dslide
