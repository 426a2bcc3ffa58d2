#include "layers/input_groups.hpp"
#include <algorithm>
#include "runtime/radix_sort.hpp"
#include "runtime/thread_pool.hpp"

namespace dslide {
void InputGroups::fill(const Csr& x, Stripe own) {
  const size_t count = x.nnz();
  keys_.resize(count);
  size_t taken = 0;
  uint32_t largest = 0;
  for (size_t e = 0; e < count; ++e) {
    const auto id = static_cast<uint32_t>(x.ids[e]);
    keys_[taken] = (uint64_t{id} << 32) | e;
    taken += own.step == 1 || own.contains(id);  // branch-free: the branch would be unpredictable
    largest = std::max(largest, id);
  }
  keys_.resize(taken);
  radix_sort(keys_, scratch_, largest, [](uint64_t k) { return static_cast<uint32_t>(k >> 32); });

  row_of_.resize(count);
  for (size_t i = 0; i < x.rows; ++i) {
    std::fill(row_of_.begin() + x.offsets[i], row_of_.begin() + x.offsets[i + 1], static_cast<int32_t>(i));
  }
  input.clear();
  begin.clear();
  row.resize(taken);
  value.resize(taken);
  element.resize(taken);
  for (size_t k = 0; k < taken; ++k) {
    const auto id = static_cast<int32_t>(keys_[k] >> 32);
    const auto e = static_cast<uint32_t>(keys_[k]);
    if (k == 0 || id != input.back()) {
      input.push_back(id);
      begin.push_back(k);
    }
    row[k] = row_of_[e];
    value[k] = x.values[e];
    element[k] = e;
  }
  begin.push_back(taken);
}

void group_by_input(const Csr& x, std::vector<InputGroups>& groups) {
  const size_t parts = threads();
  groups.resize(parts);
  run_threads(static_cast<int>(parts), [&](int t) { groups[t].fill(x, {static_cast<size_t>(t), parts}); });
}

void GroupedInputs::fill(const Csr& x) {
  group_by_input(x, parts);
  rows = x.rows;
  largest = 0;
  place.resize(x.nnz());
  parallel_each(parts.size(), [&](size_t t) {
    const InputGroups& group = parts[t];
    for (size_t f = 0; f < group.input.size(); ++f) {
      for (size_t e = group.begin[f]; e < group.begin[f + 1]; ++e) place[group.element[e]] = static_cast<uint32_t>(f);
    }
  });
  for (const InputGroups& group : parts) {
    if (!group.input.empty()) largest = std::max(largest, static_cast<size_t>(group.input.back()));
  }
}
}  // namespace dslide
