// The label prior.
#include "layers/label_prior.hpp"

#include <nanobind/stl/optional.h>

#include <utility>
#include <vector>

#include "bindings.hpp"
#include "csr.hpp"

namespace dslide {
void bind_label_prior(nb::module_& m) {
  m.def(
      "row_norms",
      [](In<int64_t, 1> offsets, In<float, 1> values) {
        const size_t rows = check_offsets(offsets, values.shape(0));
        std::vector<double> norms;
        {
          nb::gil_scoped_release release;
          norms = row_norms({rows, offsets.data(), nullptr, values.data()});
        }
        return owned(std::move(norms));
      },
      nb::arg("offsets"), nb::arg("values"), "The L2 norm of each sparse row; 1 for a zero row.");

  m.def(
      "count_label_prior",
      [](In<int64_t, 1> x_offsets, In<int32_t, 1> x_ids, In<float, 1> x_values, size_t features,
         In<int64_t, 1> y_offsets, In<int32_t, 1> y_ids, size_t labels, size_t max_labels, double power, bool skip_same,
         size_t first, size_t step) {
        require(x_offsets.shape(0) > 0 && features <= 0x7fffffff && labels <= 0x7fffffff, "expected rows and columns");
        const Stripe own = stripe(first, step);
        const size_t rows = x_offsets.shape(0) - 1;
        const Csr x = matrix(x_offsets, x_ids, x_values, rows, features);
        const Csr y = lists(y_offsets, y_ids, rows, labels);
        LabelPriorLists prior;
        {
          nb::gil_scoped_release release;
          prior = count_label_prior(x, features, y, labels, max_labels, power, skip_same, own);
        }
        return nb::make_tuple(owned(std::move(prior.begin)), owned(std::move(prior.label)),
                              owned(std::move(prior.weight)), owned(std::move(prior.share)));
      },
      nb::arg("x_offsets"), nb::arg("x_ids"), nb::arg("x_values"), nb::arg("features"), nb::arg("y_offsets"),
      nb::arg("y_ids"), nb::arg("labels"), nb::arg("max_labels"), nb::arg("power") = 1.0, nb::arg("skip_same") = false,
      nb::arg("first") = 0, nb::arg("step") = 1,
      "The label prior by feature, for the labels of a stripe: (begin, label, weight, share).");

  nb::class_<LabelPrior>(m, "LabelPrior",
                         "The label prior: what features add to the logits of the labels they co-occur with.")
      .def(
          "__init__",
          [](LabelPrior* l, In<int64_t, 1> begin, In<int32_t, 1> neuron, In<float, 1> weight, In<float, 1> share,
             float scale) {
            require(begin.shape(0) > 0 && neuron.shape(0) == weight.shape(0), "as many weights as neurons are needed");
            const Csr weights = matrix(begin, neuron, weight, begin.shape(0) - 1, share.shape(0));
            new (l) LabelPrior(weights, share.data(), share.shape(0), scale);
          },
          nb::arg("begin").noconvert(), nb::arg("neuron").noconvert(), nb::arg("weight").noconvert(),
          nb::arg("share").noconvert(), nb::arg("scale"), nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>(),
          nb::keep_alive<1, 4>(), nb::keep_alive<1, 5>())
      .def(
          "add",
          [](LabelPrior& l, In<int64_t, 1> offsets, In<int32_t, 1> ids, In<float, 1> values, In<double, 1> norms,
             ActiveSet& active, std::optional<In<int64_t, 1>> label_offsets, std::optional<In<int32_t, 1>> label_ids,
             float keep) {
            const Csr x = matrix(offsets, ids, values, active.rows, l.features());
            require(norms.shape(0) == active.rows, "as many norms as rows are needed");
            require(!active.is_per_row, "not for active sets per row");
            require(active.ids.empty() || static_cast<size_t>(active.ids.back()) < l.neurons(),
                    "an active neuron is out of range");
            const Csr row_labels = lists(label_offsets, label_ids, active.rows, l.neurons());
            nb::gil_scoped_release release;
            l.add(x, norms.data(), row_labels, keep, active);
          },
          nb::arg("offsets"), nb::arg("ids"), nb::arg("values"), nb::arg("norms"), nb::arg("active"),
          nb::arg("label_offsets").none() = nb::none(), nb::arg("label_ids").none() = nb::none(),
          nb::arg("keep") = 1.0f,
          "Sets the prior logits of an active set; labels: those of the rows, whose contribution is subtracted.");
}

}  // namespace dslide
