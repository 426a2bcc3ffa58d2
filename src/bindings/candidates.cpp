// Candidates of approximate prediction.
#include "layers/candidates.hpp"
#include <nanobind/stl/optional.h>
#include "bindings.hpp"
#include "csr.hpp"
#include "layers/topk_of_cells.hpp"

namespace dslide {
namespace {
void check_ascending(const Csr& lists, const char* what) {
  for (size_t i = 0; lists && i < lists.rows; ++i) {
    require(std::is_sorted(lists.begin(i), lists.end(i)), what, " must be in order");
  }
}

// Of the lists, only those that are used are looked at.
void check_used_lists(const Csr& lists, const Ids& list_of, size_t neurons) {
  for (size_t i = 0; i < list_of.shape(0); ++i) {
    const int32_t list = list_of(i);
    require(list >= 0 && static_cast<size_t>(list) < lists.rows, "there is no such list");
    const int32_t *first = lists.begin(list), *last = lists.end(list);
    require(std::is_sorted(first, last), "lists must be in order");
    require(first == last || (*first >= 0 && static_cast<size_t>(last[-1]) < neurons), "an id is out of range");
  }
}

nb::ndarray<nb::numpy, uint64_t> rank_keys(Floats logits, Ids neurons) {
  require(logits.shape(0) == neurons.shape(0), "as many logits as neurons are needed");
  auto keys = std::make_unique<uint64_t[]>(logits.shape(0));
  for (size_t i = 0; i < logits.shape(0); ++i) keys[i] = rank_key(logits(i), static_cast<size_t>(neurons(i)));
  return owned(std::move(keys), {logits.shape(0)});
}

nb::tuple of_prior(const PriorLogits& prior, Floats bias, size_t want, const StripeArgument& stripe_of) {
  require(prior.fits(prior.rows(), bias.shape(0)), "the prior scores neurons without a bias");
  const Stripe own = stripe(stripe_of);
  std::vector<uint64_t> keys;
  CandidateLists found = released([&] { return prior_candidates(prior, bias.data(), want, own, keys); });
  return nb::make_tuple(owned(std::move(found.offsets)), owned(std::move(found.neurons)), owned(std::move(keys)));
}

nb::tuple joined(size_t neurons, Offsets offsets, Ids ids, Ids list_of, std::optional<Offsets> more_offsets,
                 std::optional<Ids> more_ids, std::optional<Offsets> excluded_offsets,
                 std::optional<Ids> excluded_ids) {
  const size_t rows = list_of.shape(0);
  const Csr all{check_offsets(offsets, ids.shape(0)), offsets.data(), ids.data(), nullptr};
  const Csr more = lists(more_offsets, more_ids, rows, neurons);
  const Csr excluded = lists(excluded_offsets, excluded_ids, rows, neurons);
  check_used_lists(all, list_of, neurons);
  check_ascending(more, "further neurons");
  check_ascending(excluded, "excluded neurons");
  CandidateLists found = released([&] { return join_candidates(all, {list_of.data(), rows}, more, excluded); });
  return nb::make_tuple(owned(std::move(found.offsets)), owned(std::move(found.neurons)));
}

void of_cells(const DenseLayer& layer, In<float, 2> h, Offsets offsets, Ids ids, Ids list_of, Out<int32_t, 2> best,
              Out<float, 2> scores, const LabelPrior* prior, std::optional<Offsets> x_offsets, std::optional<Ids> x_ids,
              std::optional<Floats> x_values, std::optional<In<double, 1>> norms, size_t want,
              std::optional<Offsets> excluded_offsets, std::optional<Ids> excluded_ids,
              std::optional<In<float, 2>> calibration, bool saturates) {
  const size_t rows = list_of.shape(0), neurons = layer.weights().rows;
  require(has_shape(h, rows, layer.weights().stride), "h must be rows x stride");
  require(best.shape(0) == rows && has_shape(scores, rows, best.shape(1)), "ids and scores must be rows x k");
  const Csr cells{check_offsets(offsets, ids.shape(0)), offsets.data(), ids.data(), nullptr};
  check_used_lists(cells, list_of, neurons);
  const Csr excluded = lists(excluded_offsets, excluded_ids, rows, neurons);
  check_ascending(excluded, "excluded neurons");
  PriorOfRows of_rows;
  if (prior) {
    require(x_offsets && x_ids && x_values && norms && has_shape(*norms, rows), "a prior needs rows and their norms");
    require(prior->neurons() == neurons, "the prior must be that of these neurons");
    of_rows = {prior, matrix(*x_offsets, *x_ids, *x_values, rows, prior->features()), norms->data(), want};
  }
  topk_of_cells(layer, h.data(), cells, {list_of.data(), rows}, of_rows, excluded, best.shape(1),
                calibration_of(neurons, calibration, saturates), best.data(), scores.data());
}
}  // namespace

void bind_candidates(nb::module_& m) {
  m.def("rank_keys", &rank_keys, "logits"_a, "neurons"_a,
        "Numbers that order as the logits do; of equal logits that of the lower neuron is larger.");
  m.def("prior_candidates", &of_prior, "prior"_a, "bias"_a, "want"_a, "stripe"_a = ALL,
        "The neurons with the largest prior plus bias in each row: (offsets, neurons, rank keys).");
  m.def("join_candidates", &joined, "neurons"_a, "offsets"_a, "ids"_a, "list_of"_a, "more_offsets"_a = nb::none(),
        "more_ids"_a = nb::none(), "excluded_offsets"_a = nb::none(), "excluded_ids"_a = nb::none(),
        "The list that each row has among some lists, joined with further neurons, without excluded ones: (offsets, "
        "neurons).");
  define(m, "topk_of_cells",
         args("layer"_a, "h"_a, "offsets"_a, "ids"_a, "list_of"_a, "best"_a, "scores"_a, "prior"_a = nb::none(),
              "x_offsets"_a = nb::none(), "x_ids"_a = nb::none(), "x_values"_a = nb::none(), "norms"_a = nb::none(),
              "want"_a = 0, "excluded_offsets"_a = nb::none(), "excluded_ids"_a = nb::none(),
              "calibration"_a = nb::none(), "saturates"_a = false,
              "The best labels of rows among those of the list that each has, and those that the prior leads to."),
         &of_cells);
}
}  // namespace dslide
