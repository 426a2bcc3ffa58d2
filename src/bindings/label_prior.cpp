// The label prior and linear classifiers.
#include "layers/label_prior.hpp"
#include <nanobind/stl/optional.h>
#include "bindings.hpp"
#include "csr.hpp"
#include "layers/item_regressions.hpp"
#include "layers/linear_classifiers.hpp"

namespace dslide {
namespace {
auto norms_of(Offsets offsets, Floats values) {
  const size_t rows = check_offsets(offsets, values.shape(0));
  return owned(released([&] { return row_norms({rows, offsets.data(), nullptr, values.data()}); }));
}

// Labels are -1, or of another stripe, or one of so many that are here.
void check_labels(const In<int32_t, 2>& labels, size_t here, Stripe own = {}) {
  const auto fits = [&](int32_t label) {
    return label == -1 || (label >= 0 && (!own.contains(label) || own.to_local(label) < here));
  };
  require(std::all_of(labels.data(), labels.data() + labels.size(), fits), "a label is out of range");
}

nb::tuple count(Offsets x_offsets, Ids x_ids, Floats x_values, size_t features, Offsets y_offsets, Ids y_ids,
                size_t labels, size_t max_labels, double power, bool by_gain, bool skip_same,
                const StripeArgument& stripe_of) {
  require(x_offsets.shape(0) > 0 && features <= 0x7fffffff && labels <= 0x7fffffff, "expected rows and columns");
  const Stripe own = stripe(stripe_of);
  const size_t rows = x_offsets.shape(0) - 1;
  const Csr x = matrix(x_offsets, x_ids, x_values, rows, features), y = lists(y_offsets, y_ids, rows, labels);
  LabelPriorLists prior =
      released([&] { return count_label_prior(x, features, y, labels, max_labels, power, by_gain, skip_same, own); });
  return nb::make_tuple(owned(std::move(prior.begin)), owned(std::move(prior.label)), owned(std::move(prior.weight)),
                        owned(std::move(prior.share)), owned(std::move(prior.rows)));
}

nb::list linear(Offsets x_offsets, Ids x_ids, Floats x_values, In<double, 1> norms, size_t features,
                Offsets positive_offsets, Ids positive_rows, Offsets negative_offsets, Ids negative_rows, Ids numbers,
                Floats costs, float tolerance, size_t passes, float least, size_t weights_per_row,
                size_t negatives_per_row, size_t least_negatives, size_t others) {
  require(features <= 0x7fffffff && positive_offsets.shape(0) > 0, "expected labels and columns");
  const std::span<const float> all_costs(costs.data(), costs.shape(0));
  require(tolerance > 0 && weights_per_row > 0 && std::ranges::all_of(all_costs, [](float cost) { return cost > 0; }),
          "expected costs, a tolerance and some weights");
  const size_t rows = norms.shape(0), labels = positive_offsets.shape(0) - 1;
  const Csr x = matrix(x_offsets, x_ids, x_values, rows, features);
  const Csr positive = lists(positive_offsets, positive_rows, labels, rows);
  const Csr negative = lists(negative_offsets, negative_rows, labels, rows);
  require(numbers.shape(0) == labels, "as many numbers as labels are needed");
  const LinearOptions options{all_costs,       tolerance,         passes,          least,
                              weights_per_row, negatives_per_row, least_negatives, others};
  nb::list results;
  for (LinearWeights& found :
       released([&] { return train_linear(x, norms.data(), features, positive, negative, numbers.data(), options); })) {
    results.append(nb::make_tuple(owned(std::move(found.begin)), owned(std::move(found.feature)),
                                  owned(std::move(found.weight)), owned(std::move(found.bias))));
  }
  return results;
}

nb::tuple regressions(Offsets offsets, Ids ids, size_t items, Ids numbers, float cost, size_t most_items,
                      size_t entries) {
  require(offsets.shape(0) > 0 && items <= 0x7fffffff, "expected users and items");
  require(cost > 0 && entries > 0 && entries <= 0x7fffffff, "expected a cost and some entries");
  const Csr users = lists(offsets, ids, offsets.shape(0) - 1, items);
  const size_t count = numbers.shape(0);
  const auto fits = [&](int32_t item) { return item >= 0 && static_cast<size_t>(item) < items; };
  require(std::all_of(numbers.data(), numbers.data() + count, fits), "an item is out of range");
  LinearWeights found =
      released([&] { return regress_items(users, items, numbers.data(), count, {cost, most_items, entries}); });
  return nb::make_tuple(owned(std::move(found.begin)), owned(std::move(found.feature)), owned(std::move(found.weight)),
                        owned(std::move(found.bias)));
}
}  // namespace

void bind_label_prior(nb::module_& m) {
  m.def("row_norms", &norms_of, "offsets"_a, "values"_a, "The L2 norm of each sparse row; 1 for a zero row.");
  m.def("count_label_prior", &count, "x_offsets"_a, "x_ids"_a, "x_values"_a, "features"_a, "y_offsets"_a, "y_ids"_a,
        "labels"_a, "max_labels"_a, "power"_a = 1.0, "by_gain"_a = false, "skip_same"_a = false, "stripe"_a = ALL,
        "The label prior by feature, for the labels of a stripe: (begin, label, weight, share, rows).");

  m.def("train_linear", &linear, "x_offsets"_a, "x_ids"_a, "x_values"_a, "norms"_a, "features"_a, "positive_offsets"_a,
        "positive_rows"_a, "negative_offsets"_a, "negative_rows"_a, "numbers"_a, "costs"_a, "tolerance"_a = 0.1f,
        "passes"_a = 20, "least"_a = 0.0f, "weights_per_row"_a = 0x7fffffff, "negatives_per_row"_a = 0x7fffffff,
        "least_negatives"_a = 0, "others"_a = 0,
        "For each cost a support-vector machine for each label, from its rows and others: (begin, feature, weight, "
        "bias).");
  m.def("regress_items", &regressions, "offsets"_a, "ids"_a, "items"_a, "numbers"_a, "cost"_a, "most_items"_a,
        "entries"_a = 0x7fffffff,
        "For some items regressions on other items of the same users: (begin, feature, weight, bias).");

  nb::class_<LinearScorer> linear_class(m, "LinearClassifiers", "Linear classifiers of labels, by label.");
  define(linear_class, "__init__",
         args("begin"_a, "feature"_a, "weight"_a, "bias"_a, "features"_a, nb::keep_alive<1, 2>(),
              nb::keep_alive<1, 3>(), nb::keep_alive<1, 4>(), nb::keep_alive<1, 5>()),
         [](LinearScorer* l, Kept<int64_t, 1> begin, Kept<int32_t, 1> feature, Kept<float, 1> weight,
            Kept<float, 1> bias, size_t features) {
    new (l) LinearScorer(matrix(begin, feature, weight, bias.shape(0), features), bias.data(), features);
  });
  define(linear_class, "scores",
         args("offsets"_a, "ids"_a, "values"_a, "norms"_a, "labels"_a, "scores"_a,
              "Scores of some labels of each row; 0 for label -1."),
         [](const LinearScorer& l, Offsets offsets, Ids ids, Floats values, In<double, 1> norms, In<int32_t, 2> labels,
            Out<float, 2> scores) {
    const size_t rows = norms.shape(0), count = labels.shape(1);
    const Csr x = matrix(offsets, ids, values, rows, l.features());
    require(has_shape(labels, rows, count) && has_shape(scores, rows, count), "as many labels as scores are needed");
    check_labels(labels, l.labels());
    l.scores(x, norms.data(), labels.data(), count, scores.data());
  });
  define(linear_class, "mixed_scores",
         args("offsets"_a, "ids"_a, "values"_a, "norms"_a, "labels"_a, "logits"_a, "scores"_a,
              "calibration"_a = nb::none(), "saturates"_a = false, "stripe"_a = ALL,
              "Calibrated scores of candidates from their logits and the classifiers' scores; 0 for those of other "
              "stripes."),
         [](const LinearScorer& l, Offsets offsets, Ids ids, Floats values, In<double, 1> norms, In<int32_t, 2> labels,
            In<float, 2> logits, Out<float, 2> scores, std::optional<In<float, 2>> calibration, bool saturates,
            const StripeArgument& stripe_of) {
    const size_t rows = norms.shape(0), count = labels.shape(1);
    const Csr x = matrix(offsets, ids, values, rows, l.features());
    require(has_shape(labels, rows, count) && has_shape(logits, rows, count) && has_shape(scores, rows, count),
            "as many labels as logits and scores are needed");
    const Stripe own = stripe(stripe_of);
    check_labels(labels, l.labels(), own);
    l.mixed_scores(x, norms.data(), labels.data(), logits.data(), count, own,
                   calibration_of(l.labels(), calibration, saturates), scores.data());
  });
  define(m, "rank_again",
         args("ids"_a, "scores"_a, "ranked"_a, "best"_a, "best_scores"_a,
              "The best candidates of each row by score; only the first `ranked` take new places."),
         [](In<int32_t, 2> ids, In<float, 2> scores, size_t ranked, Out<int32_t, 2> best, Out<float, 2> best_scores) {
    const size_t rows = ids.shape(0), count = ids.shape(1), k = best.shape(1);
    require(has_shape(scores, rows, count) && has_shape(best, rows, k) && has_shape(best_scores, rows, k) && k <= count,
            "as many scores as candidates are needed, and no more results");
    rank_again(ids.data(), scores.data(), rows, count, ranked, k, best.data(), best_scores.data());
  });

  nb::class_<PriorLogits> logits(m, "PriorLogits", "What the label prior adds to the logits of all neurons, by row.");
  const auto view = [](const auto& values, nb::handle owner) {
    using T = typename std::decay_t<decltype(values)>::value_type;
    return nb::ndarray<nb::numpy, const T, nb::ndim<1>>(values.data(), {values.size()}, owner);
  };
  logits.def_prop_ro("begin", [view](nb::handle l) { return view(nb::cast<const PriorLogits&>(l).begin, l); });
  logits.def_prop_ro("neuron", [view](nb::handle l) { return view(nb::cast<const PriorLogits&>(l).position, l); });
  logits.def_prop_ro("value", [view](nb::handle l) { return view(nb::cast<const PriorLogits&>(l).value, l); });

  nb::class_<LabelPrior> prior(m, "LabelPrior",
                               "The label prior: what features add to the logits of the labels they co-occur with.");
  prior.attr("SCALES") = PRIOR_SCALES;
  define(prior, "__init__",
         args("begin"_a, "neuron"_a, "weight"_a, "share"_a, "rows"_a, "trained"_a.none(), "scale"_a,
              nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>(), nb::keep_alive<1, 4>(), nb::keep_alive<1, 5>(),
              nb::keep_alive<1, 6>(), nb::keep_alive<1, 7>(), nb::keep_alive<1, 8>()),
         [](LabelPrior* l, Kept<int64_t, 1> begin, Kept<int32_t, 1> neuron, Kept<float, 1> weight, Kept<float, 1> share,
            Kept<int32_t, 1> rows, std::optional<Kept<float, 1>> trained, Kept<float, 1> scale) {
    require(begin.shape(0) > 0 && neuron.shape(0) == weight.shape(0), "as many weights as neurons are needed");
    require(!trained || trained->shape(0) == weight.shape(0), "as many trained weights as counted ones are needed");
    require(rows.shape(0) == share.shape(0), "as many numbers of rows as shares are needed");
    require(has_shape(scale, PRIOR_SCALES), "as many scales as buckets are needed");
    const Csr counted = matrix(begin, neuron, weight, begin.shape(0) - 1, share.shape(0));
    new (l) LabelPrior({counted, share.data(), rows.data(), trained ? const_cast<float*>(trained->data()) : nullptr,
                        trained.has_value(), scale.data(), share.shape(0)});
  });
  define(
      prior, "add",
      args("offsets"_a, "ids"_a, "values"_a, "norms"_a, "active"_a, "label_offsets"_a = nb::none(),
           "label_ids"_a = nb::none(), "keep"_a = 1.0f, "groups"_a = nb::none(),
           "Sets the prior logits of an active set; labels: those of the rows, whose contribution is subtracted."),
      [](LabelPrior& l, Offsets offsets, Ids ids, Floats values, In<double, 1> norms, ActiveSet& active,
         std::optional<Offsets> label_offsets, std::optional<Ids> label_ids, float keep, const GroupedInputs* groups) {
    const Csr x = matrix(offsets, ids, values, active.rows, l.features());
    require(norms.shape(0) == active.rows, "as many norms as rows are needed");
    require(!active.is_per_row, "not for active sets per row");
    require(active.fits(l.neurons()), "an active neuron is out of range");
    l.add(x, norms.data(), lists(label_offsets, label_ids, active.rows, l.neurons()), keep, active,
          groups_of(groups, x, l.features()));
  });
  define(prior, "logits", args("offsets"_a, "ids"_a, "values"_a, "norms"_a, "The prior's logits of all neurons."),
         [](const LabelPrior& l, Offsets offsets, Ids ids, Floats values, In<double, 1> norms) {
    return l.logits(matrix(offsets, ids, values, norms.shape(0), l.features()), norms.data());
  });
  define(prior, "best",
         args("offsets"_a, "ids"_a, "values"_a, "norms"_a, "label_offsets"_a, "label_ids"_a, "bias"_a, "stripe"_a,
              "best"_a, "keys"_a, "groups"_a = nb::none(),
              "The neurons with the largest prior plus bias, except the rows' labels: ids and sort keys."),
         [](LabelPrior& l, Offsets offsets, Ids ids, Floats values, In<double, 1> norms, Offsets label_offsets,
            Ids label_ids, Floats bias, const StripeArgument& stripe_of, Out<int32_t, 2> best, Out<uint32_t, 2> keys,
            const GroupedInputs* groups) {
    const size_t rows = norms.shape(0), count = best.shape(1);
    const Csr x = matrix(offsets, ids, values, rows, l.features());
    require(has_shape(bias, l.neurons()), "as many biases as neurons are needed");
    require(count > 0 && has_shape(best, rows, count) && has_shape(keys, rows, count),
            "as many results as rows are needed");
    l.best(x, norms.data(), lists(label_offsets, label_ids, rows, l.neurons()), bias.data(), count, stripe(stripe_of),
           best.data(), keys.data(), groups_of(groups, x, l.features()));
  });
  define(prior, "learn",
         args("offsets"_a, "ids"_a, "values"_a, "norms"_a, "active"_a, "rate"_a, "scale_gradient"_a,
              "groups"_a = nb::none(), "One step on the trained weights; sets the gradients of the scales."),
         [](LabelPrior& l, Offsets offsets, Ids ids, Floats values, In<double, 1> norms, const ActiveSet& active,
            float rate, Out<double, 1> scale_gradient, const GroupedInputs* groups) {
    const Csr x = matrix(offsets, ids, values, active.rows, l.features());
    require(norms.shape(0) == active.rows, "as many norms as rows are needed");
    require(l.is_trained() && active.prior.begin.size() == active.rows + 1 &&
                active.prior.gradient.size() == active.prior.value.size(),
            "the prior of the active set was not added for training");
    require(active.fits(l.neurons()) && has_shape(scale_gradient, PRIOR_SCALES), "expected a gradient for each scale");
    const ScaleGradient gradient = l.learn(x, norms.data(), rate, active, groups_of(groups, x, l.features()));
    std::copy(gradient.begin(), gradient.end(), scale_gradient.data());
  });
}
}  // namespace dslide
