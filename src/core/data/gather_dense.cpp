#include "data/gather_dense.hpp"
#include <algorithm>
#include <bit>
#include <stdexcept>
#include "runtime/checks.hpp"
#include "runtime/thread_pool.hpp"

namespace dslide {
namespace {
constexpr size_t MIN_PARALLEL = 1 << 15;  // numbers; for fewer, a copy takes less time than waking threads

float to_float(float x) { return x; }
float to_float(double x) { return static_cast<float>(x); }

// IEEE half precision, without branches and denormal floats, which threads of the pool flush to zero.
float to_float(uint16_t half) {
  constexpr uint32_t EXPONENT = 0x7C00u << 13, BIAS = (127u - 15u) << 23, ONE = 1u << 23;
  const uint32_t bits = static_cast<uint32_t>(half & 0x7FFF) << 13, exponent = bits & EXPONENT;
  const uint32_t biased = bits + BIAS + (exponent == EXPONENT ? BIAS : 0);
  const float subnormal = std::bit_cast<float>(bits + BIAS + ONE) - std::bit_cast<float>(BIAS + ONE);
  const uint32_t magnitude = exponent == 0 ? std::bit_cast<uint32_t>(subnormal) : biased;
  return std::bit_cast<float>(magnitude | static_cast<uint32_t>(half & 0x8000) << 16);
}

template <class Number>
void gather(const Number* from, size_t columns, std::span<const int64_t> ids, float* out, size_t ld) {
  const auto copy = [&](size_t begin, size_t end, int) {
    for (size_t i = begin; i < end; ++i) {
      const Number* row = from + static_cast<size_t>(ids[i]) * columns;
      for (size_t j = 0; j < columns; ++j) out[i * ld + j] = to_float(row[j]);
      std::fill(out + i * ld + columns, out + (i + 1) * ld, 0.0f);
    }
  };
  if (ids.size() * columns < MIN_PARALLEL) return copy(0, ids.size(), 0);
  parallel_for(ids.size(), copy);
}
}  // namespace

void gather_dense(const StoredMatrix& from, std::span<const int64_t> ids, float* out, size_t ld) {
  for (const int64_t id : ids) {
    if (id < 0 || static_cast<size_t>(id) >= from.rows) {
      throw std::out_of_range(text("there is no row ", id, " among ", from.rows));
    }
  }
  switch (from.type) {
    case Stored::float16: return gather(static_cast<const uint16_t*>(from.data), from.columns, ids, out, ld);
    case Stored::float32: return gather(static_cast<const float*>(from.data), from.columns, ids, out, ld);
    case Stored::float64: return gather(static_cast<const double*>(from.data), from.columns, ids, out, ld);
  }
}
}  // namespace dslide
