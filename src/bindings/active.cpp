// Active sets, labels and losses.
#include <nanobind/stl/optional.h>
#include "bindings.hpp"
#include "csr.hpp"
#include "layers/active_set.hpp"
#include "layers/block.hpp"
#include "layers/loss.hpp"

namespace dslide {
namespace {
constexpr const char* MISMATCH = "as many targets as labels are needed";

void check_neurons(size_t neurons) {
  require(neurons > 0 && neurons <= 0x7fffffff, "the number of neurons must be 1 to 2^31 - 1");
}

ActiveSet sampled(bool per_row, size_t neurons, Offsets offsets, Ids ids, std::optional<Offsets> hit_offsets,
                  std::optional<Ids> hit_ids, size_t random_negatives, uint64_t seed, bool correct,
                  std::optional<size_t> layer_neurons, const StripeArgument& stripe_of,
                  std::optional<Floats> probability) {
  check_neurons(neurons);
  check_neurons(layer_neurons.value_or(neurons));
  const Stripe own = stripe(stripe_of);
  require(offsets.shape(0) > 1, "a batch needs rows");
  const size_t rows = offsets.shape(0) - 1;
  const Csr certain = lists(offsets, ids, rows, neurons), hits = lists(hit_offsets, hit_ids, rows, neurons);
  RandomNegatives negatives{random_negatives, seed, correct, layer_neurons.value_or(neurons), own};
  if (probability) {
    require(!per_row, "probabilities of neurons are for active sets that rows share");
    require(has_shape(*probability, neurons), "one probability for each neuron");
    negatives.probability = probability->data();
  }
  return per_row ? ActiveSet::per_row(neurons, certain, hits, negatives)
                 : ActiveSet::shared(neurons, certain, hits, negatives);
}

// A property: a read-only view of a vector of the set, which it keeps alive.
template <class Member> auto view(const Member& member) {
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

  SlotLabels(const ActiveSet& active, const Offsets& offsets, const Ids& ids, const Floats& targets) {
    const Csr l = matrix(offsets, ids, targets, active.rows, ANY_ID, MISMATCH);
    found = active.find(l);
    labels = {l, found.data()};
  }
};
}  // namespace

void bind_active(nb::module_& m) {
  nb::class_<ActiveSet> set(m, "ActiveSet", "The neurons that are computed for a batch.");
  set.def_static("everything", [](size_t neurons, size_t rows) {
    check_neurons(neurons);
    return ActiveSet::everything(neurons, rows);
  }, "neurons"_a, "rows"_a);
  set.def_static("sampled", &sampled, nb::call_guard<nb::gil_scoped_release>(), "per_row"_a, "neurons"_a, "offsets"_a,
                 "ids"_a, "hit_offsets"_a, "hit_ids"_a, "random_negatives"_a, "seed"_a, "correct"_a,
                 "layer_neurons"_a = nb::none(), "stripe"_a = ALL, "probability"_a = nb::none());
  set.def_ro("rows", &ActiveSet::rows);
  set.def_ro("is_everything", &ActiveSet::is_everything);
  set.def_ro("is_per_row", &ActiveSet::is_per_row);
  set.def_prop_ro("slots", &ActiveSet::slots);
  set.def_prop_ro("mean", &ActiveSet::mean);
  set.def_prop_ro("ids", view([](const ActiveSet& a) -> auto& { return a.ids; }));
  set.def_prop_ro("log_weight", view([](const ActiveSet& a) -> auto& { return a.log_weight; }));
  set.def_prop_ro("row_begin", view([](const ActiveSet& a) -> auto& { return a.row_begin; }));
  set.def_prop_ro("prior_begin", view([](const ActiveSet& a) -> auto& { return a.prior.begin; }));
  set.def_prop_ro("prior_position", view([](const ActiveSet& a) -> auto& { return a.prior.position; }));
  set.def_prop_ro("prior_value", view([](const ActiveSet& a) -> auto& { return a.prior.value; }));
  set.def_prop_ro("position", view([](const ActiveSet& a) -> auto& { return a.position; }));

  nb::class_<FoundLabels> labels(m, "FoundLabels", "A batch's labels, located in an active set that is not per row.");
  define(labels, "__init__",
         args("active"_a, "offsets"_a, "ids"_a, "targets"_a, nb::keep_alive<1, 3>(), nb::keep_alive<1, 4>(),
              nb::keep_alive<1, 5>()),
         [](FoundLabels* f, const ActiveSet& active, Kept<int64_t, 1> offsets, Kept<int32_t, 1> ids,
            Kept<float, 1> targets) {
    require(!active.is_per_row, "not for active sets per row");
    const size_t bound = active.is_everything ? active.ids.size() : ANY_ID;
    new (f) FoundLabels(active, matrix(offsets, ids, targets, active.rows, bound, MISMATCH));
  });

  m.def("row_shares", [](Offsets offsets, Floats weights) {
    const size_t rows = check_offsets(offsets, weights.shape(0));
    std::unique_ptr<float[]> shares(new float[weights.shape(0)]);
    row_shares({rows, offsets.data(), nullptr, weights.data()}, shares.get());
    return owned(std::move(shares), {weights.shape(0)});
  }, "offsets"_a, "weights"_a, "Normalises weights to a sum of 1 within each row.");
  define(m, "softmax_stats", args("active"_a, "z"_a, "reference"_a, "sum"_a),
         [](const ActiveSet& active, Floats z, Out<float, 1> reference, Out<float, 1> sum) {
    require(has_shape(z, active.slots()), "logits must fill the slots");
    require(has_shape(reference, active.rows) && has_shape(sum, active.rows), "one reference and sum per row");
    softmax_stats(active, z.data(), reference.data(), sum.data());
  });
  define(m, "softmax_gradient", args("active"_a, "z"_a, "offsets"_a, "ids"_a, "targets"_a, "log_norm"_a, "scale"_a),
         [](const ActiveSet& active, Out<float, 1> z, Offsets offsets, Ids ids, Floats targets, Floats log_norm,
            float scale) {
    require(has_shape(z, active.slots()) && has_shape(log_norm, active.rows), "logits must fill the slots");
    const SlotLabels f(active, offsets, ids, targets);
    return softmax_gradient(active, z.data(), f.labels, log_norm.data(), scale);
  });
  define(m, "sigmoid_gradient", args("active"_a, "z"_a, "offsets"_a, "ids"_a, "targets"_a, "scale"_a),
         [](const ActiveSet& active, Out<float, 1> z, Offsets offsets, Ids ids, Floats targets, float scale) {
    require(has_shape(z, active.slots()), "logits must fill the slots");
    const SlotLabels f(active, offsets, ids, targets);
    return sigmoid_gradient(active, z.data(), f.labels, scale);
  });
}
}  // namespace dslide
