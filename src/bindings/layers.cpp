// Parameters and layers.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "bindings.hpp"
#include "csr.hpp"
#include "layers/active_set.hpp"
#include "layers/block.hpp"
#include "layers/dense_layer.hpp"
#include "layers/dropout.hpp"
#include "layers/parameters.hpp"
#include "layers/sparse_layer.hpp"

namespace dslide {
namespace {

size_t check_dense(const ActiveSet& active, const Parameters& weights, const In<float, 2>& x) {
  require(x.shape(0) == active.rows && x.shape(1) == weights.stride, "x must be rows x stride");
  return weights.stride;
}

// Logits are (rows x at least ids), for sets per row (1 x slots). Returns the number of columns.
size_t check_logits(const ActiveSet& active, size_t rows, size_t columns) {
  if (active.is_per_row) {
    require(rows == 1 && columns == active.slots(), "logits must be 1 x slots");
  } else {
    require(rows == active.rows && columns >= active.ids.size(), "logits must be rows x active neurons");
  }
  return columns;
}

void check_ids(const ActiveSet& active, size_t neurons) {
  require(active.ids.empty() || static_cast<size_t>(active.ids.back()) < neurons, "an active neuron is out of range");
}

void check_trainable(const Parameters& weights, const ActiveSet& active) {
  require(weights.clock, "the layer is for prediction only");
  require(active.rows > 0, "a batch needs rows");
}

// Arguments of top-k prediction. Prior logits come with an active set of all neurons, which may be null.
void check_topk(const DenseLayer& l, const In<float, 2>& x, const Out<int32_t, 2>& ids, const Out<float, 2>& scores,
                const ActiveSet* all) {
  const size_t rows = x.shape(0), neurons = l.weights().rows;
  require(x.shape(1) == l.weights().stride, "x must be rows x stride");
  require(ids.shape(0) == rows && scores.shape(0) == rows && ids.shape(1) == scores.shape(1),
          "ids and scores must be rows x k");
  require(!all || (all->is_everything && all->rows == rows && all->ids.size() == neurons),
          "the prior must be that of an active set of all neurons");
}

const PriorLogits& prior_of(const ActiveSet* all) {
  static const PriorLogits none;
  return all ? all->prior : none;
}

float* kept_logits(const std::optional<Out<float, 1>>& kept, const ActiveSet& active) {
  require(!kept || kept->shape(0) >= DenseLayer::kept_size(active), "kept must have kept_size() floats");
  return kept ? kept->data() : nullptr;
}

Range row_range(const ActiveSet& active, size_t begin, std::optional<size_t> end) {
  require(begin <= end.value_or(active.rows) && end.value_or(active.rows) <= active.rows, "there are no such rows");
  return {begin, end.value_or(active.rows)};
}

void check_labels(const FoundLabels& labels, const ActiveSet& active) {
  require(labels.rows == active.rows && labels.positions == active.ids.size(),
          "labels must be those of the active set");
}

// Checks of every function with a loss on blocks of neurons.
void check_blocks(const DenseLayer& l, const In<float, 2>& x, const ActiveSet& active) {
  check_dense(active, l.weights(), x);
  check_ids(active, l.weights().rows);
  require(!active.is_per_row, "not for active sets per row");
}

void check_dx(const Out<float, 2>& dx, const ActiveSet& active, const DenseLayer& l) {
  require(dx.shape(0) == active.rows && dx.shape(1) == l.weights().stride, "dx must have the shape of x");
}

void bind_parameters(nb::module_& m) {
  nb::class_<Optimizer>(m, "Optimizer")
      .def(
          "__init__",
          [](Optimizer* o, const char* kind, float beta1, float beta2, float epsilon, float weight_decay) {
            const bool adam = !std::strcmp(kind, "adam"), adagrad = !std::strcmp(kind, "adagrad");
            require(adam || adagrad || !std::strcmp(kind, "sgd"), "the optimizer must be adam, adagrad or sgd");
            new (o) Optimizer(adam      ? Optimizer::Kind::adam
                              : adagrad ? Optimizer::Kind::adagrad
                                        : Optimizer::Kind::sgd,
                              beta1, beta2, epsilon, weight_decay);
          },
          nb::arg("kind"), nb::arg("beta1"), nb::arg("beta2"), nb::arg("epsilon"), nb::arg("weight_decay"))
      .def_rw("rate", &Optimizer::rate);

  nb::class_<Parameters>(m, "Parameters", "Views of rows x stride arrays; empty moments where there are none.")
      .def(
          "__init__",
          [](Parameters* p, InStoredRows value, OutStoredRows moment1, OutStoredRows moment2, Out<uint32_t, 1> clock,
             size_t width) {
            const size_t rows = value.shape(0), stride = value.shape(1);
            require(width <= stride, "width is more than the stride");
            require(clock.shape(0) == rows || clock.shape(0) == 0, "clock must have an element per row");
            for (const auto& moment : {moment1, moment2}) {
              require(moment.size() == 0 || (moment.shape(0) == rows && moment.shape(1) == stride),
                      "moments must have the shape of the values");
            }
            require(moment1.size() == 0 || (moment1.dtype() == moment2.dtype() && pitch(moment1) == pitch(moment2)),
                    "moments must be stored alike");
            // Without clocks nothing is ever written, so the values may be mapped read-only.
            new (p) Parameters{stored(value), stored(moment1), stored(moment2), clock.size() ? clock.data() : nullptr,
                               rows,          width,           stride,          pitch(value),
                               pitch(moment2)};
          },
          nb::arg("value").noconvert(), nb::arg("moment1").noconvert(), nb::arg("moment2").noconvert(),
          nb::arg("clock").noconvert(), nb::arg("width"), nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>(),
          nb::keep_alive<1, 4>(), nb::keep_alive<1, 5>());

  m.def(
      "initialise",
      [](OutStoredRows value, size_t width, float scale, uint64_t seed, size_t first, size_t step, size_t axis) {
        require(width <= value.shape(1), "width is more than the stride");
        const Stripe own = stripe(first, step);
        const StoredArray array = stored(value);
        const size_t apart = pitch(value);
        nb::gil_scoped_release release;
        initialise(array, value.shape(0), width, value.shape(1), apart, scale, seed, axis == 0 ? own : Stripe{},
                   axis == 0 ? Stripe{} : own);
      },
      nb::arg("value").noconvert(), nb::arg("width"), nb::arg("scale"), nb::arg("seed"), nb::arg("first") = 0,
      nb::arg("step") = 1, nb::arg("axis") = 0,
      "Random weights: every step-th row (axis 0) or column (axis 1), from `first` on, of a larger matrix.");
  m.def(
      "dropout_dense",
      [](Out<float, 2> x, size_t width, float p, uint64_t seed, size_t first_row, size_t first, size_t step) {
        require(width <= x.shape(1), "width is more than the stride");
        const Stripe own = stripe(first, step);
        nb::gil_scoped_release release;
        dropout(x.data(), x.shape(0), width, x.shape(1), p, seed, first_row, own);
      },
      nb::arg("x").noconvert(), nb::arg("width"), nb::arg("p"), nb::arg("seed"), nb::arg("first_row") = 0,
      nb::arg("first") = 0, nb::arg("step") = 1);
  m.def(
      "dropout_sparse",
      [](Out<float, 1> values, In<int64_t, 1> offsets, In<int32_t, 1> ids, float p, uint64_t seed) {
        require(offsets.shape(0) > 0 && values.shape(0) == ids.shape(0), "as many values as ids are needed");
        const Csr x = lists(offsets, ids, offsets.shape(0) - 1, ANY_ID);
        nb::gil_scoped_release release;
        dropout(values.data(), x, p, seed);
      },
      nb::arg("values").noconvert(), nb::arg("offsets"), nb::arg("ids"), nb::arg("p"), nb::arg("seed"));
}

void bind_dense(nb::module_& m) {
  nb::class_<DenseLayer>(m, "DenseLayer", "A layer over dense inputs, one row of weights per neuron.")
      .def(
          "__init__",
          [](DenseLayer* l, const Parameters& weights, const Parameters& bias, bool bf16_products) {
            new (l) DenseLayer(weights, bias, bf16_products ? Products::bf16 : Products::floats);
          },
          nb::arg("weights"), nb::arg("bias"), nb::arg("bf16_products") = false, nb::keep_alive<1, 2>(),
          nb::keep_alive<1, 3>())
      .def(
          "forward",
          [](DenseLayer& l, In<float, 2> x, const ActiveSet& active, Out<float, 2> z) {
            check_dense(active, l.weights(), x);
            check_ids(active, l.weights().rows);
            const size_t ldz = check_logits(active, z.shape(0), z.shape(1));
            nb::gil_scoped_release release;
            l.forward(x.data(), active, z.data(), ldz);
          },
          nb::arg("x"), nb::arg("active"), nb::arg("z").noconvert())
      .def(
          "learn",
          [](DenseLayer& l, In<float, 2> x, const ActiveSet& active, In<float, 2> dz, Out<float, 2> dx,
             const Optimizer& optimizer) {
            check_trainable(l.weights(), active);
            check_dense(active, l.weights(), x);
            check_ids(active, l.weights().rows);
            require(dx.shape(0) == x.shape(0) && dx.shape(1) == x.shape(1), "dx must have the shape of x");
            const size_t ldz = check_logits(active, dz.shape(0), dz.shape(1));
            nb::gil_scoped_release release;
            return l.learn(x.data(), active, dz.data(), ldz, dx.data(), optimizer);
          },
          nb::arg("x"), nb::arg("active"), nb::arg("dz"), nb::arg("dx").noconvert(), nb::arg("optimizer"))
      .def_static("kept_size", &DenseLayer::kept_size, nb::arg("active"))
      .def(
          "softmax_forward",
          [](DenseLayer& l, In<float, 2> x, const ActiveSet& active, FoundLabels* labels, Out<float, 1> reference,
             Out<float, 1> sum, std::optional<Out<float, 2>> mean, std::optional<Out<float, 1>> kept, size_t begin,
             std::optional<size_t> end) {
            check_blocks(l, x, active);
            if (labels) check_labels(*labels, active);
            if (mean) check_dx(*mean, active, l);
            require(reference.shape(0) == active.rows && sum.shape(0) == active.rows, "one reference and sum per row");
            require(begin % CHUNK == 0, "rows must begin at a multiple of 128");
            const Range rows = row_range(active, begin, end);
            nb::gil_scoped_release release;
            l.softmax_forward(x.data(), active, rows, labels,
                              {reference.data(), sum.data(), mean ? mean->data() : nullptr}, kept_logits(kept, active));
          },
          nb::arg("x"), nb::arg("active"), nb::arg("labels").none(), nb::arg("reference").noconvert(),
          nb::arg("sum").noconvert(), nb::arg("mean").noconvert().none() = nb::none(),
          nb::arg("kept").noconvert().none() = nb::none(), nb::arg("begin") = 0, nb::arg("end").none() = nb::none())
      .def(
          "softmax_backward",
          [](const DenseLayer& l, const ActiveSet& active, const FoundLabels& labels, In<float, 1> reference,
             In<float, 1> log_norm, float scale, Out<float, 2> dx, size_t begin, std::optional<size_t> end) {
            check_ids(active, l.weights().rows);
            require(!active.is_per_row, "not for active sets per row");
            check_labels(labels, active);
            check_dx(dx, active, l);
            require(reference.shape(0) == active.rows && log_norm.shape(0) == active.rows,
                    "one reference and normaliser per row");
            const Range rows = row_range(active, begin, end);
            nb::gil_scoped_release release;
            return l.softmax_backward(active, rows, labels, reference.data(), log_norm.data(), scale, dx.data());
          },
          nb::arg("active"), nb::arg("labels"), nb::arg("reference"), nb::arg("log_norm"), nb::arg("scale"),
          nb::arg("dx").noconvert(), nb::arg("begin") = 0, nb::arg("end").none() = nb::none())
      .def(
          "softmax_step",
          [](DenseLayer& l, In<float, 2> x, const ActiveSet& active, const FoundLabels& labels, In<float, 1> log_norm,
             float scale, const Optimizer& optimizer, std::optional<Out<float, 1>> kept) {
            check_trainable(l.weights(), active);
            check_blocks(l, x, active);
            check_labels(labels, active);
            require(log_norm.shape(0) == active.rows, "one normaliser per row");
            nb::gil_scoped_release release;
            return l.softmax_step(x.data(), active, labels, log_norm.data(), scale, kept_logits(kept, active),
                                  optimizer);
          },
          nb::arg("x"), nb::arg("active"), nb::arg("labels"), nb::arg("log_norm"), nb::arg("scale"),
          nb::arg("optimizer"), nb::arg("kept").noconvert().none() = nb::none())
      .def(
          "sigmoid_learn",
          [](DenseLayer& l, In<float, 2> x, const ActiveSet& active, const FoundLabels& labels, float scale,
             Out<float, 2> dx, const Optimizer& optimizer) {
            check_trainable(l.weights(), active);
            check_blocks(l, x, active);
            check_labels(labels, active);
            check_dx(dx, active, l);
            nb::gil_scoped_release release;
            double loss = 0;
            const bool finite = l.sigmoid_learn(x.data(), active, labels, scale, dx.data(), optimizer, &loss);
            return std::pair(finite, loss);
          },
          nb::arg("x"), nb::arg("active"), nb::arg("labels"), nb::arg("scale"), nb::arg("dx").noconvert(),
          nb::arg("optimizer"))
      .def(
          "sigmoid_backward",
          [](DenseLayer& l, In<float, 2> x, const ActiveSet& active, const FoundLabels& labels, float scale,
             Out<float, 2> dx, Out<float, 1> kept, size_t begin, size_t end) {
            check_blocks(l, x, active);
            check_labels(labels, active);
            check_dx(dx, active, l);
            const Range rows = row_range(active, begin, end);
            nb::gil_scoped_release release;
            return l.sigmoid_backward(x.data(), active, rows, labels, scale, dx.data(), kept_logits(kept, active));
          },
          nb::arg("x"), nb::arg("active"), nb::arg("labels"), nb::arg("scale"), nb::arg("dx").noconvert(),
          nb::arg("kept").noconvert(), nb::arg("begin"), nb::arg("end"))
      .def(
          "sigmoid_step",
          [](DenseLayer& l, In<float, 2> x, const ActiveSet& active, Out<float, 1> kept, const Optimizer& optimizer) {
            check_trainable(l.weights(), active);
            check_blocks(l, x, active);
            nb::gil_scoped_release release;
            return l.sigmoid_step(x.data(), active, kept_logits(kept, active), optimizer);
          },
          nb::arg("x"), nb::arg("active"), nb::arg("kept").noconvert(), nb::arg("optimizer"))
      .def(
          "topk",
          [](const DenseLayer& l, In<float, 2> x, Out<int32_t, 2> ids, Out<float, 2> scores,
             std::optional<In<int64_t, 1>> excluded_offsets, std::optional<In<int32_t, 1>> excluded_ids,
             const ActiveSet* all) {
            check_topk(l, x, ids, scores, all);
            const Csr excluded = lists(excluded_offsets, excluded_ids, x.shape(0), l.weights().rows);
            for (size_t i = 0; i < excluded.rows; ++i) {
              require(std::is_sorted(excluded.begin(i), excluded.end(i)), "excluded ids must be in order");
            }
            nb::gil_scoped_release release;
            l.topk(x.data(), x.shape(0), ids.shape(1), excluded, prior_of(all), ids.data(), scores.data());
          },
          nb::arg("x"), nb::arg("ids").noconvert(), nb::arg("scores").noconvert(),
          nb::arg("excluded_offsets").none() = nb::none(), nb::arg("excluded_ids").none() = nb::none(),
          nb::arg("all").none() = nb::none())
      .def(
          "topk_of_lists",
          [](const DenseLayer& l, In<float, 2> x, In<int64_t, 1> offsets, In<int32_t, 1> candidates,
             Out<int32_t, 2> ids, Out<float, 2> scores, const ActiveSet* all) {
            check_topk(l, x, ids, scores, all);
            const Csr in_lists = lists(offsets, candidates, x.shape(0), l.weights().rows);
            nb::gil_scoped_release release;
            l.topk_of_lists(x.data(), in_lists, ids.shape(1), prior_of(all), ids.data(), scores.data());
          },
          nb::arg("x"), nb::arg("offsets"), nb::arg("candidates"), nb::arg("ids").noconvert(),
          nb::arg("scores").noconvert(), nb::arg("all").none() = nb::none());
}

// Logits or gradients of a sparse layer: (rows x at least neurons) if all are active, else one per slot.
template <class Array>
bool fills_slots(const ActiveSet& active, const Array& z) {
  if (!active.is_everything) return z.size() == active.slots();
  return z.shape(0) == active.rows && z.shape(1) >= active.ids.size();
}

void bind_sparse(nb::module_& m) {
  nb::class_<SparseLayer>(m, "SparseLayer", "A layer over sparse inputs, one row of weights per input.")
      .def(nb::init<const Parameters&, const Parameters&>(), nb::arg("weights"), nb::arg("bias"),
           nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>())
      .def(
          "forward",
          [](SparseLayer& l, In<int64_t, 1> offsets, In<int32_t, 1> ids, In<float, 1> values, const ActiveSet& active,
             Out<float, 2> z) {
            const Csr x = matrix(offsets, ids, values, active.rows, l.weights().rows);
            check_ids(active, l.weights().width);
            require(fills_slots(active, z), "logits must fill the slots");
            nb::gil_scoped_release release;
            l.forward(x, active, z.data(), z.shape(1));
          },
          nb::arg("offsets"), nb::arg("ids"), nb::arg("values"), nb::arg("active"), nb::arg("z").noconvert())
      .def(
          "learn",
          [](SparseLayer& l, In<int64_t, 1> offsets, In<int32_t, 1> ids, In<float, 1> values, const ActiveSet& active,
             In<float, 2> dz, std::optional<Out<float, 1>> dx, const Optimizer& optimizer) {
            check_trainable(l.weights(), active);
            const Csr x = matrix(offsets, ids, values, active.rows, l.weights().rows);
            check_ids(active, l.weights().width);
            require(fills_slots(active, dz), "gradients must fill the slots");
            require(!dx || dx->shape(0) == ids.shape(0), "dx must have a value per element");
            nb::gil_scoped_release release;
            return l.learn(x, active, dz.data(), dz.shape(1), dx ? dx->data() : nullptr, optimizer);
          },
          nb::arg("offsets"), nb::arg("ids"), nb::arg("values"), nb::arg("active"), nb::arg("dz"),
          nb::arg("dx").noconvert().none(), nb::arg("optimizer"));
}

}  // namespace

void bind_layers(nb::module_& m) {
  bind_parameters(m);
  bind_dense(m);
  bind_sparse(m);
}

}  // namespace dslide
