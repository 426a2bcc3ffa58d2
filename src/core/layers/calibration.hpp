// Calibration in prediction: what scores are made of logits.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>

namespace dslide {
// `numbers` (neurons x 7; null: scores are logits) has the slope and offset of a neuron's line, the least logit from
// which it holds, the logit where it bends and by how much its slope changes there, and what is added then. With
// `saturates` that is added to the log of the sigmoid of the line's value, not to the value. The last number, what a
// neighbour's vote counts, is used before (neighbours.hpp).
struct Calibration {
  static constexpr size_t NUMBERS = 7;
  const float* numbers = nullptr;
  bool saturates = false;

  float score(float logit, size_t neuron) const;
};

// A neuron's calibrated logit. Below `least` the slope is 1: the fit knows nothing about logits that low.
inline float calibrated(float z, float slope, float offset, float least, float knot, float bend) {
  const float inside = std::max(z, least);
  return slope * inside + offset + (z - inside) + bend * std::max(z - knot, 0.0f);
}

// log sigmoid(z), which is below both z and 0.
inline float log_sigmoid(float z) { return std::min(z, 0.0f) - std::log1p(std::exp(-std::fabs(z))); }

inline float Calibration::score(float logit, size_t neuron) const {
  if (!numbers) return logit;
  const float* line = numbers + NUMBERS * neuron;
  logit = calibrated(logit, line[0], line[1], line[2], line[3], line[4]);
  return (saturates ? log_sigmoid(logit) : logit) + line[5];
}
}  // namespace dslide
