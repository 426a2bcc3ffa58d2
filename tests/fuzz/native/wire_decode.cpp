// Any bytes as a message between ranks, for a matrix of any small shape: it is decoded or refused, writes nothing but
// the columns it is for, and changes nothing if it is refused. What wire_write makes of the result is decoded again.
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <vector>
#include "wire/message.hpp"

using namespace dslide;

namespace {
void check(bool holds) {
  if (!holds) abort();
}
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 3) return 0;
  const size_t rows = data[0] % 5, columns = data[1] % 21, step = 1 + (data[1] >> 6), first = data[0] >> 6;
  const bool add = data[2] & 1;
  const size_t stride = first + step * columns + (data[2] >> 5);
  const std::vector<uint8_t> message(data + 3, data + size);
  const std::vector<float> before(rows * stride, 0.5f);
  std::vector<float> out = before;
  const ColumnView<float> view{out.data(), rows, stride, {first, step}, columns};
  const auto is_own = [&](size_t place) {
    const size_t column = place % stride;
    return column >= first && (column - first) % step == 0 && (column - first) / step < columns;
  };
  try {
    wire_decode(message, view, add);
  } catch (const std::invalid_argument&) {
    check(!rows || !stride || !memcmp(out.data(), before.data(), 4 * out.size()));
    return 0;
  }
  for (size_t i = 0; i < out.size(); ++i) {
    check(is_own(i) || out[i] == 0.5f);
    if (!std::isfinite(out[i])) out[i] = 0;
  }
  for (const WireFormat format : {WireFormat::float32, WireFormat::bf16, WireFormat::int8}) {
    const WirePlan plan = wire_plan({out.data(), rows, stride, {first, step}, columns}, format);
    check(plan.bytes <= wire_size(rows, columns, format));
    std::vector<uint8_t> again(plan.bytes);
    wire_write(plan, again);
    std::vector<float> copy(out.size());
    wire_decode(again, {copy.data(), rows, stride, {first, step}, columns}, false);
    if (format != WireFormat::float32) continue;
    for (size_t i = 0; i < out.size(); ++i) {
      check(!is_own(i) || copy[i] == out[i]);
    }
  }
  return 0;
}
