// Neighbours: training rows like a row, and their labels.
#include "layers/neighbours.hpp"
#include "bindings.hpp"
#include "csr.hpp"

namespace dslide {
namespace {
void init(NeighbourIndex* index, const DenseLayer& centres, const DenseLayer& vectors, Kept<int64_t, 1> cells,
          Kept<int64_t, 1> offsets, Kept<int32_t, 1> labels, size_t all_labels) {
  const size_t rows = vectors.weights().rows;
  require(check_offsets(cells, rows) == centres.weights().rows, "cells must have one element more than centres");
  require(centres.weights().stride == vectors.weights().stride, "centres and vectors must have the same stride");
  new (index)
      NeighbourIndex(centres, vectors, {cells.data(), cells.shape(0)}, lists(offsets, labels, rows, all_labels));
}

void votes(const NeighbourIndex& index, In<float, 2> h, In<int32_t, 2> wanted, Out<float, 2> found, size_t probes,
           size_t count, float power) {
  const size_t rows = h.shape(0), labels = wanted.shape(1);
  require(h.shape(1) == index.stride(), "h must be rows x stride");
  require(has_shape(wanted, rows, labels) && has_shape(found, rows, labels), "as many labels as votes are needed");
  require(power >= 0, "the power can't be negative");
  index.votes(h.data(), rows, wanted.data(), labels, {probes, count, power}, found.data());
}
}  // namespace

void bind_neighbours(nb::module_& m) {
  nb::class_<NeighbourIndex> index(m, "NeighbourIndex", "Hidden vectors of training rows, by cell, and their labels.");
  define(index, "__init__",
         args("centres"_a, "vectors"_a, "cells"_a, "offsets"_a, "labels"_a, "all_labels"_a, nb::keep_alive<1, 2>(),
              nb::keep_alive<1, 3>(), nb::keep_alive<1, 4>(), nb::keep_alive<1, 5>(), nb::keep_alive<1, 6>()),
         &init);
  define(index, "votes",
         args("h"_a, "wanted"_a, "votes"_a, "probes"_a, "count"_a, "power"_a,
              "The share of each row's nearest training rows, by weight, that have each of some labels."),
         &votes);
}
}  // namespace dslide
