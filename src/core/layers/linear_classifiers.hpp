// Linear classifiers: for each label a support-vector machine on the features themselves, trained apart from the
// network. For a label it minimises, over weights w and bias b,
//   (|w|^2 + b^2) / 2 + cost * sum_i max(0, 1 - y_i (w x_i + b))^2
// where y_i is 1 for the label's rows and -1 for rows that are mistaken for them and for a sample of all others, by
// coordinate descent in the dual (Hsieh et al. 2008, "A dual coordinate descent method for large-scale linear SVM").
#pragma once
#include <span>
#include <vector>
#include "data/csr.hpp"
#include "layers/calibration.hpp"
#include "runtime/memory.hpp"
#include "runtime/scratch_pool.hpp"
#include "runtime/stripe.hpp"

namespace dslide {
struct LinearOptions {
  // Of an error. For each there are classifiers, which begin with those of the one before.
  std::span<const float> costs;
  float tolerance = 0.1f;      // training ends when no violation of the optimality conditions is larger
  size_t passes = 20;          // over a label's rows, at most
  float least = 0;             // weights of a smaller size are left out
  size_t weights_per_row = 0;  // most weights that are kept for each row of a label, the largest ones
  // A label is trained against at most so many negative rows for each of its own, and against so many at least, chosen
  // at random: without a bound, frequent labels would take most of the time.
  size_t negatives_per_row = 0, least_negatives = 0;
  size_t others = 0;  // how many rows are sampled from all others
};

// By label: the features with weights, in ascending order, and the bias.
struct LinearWeights {
  Aligned<int64_t> begin;  // (labels + 1)
  Aligned<int32_t> feature;
  Aligned<float> weight;
  Aligned<float> bias;  // (labels)
};

// Rows of x are divided by their norms. `positive` and `negative` list the rows of each label; a label without
// positive rows has no weights and bias -1. `numbers`: of the labels in the whole layer. Results don't depend on how
// labels are distributed over ranks or threads. One result for each cost.
std::vector<LinearWeights> train_linear(const Csr& x, const double* norms, size_t features, const Csr& positive,
                                        const Csr& negative, const int32_t* numbers, const LinearOptions& options);

// The classifiers in prediction. Several threads may call them at once.
class LinearScorer {
 public:
  // `weights`: labels x features; `bias`: (labels). Views.
  LinearScorer(const Csr& weights, const float* bias, size_t features);
  size_t labels() const { return weights_.rows; }
  size_t features() const { return features_; }

  // Scores of `count` labels of each row, (rows x count): weights * row / norm + bias; 0 for label -1.
  void scores(const Csr& x, const double* norms, const int32_t* labels, size_t count, float* scores) const;

  // Calibrated scores of candidates, (rows x count), from their logits and the classifiers'. `ids` are numbers in the
  // whole layer, whose stripe `own` is here: others, and -1, have score 0.
  void mixed_scores(const Csr& x, const double* norms, const int32_t* ids, const float* logits, size_t count,
                    Stripe own, const Calibration& calibration, float* scores) const;

 private:
  // A row of unit length.
  struct Row {
    std::span<const int32_t> ids;
    std::span<const float> values;
  };
  struct Scratch {
    std::vector<float> values;        // of a row
    std::vector<uint32_t> groups[2];  // in which a row's features are, of a label and the next one
    AlignedFloats by_feature;         // (features): weights of a label; 0 between uses
  };
  static Row unit_row(const Csr& x, const double* norms, size_t i, float* values);
  void find_groups(size_t label, const Row& row, std::vector<uint32_t>& group) const;
  // The score, of the row whose groups were found.
  float product(size_t label, const Row& row, const std::vector<uint32_t>& group) const;
  // As scores(), with the same result: of few rows, and of many.
  void scores_by_row(const Csr& x, const double* norms, const int32_t* labels, size_t count, float* scores) const;
  void scores_by_label(const Csr& x, const double* norms, const int32_t* labels, size_t count, float* scores) const;
  void score_rows(size_t label, const std::vector<Row>& rows, size_t count, std::span<const uint32_t> places,
                  Scratch& scratch, float* scores) const;

  Csr weights_;
  const float* bias_;
  size_t features_;
  std::vector<int64_t> last_begin_;  // (labels + 1)
  std::vector<int32_t> last_;        // by label: the last feature of each whole group of its features
  mutable ScratchPool<Scratch> scratch_;
};

// The `k` best of each row's `count` candidates by their scores, best first, ties to the lower id; id -1 comes last.
// Only the first `ranked` take new places; the others keep theirs, and no score is larger than the one before it.
void rank_again(const int32_t* ids, const float* scores, size_t rows, size_t count, size_t ranked, size_t k,
                int32_t* best, float* best_scores);
}  // namespace dslide
