// Parameters and layers.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <algorithm>
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
void check_ids(const ActiveSet& active, size_t neurons) {
  require(active.fits(neurons), "an active neuron is out of range");
}

void check_dense(const DenseLayer& l, const In<float, 2>& x, const ActiveSet& active) {
  require(has_shape(x, active.rows, l.weights().stride), "x must be rows x stride");
  check_ids(active, l.weights().rows);
}

// Checks of every function with a loss on blocks of neurons.
void check_blocks(const DenseLayer& l, const ActiveSet& active, const FoundLabels* labels) {
  check_ids(active, l.weights().rows);
  require(!active.is_per_row, "not for active sets per row");
  require(!labels || (labels->rows == active.rows && labels->positions == active.ids.size()),
          "labels must be those of the active set");
}
void check_blocks(const DenseLayer& l, const In<float, 2>& x, const ActiveSet& active, const FoundLabels* labels) {
  check_dense(l, x, active);
  check_blocks(l, active, labels);
}

// Logits are (rows x at least ids), for sets per row (1 x slots).
template <class Array> void check_logits(const ActiveSet& active, const Array& z) {
  if (active.is_per_row) return require(has_shape(z, 1, active.slots()), "logits must be 1 x slots");
  require(z.shape(0) == active.rows && z.shape(1) >= active.ids.size(), "logits must be rows x active neurons");
}

void check_dx(const Out<float, 2>& dx, const ActiveSet& active, const DenseLayer& l) {
  require(has_shape(dx, active.rows, l.weights().stride), "dx must have the shape of x");
}

void check_trainable(const Parameters& weights, const ActiveSet& active) {
  require(weights.clock, "the layer is for prediction only");
  require(active.rows > 0, "a batch needs rows");
}

// Arguments of top-k prediction. The prior's logits may be null.
const PriorLogits& check_topk(const DenseLayer& l, const In<float, 2>& x, const Out<int32_t, 2>& ids,
                              const Out<float, 2>& scores, const PriorLogits* prior) {
  static const PriorLogits none;
  const size_t rows = x.shape(0);
  require(x.shape(1) == l.weights().stride, "x must be rows x stride");
  require(ids.shape(0) == rows && has_shape(scores, rows, ids.shape(1)), "ids and scores must be rows x k");
  require(!prior || prior->fits(rows, l.weights().rows), "the prior must be that of these rows and neurons");
  return prior ? *prior : none;
}

float* kept_logits(const std::optional<Out<float, 1>>& kept, const ActiveSet& active) {
  require(!kept || kept->shape(0) >= DenseLayer::kept_size(active), "kept must have kept_size() floats");
  return kept ? kept->data() : nullptr;
}

Range row_range(const ActiveSet& active, size_t begin, std::optional<size_t> end) {
  require(begin <= end.value_or(active.rows) && end.value_or(active.rows) <= active.rows, "there are no such rows");
  return {begin, end.value_or(active.rows)};
}

void bind_parameters(nb::module_& m) {
  nb::class_<Optimizer> optimizer(m, "Optimizer");
  optimizer.def_rw("rate", &Optimizer::rate);
  define(optimizer, "__init__", args("kind"_a, "beta1"_a, "beta2"_a, "epsilon"_a, "weight_decay"_a),
         [](Optimizer* o, const char* kind, float beta1, float beta2, float epsilon, float weight_decay) {
    const auto which =
        named<Optimizer::Kind>(kind, {"adam", "adagrad", "sgd"}, "the optimizer must be adam, adagrad or sgd");
    new (o) Optimizer(which, beta1, beta2, epsilon, weight_decay);
  });

  nb::class_<Parameters> parameters(m, "Parameters",
                                    "Views of rows x stride arrays; empty moments where there are none. Values of int8 "
                                    "have a scale for each row.");
  define(parameters, "__init__",
         args("value"_a, "moment1"_a, "moment2"_a, "clock"_a, "width"_a, "scale"_a = nb::none(), nb::keep_alive<1, 2>(),
              nb::keep_alive<1, 3>(), nb::keep_alive<1, 4>(), nb::keep_alive<1, 5>(), nb::keep_alive<1, 7>()),
         [](Parameters* p, KeptStoredRows value, OutStoredRows moment1, OutStoredRows moment2, Out<uint32_t, 1> clock,
            size_t width, std::optional<Kept<float, 2>> scale) {
    const size_t rows = value.shape(0), stride = value.shape(1);
    require(width <= stride, "width is more than the stride");
    if (value.dtype() == nb::dtype<int8_t>()) {
      require(clock.shape(0) == 0, "int8 is for prediction only");
      require(scale && has_shape(*scale, rows, 1), "int8 needs a scale for each row");
      new (p) Parameters{{},           {},     {},           nullptr, rows,
                         width,        stride, pitch(value), 0,       static_cast<const int8_t*>(value.data()),
                         scale->data()};
      return;
    }
    require(clock.shape(0) == rows || clock.shape(0) == 0, "clock must have an element per row");
    for (const auto* moment : {&moment1, &moment2}) {
      require(moment->size() == 0 || has_shape(*moment, rows, stride), "moments must have the shape of the values");
    }
    require(moment1.size() == 0 || (moment1.dtype() == moment2.dtype() && pitch(moment1) == pitch(moment2)),
            "moments must be stored alike");
    // Without clocks nothing is ever written, so the values may be mapped read-only.
    uint32_t* const clocks = clock.size() ? clock.data() : nullptr;
    new (p) Parameters{stored(value), stored(moment1), stored(moment2), clocks,        rows,
                       width,         stride,          pitch(value),    pitch(moment2)};
  });

  define(
      m, "initialise",
      args("value"_a, "width"_a, "scale"_a, "seed"_a, "stripe"_a = ALL, "axis"_a = 0,
           "Random weights: a stripe of the rows (axis 0) or columns (axis 1) of a larger matrix."),
      [](OutStoredRows value, size_t width, float scale, uint64_t seed, const StripeArgument& stripe_of, size_t axis) {
    require(width <= value.shape(1), "width is more than the stride");
    const Stripe own = stripe(stripe_of), all;
    initialise(stored(value), value.shape(0), width, value.shape(1), pitch(value), scale, seed, axis == 0 ? own : all,
               axis == 0 ? all : own);
  });
  define(m, "dropout_dense", args("x"_a, "width"_a, "p"_a, "seed"_a, "first_row"_a = 0, "stripe"_a = ALL),
         [](Out<float, 2> x, size_t width, float p, uint64_t seed, size_t first_row, const StripeArgument& stripe_of) {
    require(width <= x.shape(1), "width is more than the stride");
    dropout(x.data(), x.shape(0), width, x.shape(1), p, seed, first_row, stripe(stripe_of));
  });
  define(m, "dropout_sparse", args("values"_a, "offsets"_a, "ids"_a, "p"_a, "seed"_a),
         [](Out<float, 1> values, Offsets offsets, Ids ids, float p, uint64_t seed) {
    require(offsets.shape(0) > 0 && values.shape(0) == ids.shape(0), "as many values as ids are needed");
    dropout(values.data(), lists(offsets, ids, offsets.shape(0) - 1, ANY_ID), p, seed);
  });
}

void bind_dense(nb::module_& m) {
  nb::class_<DenseLayer> layer(m, "DenseLayer", "A layer over dense inputs, one row of weights per neuron.");
  layer.def_static("kept_size", &DenseLayer::kept_size, "active"_a);
  layer.def(nb::init<const Parameters&, const Parameters&, bool, bool, bool>(), "weights"_a, "bias"_a,
            "bf16_products"_a = false, "unit_rows"_a = false, "steps_bias"_a = true, nb::keep_alive<1, 2>(),
            nb::keep_alive<1, 3>());
  define(layer, "forward", args("x"_a, "active"_a, "z"_a),
         [](DenseLayer& l, In<float, 2> x, const ActiveSet& active, Out<float, 2> z) {
    check_dense(l, x, active);
    check_logits(active, z);
    l.forward(x.data(), active, z.data(), z.shape(1));
  });
  define(layer, "learn", args("x"_a, "active"_a, "dz"_a, "dx"_a, "optimizer"_a),
         [](DenseLayer& l, In<float, 2> x, const ActiveSet& active, In<float, 2> dz, Out<float, 2> dx,
            const Optimizer& optimizer) {
    check_trainable(l.weights(), active);
    check_dense(l, x, active);
    check_dx(dx, active, l);
    check_logits(active, dz);
    return l.learn(x.data(), active, dz.data(), dz.shape(1), dx.data(), optimizer);
  });
  define(layer, "softmax_forward",
         args("x"_a, "active"_a, "labels"_a.none(), "reference"_a, "sum"_a, "mean"_a = nb::none(),
              "kept"_a = nb::none(), "begin"_a = 0, "end"_a = nb::none()),
         [](DenseLayer& l, In<float, 2> x, const ActiveSet& active, FoundLabels* labels, Out<float, 1> reference,
            Out<float, 1> sum, std::optional<Out<float, 2>> mean, std::optional<Out<float, 1>> kept, size_t begin,
            std::optional<size_t> end) {
    check_blocks(l, x, active, labels);
    if (mean) check_dx(*mean, active, l);
    require(has_shape(reference, active.rows) && has_shape(sum, active.rows), "one reference and sum per row");
    require(begin % CHUNK == 0, "rows must begin at a multiple of 128");
    l.softmax_forward(x.data(), active, row_range(active, begin, end), labels,
                      {reference.data(), sum.data(), mean ? mean->data() : nullptr}, kept_logits(kept, active));
  });
  define(
      layer, "softmax_backward",
      args("active"_a, "labels"_a, "reference"_a, "log_norm"_a, "scale"_a, "dx"_a, "begin"_a = 0, "end"_a = nb::none()),
      [](const DenseLayer& l, const ActiveSet& active, const FoundLabels& labels, Floats reference, Floats log_norm,
         float scale, std::optional<Out<float, 2>> dx, size_t begin, std::optional<size_t> end) {
    check_blocks(l, active, &labels);
    if (dx) check_dx(*dx, active, l);
    require(has_shape(reference, active.rows) && has_shape(log_norm, active.rows),
            "one reference and normaliser per row");
    return l.softmax_backward(active, row_range(active, begin, end), labels, reference.data(), log_norm.data(), scale,
                              dx ? dx->data() : nullptr);
  });
  define(layer, "softmax_step",
         args("x"_a, "active"_a, "labels"_a, "log_norm"_a, "scale"_a, "optimizer"_a, "kept"_a = nb::none()),
         [](DenseLayer& l, In<float, 2> x, ActiveSet& active, const FoundLabels& labels, Floats log_norm, float scale,
            const Optimizer& optimizer, std::optional<Out<float, 1>> kept) {
    check_trainable(l.weights(), active);
    check_blocks(l, x, active, &labels);
    require(has_shape(log_norm, active.rows), "one normaliser per row");
    return l.softmax_step(x.data(), active, labels, log_norm.data(), scale, kept_logits(kept, active), optimizer);
  });
  define(layer, "sigmoid_learn", args("x"_a, "active"_a, "labels"_a, "scale"_a, "dx"_a, "optimizer"_a),
         [](DenseLayer& l, In<float, 2> x, ActiveSet& active, const FoundLabels& labels, float scale,
            std::optional<Out<float, 2>> dx, const Optimizer& optimizer) {
    check_trainable(l.weights(), active);
    check_blocks(l, x, active, &labels);
    if (dx) check_dx(*dx, active, l);
    double loss = 0;
    const bool finite = l.sigmoid_learn(x.data(), active, labels, scale, dx ? dx->data() : nullptr, optimizer, &loss);
    return std::pair(finite, loss);
  });
  define(layer, "sigmoid_backward",
         args("x"_a, "active"_a, "labels"_a, "scale"_a, "dx"_a, "kept"_a, "begin"_a, "end"_a),
         [](DenseLayer& l, In<float, 2> x, ActiveSet& active, const FoundLabels& labels, float scale,
            std::optional<Out<float, 2>> dx, Out<float, 1> kept, size_t begin, size_t end) {
    check_blocks(l, x, active, &labels);
    if (dx) check_dx(*dx, active, l);
    return l.sigmoid_backward(x.data(), active, row_range(active, begin, end), labels, scale, dx ? dx->data() : nullptr,
                              kept_logits(kept, active));
  });
  define(layer, "sigmoid_step", args("x"_a, "active"_a, "kept"_a, "optimizer"_a),
         [](DenseLayer& l, In<float, 2> x, const ActiveSet& active, Out<float, 1> kept, const Optimizer& optimizer) {
    check_trainable(l.weights(), active);
    check_blocks(l, x, active, nullptr);
    return l.sigmoid_step(x.data(), active, kept_logits(kept, active), optimizer);
  });
  define(layer, "topk",
         args("x"_a, "ids"_a, "scores"_a, "excluded_offsets"_a = nb::none(), "excluded_ids"_a = nb::none(),
              "prior"_a = nb::none(), "calibration"_a = nb::none(), "saturates"_a = false),
         [](const DenseLayer& l, In<float, 2> x, Out<int32_t, 2> ids, Out<float, 2> scores,
            std::optional<Offsets> excluded_offsets, std::optional<Ids> excluded_ids, const PriorLogits* prior_logits,
            std::optional<In<float, 2>> calibration, bool saturates) {
    const PriorLogits& prior = check_topk(l, x, ids, scores, prior_logits);
    const Csr excluded = lists(excluded_offsets, excluded_ids, x.shape(0), l.weights().rows);
    for (size_t i = 0; i < excluded.rows; ++i) {
      require(std::is_sorted(excluded.begin(i), excluded.end(i)), "excluded ids must be in order");
    }
    l.topk(x.data(), x.shape(0), ids.shape(1), excluded, prior,
           calibration_of(l.weights().rows, calibration, saturates), ids.data(), scores.data());
  });
  define(layer, "topk_of_lists",
         args("x"_a, "offsets"_a, "candidates"_a, "ids"_a, "scores"_a, "prior"_a = nb::none(),
              "calibration"_a = nb::none(), "saturates"_a = false),
         [](const DenseLayer& l, In<float, 2> x, Offsets offsets, Ids candidates, Out<int32_t, 2> ids,
            Out<float, 2> scores, const PriorLogits* prior_logits, std::optional<In<float, 2>> calibration,
            bool saturates) {
    const PriorLogits& prior = check_topk(l, x, ids, scores, prior_logits);
    const Csr in_lists = lists(offsets, candidates, x.shape(0), l.weights().rows);
    for (size_t i = 0; i < in_lists.rows; ++i) {
      require(std::is_sorted(in_lists.begin(i), in_lists.end(i)), "candidates must be in order");
    }
    l.topk_of_lists(x.data(), in_lists, ids.shape(1), prior, calibration_of(l.weights().rows, calibration, saturates),
                    ids.data(), scores.data());
  });
}

// Checks a sparse layer's input, and its logits or gradients: rows x at least neurons if all are active, else by slot.
template <class Array> Csr check_sparse(const SparseLayer& l, const Offsets& offsets, const Ids& ids,
                                        const Floats& values, const ActiveSet& active, const Array& z,
                                        const char* what) {
  const Csr x = matrix(offsets, ids, values, active.rows, l.weights().rows);
  check_ids(active, l.weights().width);
  require(
      active.is_everything ? z.shape(0) == active.rows && z.shape(1) >= active.ids.size() : z.size() == active.slots(),
      what);
  return x;
}

// The dense part of such an input: the last `inputs` ones, which are the first columns of an array with padding.
template <class Array> DenseInputs check_dense_inputs(const SparseLayer& l, const std::optional<In<float, 2>>& x,
                                                      size_t inputs, const ActiveSet& active, const Array& z) {
  if (!x) return {};
  const Parameters& weights = l.weights();
  require(active.is_everything, "dense inputs are for active sets of all neurons");
  require(x->shape(0) == active.rows && inputs <= x->shape(1) && inputs <= weights.rows, "x must be rows x inputs");
  require(z.shape(1) >= weights.stride, "logits must be padded");
  return {x->data(), active.rows, inputs, x->shape(1), weights.rows - inputs};
}

void bind_sparse(nb::module_& m) {
  nb::class_<GroupedInputs> groups(m, "GroupedInputs", "The elements of a batch grouped by input, for a step's walks.");
  define(groups, "__init__", args("offsets"_a, "ids"_a, "values"_a),
         [](GroupedInputs* g, Offsets offsets, Ids ids, Floats values) {
    require(offsets.shape(0) > 0, "offsets must have one element more than there are rows");
    const Csr x = matrix(offsets, ids, values, offsets.shape(0) - 1, ANY_ID);
    new (g) GroupedInputs();
    g->fill(x);
  });

  nb::class_<SparseLayer> layer(m, "SparseLayer", "A layer over sparse inputs, one row of weights per input.");
  layer.def(nb::init<const Parameters&, const Parameters&>(), "weights"_a, "bias"_a, nb::keep_alive<1, 2>(),
            nb::keep_alive<1, 3>());
  define(layer, "forward",
         args("offsets"_a, "ids"_a, "values"_a, "active"_a, "z"_a, "dense"_a = nb::none(), "inputs"_a = 0),
         [](SparseLayer& l, Offsets offsets, Ids ids, Floats values, const ActiveSet& active, Out<float, 2> z,
            std::optional<In<float, 2>> dense, size_t inputs) {
    const Csr x = check_sparse(l, offsets, ids, values, active, z, "logits must fill the slots");
    l.forward(x, check_dense_inputs(l, dense, inputs, active, z), active, z.data(), z.shape(1));
  });
  define(layer, "learn",
         args("offsets"_a, "ids"_a, "values"_a, "active"_a, "dz"_a, "dx"_a, "optimizer"_a, "dense"_a = nb::none(),
              "inputs"_a = 0, "groups"_a = nb::none()),
         [](SparseLayer& l, Offsets offsets, Ids ids, Floats values, const ActiveSet& active, In<float, 2> dz,
            std::optional<Out<float, 1>> dx, const Optimizer& optimizer, std::optional<In<float, 2>> dense,
            size_t inputs, const GroupedInputs* groups) {
    check_trainable(l.weights(), active);
    const Csr x = check_sparse(l, offsets, ids, values, active, dz, "gradients must fill the slots");
    require(!dx || has_shape(*dx, ids.shape(0)), "dx must have a value per element");
    return l.learn(x, check_dense_inputs(l, dense, inputs, active, dz), active, dz.data(), dz.shape(1),
                   dx ? dx->data() : nullptr, optimizer, groups_of(groups, x, l.weights().rows));
  });
}
}  // namespace

void bind_layers(nb::module_& m) {
  bind_parameters(m);
  bind_dense(m);
  bind_sparse(m);
}
}  // namespace dslide
