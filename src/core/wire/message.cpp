#include "wire/message.hpp"
#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>
#include "runtime/checks.hpp"
#include "runtime/thread_pool.hpp"
#include "wire/codecs.hpp"

namespace dslide {
namespace {
static_assert(std::endian::native == std::endian::little, "messages are copies of memory");

constexpr uint8_t MAGIC[2] = {'D', 'W'};
constexpr size_t HEADER_BYTES = 12;
constexpr size_t MAX_SIDE = std::numeric_limits<int32_t>::max();  // of rows and columns; sizes then fit into 64 bits
constexpr size_t MIN_PARALLEL = 1 << 17;  // values; for fewer, waking threads takes longer than the work
constexpr size_t WORD = 64;               // values per mask word
constexpr size_t SAVING = 8;              // a sparse message is shorter by this part of a dense one

template <class Fn> auto with_codec(WireFormat format, const Fn& fn) {
  switch (format) {
    case WireFormat::float32: return fn(Float32Codec{});
    case WireFormat::bf16: return fn(Bf16Codec{});
    default: return fn(Int8Codec{});
  }
}

// memcpy must not be given null pointers, which empty vectors have, even for no bytes.
void copy_bytes(void* to, const void* from, size_t count) {
  if (count) std::memcpy(to, from, count);
}

// Offsets and sizes of the parts of a message, in bytes.
struct Layout {
  size_t rows, columns;
  size_t scale_bytes, value_bytes;                         // per row, per value
  size_t mask_bytes() const { return (columns + 7) / 8; }  // per row
  size_t masks_at() const { return HEADER_BYTES + rows * scale_bytes; }
  size_t dense_bytes() const { return masks_at() + rows * columns * value_bytes; }
  size_t sparse_values_at() const { return masks_at() + rows * mask_bytes(); }
  size_t sparse_bytes(size_t count) const { return sparse_values_at() + count * value_bytes; }
  bool is_sparse(size_t count) const { return sparse_bytes(count) <= dense_bytes() - dense_bytes() / SAVING; }
};

template <class F> Layout layout_of(F, size_t rows, size_t columns) {
  return {rows, columns, F::scale_bytes, sizeof(typename F::Value)};
}

template <class Float> void check_columns(const ColumnView<Float>& c) {
  check_range("rows", c.rows, 0, MAX_SIDE);
  check_range("columns", c.count, 0, MAX_SIDE);
  check_range("step", c.columns.step, 1, MAX_SIDE);
  require(c.count == 0 || c.columns.to_global(c.count - 1) < c.stride, "there are no ", c.count, " columns from ",
          c.columns.first, " in steps of ", c.columns.step, " among ", c.stride);
}

// Calls fn(begin, end) for parts of the rows, in parallel if there are many values.
template <class Fn> void over_rows(size_t rows, size_t columns, const Fn& fn) {
  if (rows * columns < MIN_PARALLEL) return fn(0, rows);
  parallel_for(rows, [&](size_t begin, size_t end, int) { fn(begin, end); });
}

// Calls fn(i, column) for each of the columns, by their place among them and in the matrix.
template <class Float, class Fn> void each_column(const ColumnView<Float>& c, const Fn& fn) {
  if (c.columns.width == 1) {
    for (size_t i = 0; i < c.count; ++i) fn(i, c.columns.first + i * c.columns.step);
    return;
  }
  size_t begin = c.columns.first;
  for (size_t i = 0; i < c.count; begin += c.columns.step) {
    for (size_t j = 0; j < c.columns.width && i < c.count; ++j) fn(i++, begin + j);
  }
}

// Scratch for one row: its floats, contiguous, and its values, zero-padded to whole words (at least one).
template <class F> struct RowScratch {
  std::vector<float> floats;
  std::vector<typename F::Value> values;

  explicit RowScratch(size_t n) : floats(n), values(std::max<size_t>(1, (n + WORD - 1) / WORD) * WORD) {}

  // Returns the scale.
  float encode(const ColumnView<const float>& c, size_t row) {
    const float* x = c.data + row * c.stride;
    if (c.columns.step == 1) return F::encode(x + c.columns.first, c.count, values.data());
    each_column(c, [&](size_t i, size_t column) { floats[i] = x[column]; });
    return F::encode(floats.data(), c.count, values.data());
  }

  void decode(const ColumnView<float>& c, size_t row, float scale, bool add) {
    float* x = c.data + row * c.stride;
    if (c.columns.step == 1) x += c.columns.first;
    if (c.columns.step == 1 && !add) return F::decode(values.data(), c.count, scale, x);
    F::decode(values.data(), c.count, scale, floats.data());
    if (c.columns.step == 1) {
      for (size_t i = 0; i < c.count; ++i) x[i] += floats[i];
    } else if (!add) {
      each_column(c, [&](size_t i, size_t column) { x[column] = floats[i]; });
    } else {
      each_column(c, [&](size_t i, size_t column) { x[column] += floats[i]; });
    }
  }

  size_t count_nonzero() const {
    size_t count = 0;
    for (const auto v : values) count += !F::is_zero(v);
    return count;
  }

  // Bit mask of the nonzero values of the word at `at`, first value in the lowest bit.
  uint64_t mask(size_t at) const {
    uint8_t flags[WORD];
    for (size_t i = 0; i < WORD; ++i) flags[i] = !F::is_zero(values[at + i]);
    uint64_t bits = 0;
    for (size_t i = 0; i < WORD; i += 8) {
      uint64_t eight;
      std::memcpy(&eight, flags + i, 8);
      bits |= eight * 0x0102040810204080 >> 56 << i;  // moves the lowest bit of byte j to bit 56 + j
    }
    return bits;
  }

  void write_nonzero(size_t mask_bytes, uint8_t* masks, uint8_t* out) const {
    for (size_t at = 0; at < values.size(); at += WORD) {
      const uint64_t bits = mask(at);
      std::memcpy(masks + at / 8, &bits, std::min<size_t>(8, mask_bytes - at / 8));
      for (uint64_t rest = bits; rest != 0; rest &= rest - 1) {
        std::memcpy(out, &values[at + std::countr_zero(rest)], sizeof(typename F::Value));
        out += sizeof(typename F::Value);
      }
    }
  }

  void read_nonzero(size_t mask_bytes, const uint8_t* masks, const uint8_t* in) {
    std::fill(values.begin(), values.end(), typename F::Value{0});
    for (size_t at = 0; at < values.size(); at += WORD) {
      uint64_t bits = 0;
      std::memcpy(&bits, masks + at / 8, std::min<size_t>(8, mask_bytes - at / 8));
      for (uint64_t rest = bits; rest != 0; rest &= rest - 1) {
        std::memcpy(&values[at + std::countr_zero(rest)], in, sizeof(typename F::Value));
        in += sizeof(typename F::Value);
      }
    }
  }
};

size_t count_bits(const uint8_t* bytes, size_t n) {
  size_t count = 0;
  for (size_t at = 0; at < n; at += 8) {
    uint64_t bits = 0;
    std::memcpy(&bits, bytes + at, std::min<size_t>(8, n - at));
    count += std::popcount(bits);
  }
  return count;
}

struct Header {
  WireFormat format;
  bool dense;
};

Header read_header(std::span<const uint8_t> message, size_t rows, size_t columns) {
  require(message.size() >= HEADER_BYTES, "message too short: a header has ", HEADER_BYTES, " bytes, the message only ",
          message.size());
  require(message[0] == MAGIC[0] && message[1] == MAGIC[1] && message[2] <= static_cast<uint8_t>(WireFormat::int8) &&
              message[3] <= 1,
          "unknown message header: bytes ", +message[0], " ", +message[1], " ", +message[2], " ", +message[3]);
  uint32_t has[2];
  std::memcpy(has, &message[4], sizeof has);
  require(has[0] == rows && has[1] == columns, "the message has ", has[0], " rows of ", has[1], " numbers, not ", rows,
          " of ", columns);
  return {static_cast<WireFormat>(message[2]), message[3] == 0};
}

void write_header(const WirePlan& plan, uint8_t* message) {
  const uint8_t tag[4] = {MAGIC[0], MAGIC[1], static_cast<uint8_t>(plan.format), static_cast<uint8_t>(!plan.dense)};
  const uint32_t has[2] = {static_cast<uint32_t>(plan.rows), static_cast<uint32_t>(plan.columns)};
  std::memcpy(message, tag, sizeof tag);
  std::memcpy(message + sizeof tag, has, sizeof has);
}

void check_bytes(std::span<const uint8_t> message, size_t expected) {
  require(message.size() == expected, "the message has ", message.size(), " bytes, its header and mask say ", expected);
}

// Number of nonzero values before each row, from masks that are checked.
std::vector<size_t> read_masks(std::span<const uint8_t> message, const Layout& layout) {
  if (message.size() < layout.sparse_values_at()) check_bytes(message, layout.sparse_values_at());
  std::vector<size_t> before(layout.rows + 1);
  const size_t bytes = layout.mask_bytes();
  const int padding = layout.columns % 8 ? 0xff << layout.columns % 8 & 0xff : 0;  // bits of the last byte: must be 0
  for (size_t r = 0; r < layout.rows; ++r) {
    const uint8_t* mask = message.data() + layout.masks_at() + r * bytes;
    require(bytes == 0 || (mask[bytes - 1] & padding) == 0, "the mask of row ", r, " has bits beyond its ",
            layout.columns, " columns");
    before[r + 1] = before[r] + count_bits(mask, bytes);
  }
  check_bytes(message, layout.sparse_bytes(before[layout.rows]));
  require(layout.is_sparse(before[layout.rows]),
          "the sparse message is not shorter than a dense one by an eighth: ", message.size(), " bytes, dense ",
          layout.dense_bytes());
  return before;
}
}  // namespace

WireFormat wire_format(std::string_view name) {
  return named<WireFormat>(name, {"float32", "bf16", "int8"}, "there is no wire format '", name,
                           "': float32, bf16 or int8");
}

size_t wire_size(size_t rows, size_t columns, WireFormat format) {
  check_range("rows", rows, 0, MAX_SIDE);
  check_range("columns", columns, 0, MAX_SIDE);
  return with_codec(format, [&](auto f) { return layout_of(f, rows, columns).dense_bytes(); });
}

WirePlan wire_plan(const ColumnView<const float>& x, WireFormat format) {
  check_columns(x);
  WirePlan plan{format, true, x.rows, x.count, 0, {}, {}, std::vector<size_t>(x.rows + 1)};
  with_codec(format, [&](auto f) {
    using Value = typename decltype(f)::Value;
    const Layout layout = layout_of(f, x.rows, x.count);
    plan.scales.resize(layout.scale_bytes ? x.rows : 0);
    plan.values.resize(x.rows * x.count * sizeof(Value));
    over_rows(x.rows, x.count, [&](size_t begin, size_t end) {
      RowScratch<decltype(f)> row(x.count);
      for (size_t r = begin; r < end; ++r) {
        const float scale = row.encode(x, r);
        if (!plan.scales.empty()) plan.scales[r] = scale;
        copy_bytes(plan.values.data() + r * x.count * sizeof(Value), row.values.data(), x.count * sizeof(Value));
        plan.before[r + 1] = row.count_nonzero();
      }
    });
    for (size_t r = 0; r < x.rows; ++r) plan.before[r + 1] += plan.before[r];
    plan.dense = !layout.is_sparse(plan.before[x.rows]);
    plan.bytes = plan.dense ? layout.dense_bytes() : layout.sparse_bytes(plan.before[x.rows]);
  });
  return plan;
}

void wire_write(const WirePlan& plan, std::span<uint8_t> message) {
  check_range("message bytes", message.size(), plan.bytes, plan.bytes);
  write_header(plan, message.data());
  with_codec(plan.format, [&](auto f) {
    const Layout layout = layout_of(f, plan.rows, plan.columns);
    if (!plan.scales.empty()) {
      std::memcpy(message.data() + HEADER_BYTES, plan.scales.data(), plan.rows * layout.scale_bytes);
    }
    uint8_t* const body = message.data() + layout.masks_at();
    if (plan.dense) {
      copy_bytes(body, plan.values.data(), plan.values.size());
      return;
    }
    const size_t row_bytes = plan.columns * layout.value_bytes;
    const auto write_rows = [&](size_t begin, size_t end) {
      RowScratch<decltype(f)> row(plan.columns);
      for (size_t r = begin; r < end; ++r) {
        std::memcpy(row.values.data(), plan.values.data() + r * row_bytes, row_bytes);
        row.write_nonzero(layout.mask_bytes(), body + r * layout.mask_bytes(),
                          message.data() + layout.sparse_bytes(plan.before[r]));
      }
    };
    over_rows(plan.rows, plan.columns, write_rows);
  });
}

void wire_decode(std::span<const uint8_t> message, const ColumnView<float>& out, bool add) {
  check_columns(out);
  const Header header = read_header(message, out.rows, out.count);
  with_codec(header.format, [&](auto f) {
    const Layout layout = layout_of(f, out.rows, out.count);
    std::vector<size_t> before;
    if (header.dense) {
      check_bytes(message, layout.dense_bytes());
    } else {
      before = read_masks(message, layout);
    }
    over_rows(out.rows, out.count, [&](size_t begin, size_t end) {
      RowScratch<decltype(f)> row(out.count);
      for (size_t r = begin; r < end; ++r) {
        float scale = 1;
        std::memcpy(&scale, message.data() + HEADER_BYTES + r * layout.scale_bytes, layout.scale_bytes);
        const uint8_t* const body = message.data() + layout.masks_at();
        if (header.dense) {
          copy_bytes(row.values.data(), body + r * out.count * layout.value_bytes, out.count * layout.value_bytes);
        } else {
          row.read_nonzero(layout.mask_bytes(), body + r * layout.mask_bytes(),
                           message.data() + layout.sparse_bytes(before[r]));
        }
        row.decode(out, r, scale, add);
      }
    });
  });
}
}  // namespace dslide
