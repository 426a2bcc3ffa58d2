// Active sets, labels and losses.
#include <nanobind/stl/optional.h>

#include <stdexcept>

#include "bindings.hpp"
#include "csr.hpp"
#include "layers/active_set.hpp"
#include "layers/block.hpp"
#include "layers/loss.hpp"

namespace dslide {
namespace {

ActiveSet sampled(bool per_row, size_t neurons, const In<int64_t, 1>& offsets, const In<int32_t, 1>& ids,
                  std::optional<In<int64_t, 1>> hit_offsets, std::optional<In<int32_t, 1>> hit_ids,
                  size_t random_negatives, uint64_t seed, bool correct, std::optional<size_t> layer_neurons,
                  size_t first, size_t step) {
  require(neurons > 0 && neurons <= 0x7fffffff && layer_neurons.value_or(neurons) > 0 &&
              layer_neurons.value_or(neurons) <= 0x7fffffff,
          "the number of neurons must be 1 to 2^31 - 1");
  const Stripe own = stripe(first, step);
  require(offsets.shape(0) > 1, "a batch needs rows");
  const size_t rows = offsets.shape(0) - 1;
  const Csr certain = lists(offsets, ids, rows, neurons), hits = lists(hit_offsets, hit_ids, rows, neurons);
  nb::gil_scoped_release release;
  const RandomNegatives negatives{random_negatives, seed, correct, layer_neurons.value_or(neurons), own};
  return per_row ? ActiveSet::per_row(neurons, certain, hits, negatives) : ActiveSet::shared(certain, hits, negatives);
}

// A property: a read-only view of a vector of the set, which it keeps alive.
template <class Member>
auto view(const Member& member) {
  return [member](nb::handle self) {
    const auto& values = member(nb::cast<const ActiveSet&>(self));
    using T = typename std::decay_t<decltype(values)>::value_type;
    return nb::ndarray<nb::numpy, const T, nb::ndim<1>>(values.data(), {values.size()}, self);
  };
}

// Labels located in the active set.
struct SlotLabels {
  std::vector<int64_t> found;
  Labels labels;

  SlotLabels(const ActiveSet& active, const In<int64_t, 1>& offsets, const In<int32_t, 1>& ids,
             const In<float, 1>& targets) {
    const Csr l = labels_of(offsets, ids, targets, active.rows, ANY_ID);
    nb::gil_scoped_release release;
    found = active.find(l);
    labels = {l, found.data()};
  }
};

}  // namespace

void bind_active(nb::module_& m) {
  nb::class_<ActiveSet>(m, "ActiveSet", "The neurons that are computed for a batch.")
      .def_static(
          "everything",
          [](size_t neurons, size_t rows) {
            require(neurons > 0 && neurons <= 0x7fffffff, "the number of neurons must be 1 to 2^31 - 1");
            return ActiveSet::everything(neurons, rows);
          },
          nb::arg("neurons"), nb::arg("rows"))
      .def_static("sampled", &sampled, nb::arg("per_row"), nb::arg("neurons"), nb::arg("offsets"), nb::arg("ids"),
                  nb::arg("hit_offsets").none(), nb::arg("hit_ids").none(), nb::arg("random_negatives"),
                  nb::arg("seed"), nb::arg("correct"), nb::arg("layer_neurons").none() = nb::none(),
                  nb::arg("first") = 0, nb::arg("step") = 1)
      .def_ro("rows", &ActiveSet::rows)
      .def_ro("is_everything", &ActiveSet::is_everything)
      .def_ro("is_per_row", &ActiveSet::is_per_row)
      .def_prop_ro("slots", &ActiveSet::slots)
      .def_prop_ro("mean", &ActiveSet::mean)
      .def_prop_ro("ids", view([](const ActiveSet& a) -> auto& { return a.ids; }))
      .def_prop_ro("log_weight", view([](const ActiveSet& a) -> auto& { return a.log_weight; }))
      .def_prop_ro("row_begin", view([](const ActiveSet& a) -> auto& { return a.row_begin; }))
      .def_prop_ro("prior_begin", view([](const ActiveSet& a) -> auto& { return a.prior.begin; }))
      .def_prop_ro("prior_position", view([](const ActiveSet& a) -> auto& { return a.prior.position; }))
      .def_prop_ro("prior_value", view([](const ActiveSet& a) -> auto& { return a.prior.value; }))
      .def_prop_ro("position", view([](const ActiveSet& a) -> auto& { return a.position; }));

  nb::class_<FoundLabels>(m, "FoundLabels", "A batch's labels, located in an active set that is not per row.")
      .def(
          "__init__",
          [](FoundLabels* f, const ActiveSet& active, In<int64_t, 1> offsets, In<int32_t, 1> ids,
             In<float, 1> targets) {
            require(!active.is_per_row, "not for active sets per row");
            const size_t bound = active.is_everything ? active.ids.size() : ANY_ID;
            const Csr l = labels_of(offsets, ids, targets, active.rows, bound);
            nb::gil_scoped_release release;
            new (f) FoundLabels(active, l);
          },
          nb::arg("active"), nb::arg("offsets").noconvert(), nb::arg("ids").noconvert(), nb::arg("targets").noconvert(),
          nb::keep_alive<1, 3>(), nb::keep_alive<1, 4>(), nb::keep_alive<1, 5>());

  m.def(
      "row_shares",
      [](In<int64_t, 1> offsets, In<float, 1> weights) {
        const size_t rows = check_offsets(offsets, weights.shape(0));
        std::unique_ptr<float[]> shares(new float[weights.shape(0)]);
        row_shares({rows, offsets.data(), nullptr, weights.data()}, shares.get());
        return owned(std::move(shares), {weights.shape(0)});
      },
      nb::arg("offsets"), nb::arg("weights"), "Normalises weights to a sum of 1 within each row.");
  m.def(
      "softmax_stats",
      [](const ActiveSet& active, In<float, 1> z, Out<float, 1> reference, Out<float, 1> sum) {
        require(z.shape(0) == active.slots(), "logits must fill the slots");
        require(reference.shape(0) == active.rows && sum.shape(0) == active.rows, "one reference and sum per row");
        nb::gil_scoped_release release;
        softmax_stats(active, z.data(), reference.data(), sum.data());
      },
      nb::arg("active"), nb::arg("z"), nb::arg("reference").noconvert(), nb::arg("sum").noconvert());
  m.def(
      "softmax_gradient",
      [](const ActiveSet& active, Out<float, 1> z, In<int64_t, 1> offsets, In<int32_t, 1> ids, In<float, 1> targets,
         In<float, 1> log_norm, float scale) {
        require(z.shape(0) == active.slots() && log_norm.shape(0) == active.rows, "logits must fill the slots");
        const SlotLabels f(active, offsets, ids, targets);
        nb::gil_scoped_release release;
        return softmax_gradient(active, z.data(), f.labels, log_norm.data(), scale);
      },
      nb::arg("active"), nb::arg("z").noconvert(), nb::arg("offsets"), nb::arg("ids"), nb::arg("targets"),
      nb::arg("log_norm"), nb::arg("scale"));
  m.def(
      "sigmoid_gradient",
      [](const ActiveSet& active, Out<float, 1> z, In<int64_t, 1> offsets, In<int32_t, 1> ids, In<float, 1> targets,
         float scale) {
        require(z.shape(0) == active.slots(), "logits must fill the slots");
        const SlotLabels f(active, offsets, ids, targets);
        nb::gil_scoped_release release;
        return sigmoid_gradient(active, z.data(), f.labels, scale);
      },
      nb::arg("active"), nb::arg("z").noconvert(), nb::arg("offsets"), nb::arg("ids"), nb::arg("targets"),
      nb::arg("scale"));
}

}  // namespace dslide
