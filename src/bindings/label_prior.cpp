// Direct connections from inputs to outputs.
#include "layers/label_prior.hpp"

#include <nanobind/stl/optional.h>

#include <utility>
#include <vector>

#include "bindings.hpp"
#include "lists.hpp"

namespace dslide {
namespace {

using release = nb::gil_scoped_release;

// A numpy array that owns the vector.
template <class Vector>
auto array(Vector&& v) {
  auto* kept = new Vector(std::move(v));
  nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<Vector*>(p); });
  return nb::ndarray<nb::numpy, typename Vector::value_type>(kept->data(), {kept->size()}, owner);
}

}  // namespace

void bind_links(nb::module_& m) {
  m.def(
      "row_lengths",
      [](In<int64_t, 1> offsets, In<float, 1> values) {
        const size_t rows = check_offsets(offsets, values.shape(0));
        std::vector<double> lengths;
        {
          release unlocked;
          lengths = row_lengths(offsets.data(), values.data(), rows);
        }
        return array(std::move(lengths));
      },
      nb::arg("offsets"), nb::arg("values"), "The Euclidean length of each sparse row; 1 for one that has none.");

  m.def(
      "count_links",
      [](In<int64_t, 1> x_offsets, In<int32_t, 1> x_ids, In<float, 1> x_values, size_t inputs, In<int64_t, 1> y_offsets,
         In<int32_t, 1> y_ids, size_t labels, size_t most, double power, bool skip_same, size_t first, size_t step) {
        require(x_offsets.shape(0) > 0 && inputs <= 0x7fffffff && labels <= 0x7fffffff, "expected rows and columns");
        const Stripe own = stripe(first, step);
        const size_t rows = x_offsets.shape(0) - 1;
        const SparseBatch x = batch(x_offsets, x_ids, x_values, rows, inputs);
        const Lists y = lists(y_offsets, y_ids, rows, labels);
        LinkLists links;
        {
          release unlocked;
          links = count_links(x, inputs, y, labels, rows, most, power, skip_same, own);
        }
        return nb::make_tuple(array(std::move(links.begin)), array(std::move(links.label)),
                              array(std::move(links.weight)), array(std::move(links.share)));
      },
      nb::arg("x_offsets"), nb::arg("x_ids"), nb::arg("x_values"), nb::arg("inputs"), nb::arg("y_offsets"),
      nb::arg("y_ids"), nb::arg("labels"), nb::arg("most"), nb::arg("power") = 1.0, nb::arg("skip_same") = false,
      nb::arg("first") = 0, nb::arg("step") = 1,
      "Links by input to the labels of a stripe: (begin, label, weight, share).");

  nb::class_<Links>(m, "Links", "What inputs add to the logits of the neurons they are linked to.")
      .def(
          "__init__",
          [](Links* l, In<int64_t, 1> begin, In<int32_t, 1> neuron, In<float, 1> weight, In<float, 1> share,
             float scale) {
            require(begin.shape(0) > 0 && neuron.shape(0) == weight.shape(0), "as many weights as links are needed");
            const size_t inputs = begin.shape(0) - 1;
            lists(begin, neuron, inputs, share.shape(0));
            new (l) Links(begin.data(), neuron.data(), weight.data(), inputs, share.data(), share.shape(0), scale);
          },
          nb::arg("begin").noconvert(), nb::arg("neuron").noconvert(), nb::arg("weight").noconvert(),
          nb::arg("share").noconvert(), nb::arg("scale"), nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>(),
          nb::keep_alive<1, 4>(), nb::keep_alive<1, 5>())
      .def(
          "add",
          [](Links& l, In<int64_t, 1> offsets, In<int32_t, 1> ids, In<float, 1> values, In<double, 1> lengths,
             ActiveSet& active, std::optional<In<int64_t, 1>> own_offsets, std::optional<In<int32_t, 1>> own_ids,
             float keep) {
            const SparseBatch x = batch(offsets, ids, values, active.rows, l.inputs());
            require(lengths.shape(0) == active.rows, "as many lengths as rows are needed");
            require(!active.is_per_row, "not for active sets per row");
            require(active.ids.empty() || static_cast<size_t>(active.ids.back()) < l.neurons(),
                    "an active neuron is out of range");
            Lists own;
            if (own_offsets && own_ids) own = lists(*own_offsets, *own_ids, active.rows, l.neurons());
            release unlocked;
            l.add(x, lengths.data(), own, keep, active);
          },
          nb::arg("offsets"), nb::arg("ids"), nb::arg("values"), nb::arg("lengths"), nb::arg("active"),
          nb::arg("own_offsets").none() = nb::none(), nb::arg("own_ids").none() = nb::none(), nb::arg("keep") = 1.0f,
          "Sets what rows add to the logits of an active set; own: their labels, of which they must not know.");
}

}  // namespace dslide
