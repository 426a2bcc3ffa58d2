// Active sets, and labels and losses in their slots.
#include <nanobind/stl/optional.h>

#include <stdexcept>

#include "bindings.hpp"
#include "layers/active_set.hpp"
#include "layers/block.hpp"
#include "layers/loss.hpp"
#include "lists.hpp"

namespace dslide {
namespace {

using release = nb::gil_scoped_release;

ActiveSet sampled(bool per_row, size_t neurons, const In<int64_t, 1>& offsets, const In<int32_t, 1>& ids,
                  std::optional<In<int64_t, 1>> hit_offsets, std::optional<In<int32_t, 1>> hit_ids, size_t draw,
                  uint64_t seed, bool correct, std::optional<size_t> of, size_t first, size_t step) {
  require(neurons > 0 && neurons <= 0x7fffffff && of.value_or(neurons) > 0 && of.value_or(neurons) <= 0x7fffffff,
          "the number of neurons must be 1 to 2^31 - 1");
  const Stripe own = stripe(first, step);
  require(offsets.shape(0) > 1, "a batch needs rows");
  const size_t rows = offsets.shape(0) - 1;
  const Lists certain = lists(offsets, ids, rows, neurons);
  Lists hits;
  if (hit_offsets && hit_ids) hits = lists(*hit_offsets, *hit_ids, rows, neurons);
  release unlocked;
  const Draw d{draw, seed, correct, of.value_or(neurons), own};
  return per_row ? ActiveSet::per_row(neurons, rows, certain, hits, d) : ActiveSet::shared(rows, certain, hits, d);
}

// A read-only view of a vector that its owner keeps alive.
template <class T>
nb::ndarray<nb::numpy, const T, nb::ndim<1>> view(const std::vector<T>& v, nb::handle owner) {
  return nb::ndarray<nb::numpy, const T, nb::ndim<1>>(v.data(), {v.size()}, owner);
}

// Labels with their places in the active set.
struct SlotLabels {
  std::vector<int64_t> found;
  Labels labels;

  SlotLabels(const ActiveSet& active, const In<int64_t, 1>& offsets, const In<int32_t, 1>& ids,
             const In<float, 1>& targets) {
    require(ids.shape(0) == targets.shape(0), "as many targets as labels are needed");
    const Lists l = lists(offsets, ids, active.rows, 0x80000000u);
    release unlocked;
    found = active.find(l);
    labels = {l, targets.data(), found.data()};
  }
};

}  // namespace

void bind_active(nb::module_& m) {
  nb::class_<ActiveSet>(m, "ActiveSet", "Which neurons are computed for a batch.")
      .def_static(
          "everything",
          [](size_t neurons, size_t rows) {
            require(neurons > 0 && neurons <= 0x7fffffff, "the number of neurons must be 1 to 2^31 - 1");
            return ActiveSet::everything(neurons, rows);
          },
          nb::arg("neurons"), nb::arg("rows"))
      .def_static("sampled", &sampled, nb::arg("per_row"), nb::arg("neurons"), nb::arg("offsets"), nb::arg("ids"),
                  nb::arg("hit_offsets").none(), nb::arg("hit_ids").none(), nb::arg("draw"), nb::arg("seed"),
                  nb::arg("correct"), nb::arg("of").none() = nb::none(), nb::arg("first") = 0, nb::arg("step") = 1)
      .def_ro("rows", &ActiveSet::rows)
      .def_ro("is_everything", &ActiveSet::is_everything)
      .def_ro("is_per_row", &ActiveSet::is_per_row)
      .def_prop_ro("slots", &ActiveSet::slots)
      .def_prop_ro("mean", &ActiveSet::mean)
      .def_prop_ro("ids", [](nb::handle self) { return view(nb::cast<const ActiveSet&>(self).ids, self); })
      .def_prop_ro("log_weight",
                   [](nb::handle self) { return view(nb::cast<const ActiveSet&>(self).log_weight, self); })
      .def_prop_ro("row_begin", [](nb::handle self) { return view(nb::cast<const ActiveSet&>(self).row_begin, self); })
      .def_prop_ro("added_begin",
                   [](nb::handle self) { return view(nb::cast<const ActiveSet&>(self).added.begin, self); })
      .def_prop_ro("added_position",
                   [](nb::handle self) { return view(nb::cast<const ActiveSet&>(self).added.position, self); })
      .def_prop_ro("added_value",
                   [](nb::handle self) { return view(nb::cast<const ActiveSet&>(self).added.value, self); })
      .def_prop_ro("position", [](nb::handle self) { return view(nb::cast<const ActiveSet&>(self).position, self); });

  nb::class_<FoundLabels>(m, "FoundLabels", "A batch's labels, found in an active set that is not per row.")
      .def(
          "__init__",
          [](FoundLabels* f, const ActiveSet& active, In<int64_t, 1> offsets, In<int32_t, 1> ids,
             In<float, 1> targets) {
            require(!active.is_per_row, "not for active sets per row");
            require(ids.shape(0) == targets.shape(0), "as many targets as labels are needed");
            const Lists l = lists(offsets, ids, active.rows, active.is_everything ? active.ids.size() : 0x80000000u);
            release unlocked;
            new (f) FoundLabels(active, l, targets.data());
          },
          nb::arg("active"), nb::arg("offsets").noconvert(), nb::arg("ids").noconvert(), nb::arg("targets").noconvert(),
          nb::keep_alive<1, 3>(), nb::keep_alive<1, 4>(), nb::keep_alive<1, 5>());

  m.def(
      "row_shares",
      [](In<int64_t, 1> offsets, In<float, 1> weights) {
        const size_t rows = check_offsets(offsets, weights.shape(0));
        std::unique_ptr<float[]> shares(new float[weights.shape(0)]);
        row_shares(offsets.data(), rows, weights.data(), shares.get());
        return owned(std::move(shares), {weights.shape(0)});
      },
      nb::arg("offsets"), nb::arg("weights"), "Weights in proportion within a row.");
  m.def(
      "softmax_stats",
      [](const ActiveSet& active, In<float, 1> z, Out<float, 1> reference, Out<float, 1> sum) {
        require(z.shape(0) == active.slots(), "logits must fill the slots");
        require(reference.shape(0) == active.rows && sum.shape(0) == active.rows, "one reference and sum per row");
        release unlocked;
        softmax_stats(active, z.data(), reference.data(), sum.data());
      },
      nb::arg("active"), nb::arg("z"), nb::arg("reference").noconvert(), nb::arg("sum").noconvert());
  m.def(
      "softmax_gradient",
      [](const ActiveSet& active, Out<float, 1> z, In<int64_t, 1> offsets, In<int32_t, 1> ids, In<float, 1> targets,
         In<float, 1> log_norm, float scale) {
        require(z.shape(0) == active.slots() && log_norm.shape(0) == active.rows, "logits must fill the slots");
        const SlotLabels f(active, offsets, ids, targets);
        release unlocked;
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
        release unlocked;
        return sigmoid_gradient(active, z.data(), f.labels, scale);
      },
      nb::arg("active"), nb::arg("z").noconvert(), nb::arg("offsets"), nb::arg("ids"), nb::arg("targets"),
      nb::arg("scale"));
}

}  // namespace dslide
