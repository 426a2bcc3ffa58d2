#include "wire/message.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>

#include "runtime/checks.hpp"
#include "runtime/thread_pool.hpp"

namespace dslide {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers go into messages as they lie in memory");

constexpr uint8_t letters[2] = {'D', 'W'};
constexpr size_t header_bytes = 12;
constexpr size_t most = std::numeric_limits<int32_t>::max();  // rows and columns; sizes then fit into 64 bits
constexpr size_t worth_threads = 1 << 17;  // fewer numbers than this are done sooner than other threads are woken
constexpr size_t WORD = 64;                // values whose mask is handled at once

constexpr uint32_t without_sign = 0x7fffffff, infinite = 0x7f800000;

// A format's arithmetic on one row: numbers to values, which returns the row's scale, and back.
struct Float32 {
  using Value = uint32_t;
  static constexpr size_t scale_bytes = 0;
  static bool is_zero(Value v) { return (v & without_sign) == 0; }

  static float encode(const float* x, size_t n, Value* values) {
    for (size_t i = 0; i < n; ++i) values[i] = std::bit_cast<Value>(x[i]);
    return 1;
  }
  static void decode(const Value* values, size_t n, float, float* x) {
    for (size_t i = 0; i < n; ++i) x[i] = std::bit_cast<float>(values[i]);
  }
};

struct Bf16 {
  using Value = uint16_t;
  static constexpr size_t scale_bytes = 0;
  static bool is_zero(Value v) { return (v & 0x7fff) == 0; }

  static float encode(const float* x, size_t n, Value* values) {
    for (size_t i = 0; i < n; ++i) {
      const auto bits = std::bit_cast<uint32_t>(x[i]);
      const uint32_t rounded = bits + 0x7fff + (bits >> 16 & 1), quiet_nan = bits | 0x400000;
      values[i] = static_cast<Value>(((bits & without_sign) > infinite ? quiet_nan : rounded) >> 16);
    }
    return 1;
  }
  static void decode(const Value* values, size_t n, float, float* x) {
    for (size_t i = 0; i < n; ++i) x[i] = std::bit_cast<float>(static_cast<uint32_t>(values[i]) << 16);
  }
};

struct Int8 {
  using Value = int8_t;
  static constexpr size_t scale_bytes = sizeof(float);
  static bool is_zero(Value v) { return v == 0; }

  // Scales of rows that are not taken for zero are so large that a denormal rounds to 0, flushed or not.
  static constexpr float smallest = 0x1p-118f;

  static float encode(const float* x, size_t n, Value* values) {
    uint32_t largest = 0;  // absolute value, as bits: these are in the order of the floats, with NaN above all
    for (size_t i = 0; i < n; ++i) largest = std::max(largest, std::bit_cast<uint32_t>(x[i]) & without_sign);
    if (largest >= infinite) {
      std::fill_n(values, n, Value{1});
      return std::numeric_limits<float>::quiet_NaN();
    }
    if (std::bit_cast<float>(largest) < smallest) {
      std::fill_n(values, n, Value{0});
      return 0;
    }
    const float scale = std::bit_cast<float>(largest) / 127;
    constexpr float magic = 12582912;  // 1.5 * 2^23: adding it rounds to an integer in the low bits
    for (size_t i = 0; i < n; ++i) values[i] = static_cast<Value>(std::bit_cast<uint32_t>(x[i] / scale + magic) & 0xff);
    return scale;
  }
  static void decode(const Value* values, size_t n, float scale, float* x) {
    for (size_t i = 0; i < n; ++i) x[i] = static_cast<float>(values[i]) * scale;
  }
};

template <class Fn>
auto with(WireFormat format, const Fn& fn) {
  switch (format) {
    case WireFormat::float32: return fn(Float32{});
    case WireFormat::bf16: return fn(Bf16{});
    default: return fn(Int8{});
  }
}

// Where the parts of a message lie.
struct Form {
  size_t rows, columns;
  size_t scale_bytes, value_bytes;                         // of a row, of a value
  size_t mask_bytes() const { return (columns + 7) / 8; }  // of a row
  size_t masks_at() const { return header_bytes + rows * scale_bytes; }
  size_t dense_bytes() const { return masks_at() + rows * columns * value_bytes; }
  size_t sparse_values_at() const { return masks_at() + rows * mask_bytes(); }
  size_t sparse_bytes(size_t count) const { return sparse_values_at() + count * value_bytes; }
};

template <class F>
Form form_of(F, size_t rows, size_t columns) {
  return {rows, columns, F::scale_bytes, sizeof(typename F::Value)};
}

template <class Float>
void check_columns(const Columns<Float>& c) {
  check_range("rows", c.rows, 0, most);
  check_range("columns", c.count, 0, most);
  check_range("step", c.step, 1, most);
  if (c.count > 0 && (c.first >= c.stride || c.count - 1 > (c.stride - 1 - c.first) / c.step)) {
    throw std::invalid_argument("there are no " + std::to_string(c.count) + " columns from " + std::to_string(c.first) +
                                " in steps of " + std::to_string(c.step) + " among " + std::to_string(c.stride));
  }
}

// Calls fn(begin, end) for parts of the rows.
template <class Float, class Fn>
void over_rows(const Columns<Float>& c, const Fn& fn) {
  if (c.rows * c.count < worth_threads) return fn(0, c.rows);
  run_parts(c.rows, [&](size_t begin, size_t end, int) { fn(begin, end); });
}

// Room for one row: its numbers side by side, and its values, with zeros behind them to the end of a word (at least
// one).
template <class F>
struct Row {
  std::vector<float> numbers;
  std::vector<typename F::Value> values;

  explicit Row(size_t n) : numbers(n), values(std::max<size_t>(1, (n + WORD - 1) / WORD) * WORD) {}

  // Returns the scale.
  float encode(const Columns<const float>& c, size_t row) {
    const float* x = c.data + row * c.stride + c.first;
    if (c.step == 1) return F::encode(x, c.count, values.data());
    for (size_t i = 0; i < c.count; ++i) numbers[i] = x[i * c.step];
    return F::encode(numbers.data(), c.count, values.data());
  }

  void decode(const Columns<float>& c, size_t row, float scale, bool add) {
    float* x = c.data + row * c.stride + c.first;
    if (c.step == 1 && !add) return F::decode(values.data(), c.count, scale, x);
    F::decode(values.data(), c.count, scale, numbers.data());
    if (!add) {
      for (size_t i = 0; i < c.count; ++i) x[i * c.step] = numbers[i];
    } else if (c.step == 1) {
      for (size_t i = 0; i < c.count; ++i) x[i] += numbers[i];
    } else {
      for (size_t i = 0; i < c.count; ++i) x[i * c.step] += numbers[i];
    }
  }

  size_t count_nonzero() const {
    size_t count = 0;
    for (const auto v : values) count += !F::is_zero(v);
    return count;
  }

  // Which values of the word from `at` on are not zero, the first in the lowest bit.
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
        std::memcpy(out, &values[at + static_cast<size_t>(std::countr_zero(rest))], sizeof(typename F::Value));
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
        std::memcpy(&values[at + static_cast<size_t>(std::countr_zero(rest))], in, sizeof(typename F::Value));
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
    count += static_cast<size_t>(std::popcount(bits));
  }
  return count;
}

template <class T>
std::string text(T number) {
  return std::to_string(number);
}

struct Header {
  WireFormat format;
  bool dense;
};

Header read_header(std::span<const uint8_t> message, size_t rows, size_t columns) {
  if (message.size() < header_bytes) {
    throw std::invalid_argument("a message has a header of " + text(header_bytes) + " bytes, this one has only " +
                                text(message.size()) + " in all");
  }
  if (message[0] != letters[0] || message[1] != letters[1] || message[2] > static_cast<uint8_t>(WireFormat::int8) ||
      message[3] > 1) {
    throw std::invalid_argument("the message begins with the bytes " + text(message[0]) + " " + text(message[1]) + " " +
                                text(message[2]) + " " + text(message[3]) + ", which none of ours does");
  }
  uint32_t has[2];
  std::memcpy(has, &message[4], sizeof has);
  if (has[0] != rows || has[1] != columns) {
    throw std::invalid_argument("the message has " + text(has[0]) + " rows of " + text(has[1]) + " numbers, not " +
                                text(rows) + " of " + text(columns));
  }
  return {static_cast<WireFormat>(message[2]), message[3] == 0};
}

void write_header(const WirePlan& plan, size_t rows, size_t columns, uint8_t* message) {
  const uint8_t tag[4] = {letters[0], letters[1], static_cast<uint8_t>(plan.format), static_cast<uint8_t>(!plan.dense)};
  const uint32_t has[2] = {static_cast<uint32_t>(rows), static_cast<uint32_t>(columns)};
  std::memcpy(message, tag, sizeof tag);
  std::memcpy(message + sizeof tag, has, sizeof has);
}

void check_bytes(std::span<const uint8_t> message, size_t expected) {
  if (message.size() == expected) return;
  throw std::invalid_argument("the message has " + text(message.size()) + " bytes, its header and mask say " +
                              text(expected));
}

// Where each row's values begin among those that are not zero, from masks that are as they must be.
std::vector<size_t> read_masks(std::span<const uint8_t> message, const Form& form) {
  if (message.size() < form.sparse_values_at()) check_bytes(message, form.sparse_values_at());
  std::vector<size_t> before(form.rows + 1);
  const size_t bytes = form.mask_bytes();
  const int padding = form.columns % 8 == 0 ? 0 : 0xff << form.columns % 8 & 0xff;  // bits of the last byte
  for (size_t r = 0; r < form.rows; ++r) {
    const uint8_t* mask = message.data() + form.masks_at() + r * bytes;
    if (bytes > 0 && (mask[bytes - 1] & padding) != 0) {
      throw std::invalid_argument("the message's mask of row " + text(r) + " goes on after its " + text(form.columns) +
                                  " columns");
    }
    before[r + 1] = before[r] + count_bits(mask, bytes);
  }
  check_bytes(message, form.sparse_bytes(before[form.rows]));
  if (message.size() >= form.dense_bytes()) {
    throw std::invalid_argument("the message leaves zeros out, but is not shorter for it: " + text(message.size()) +
                                " bytes, " + text(form.dense_bytes()) + " with them");
  }
  return before;
}

}  // namespace

WireFormat wire_format(std::string_view name) {
  if (name == "float32") return WireFormat::float32;
  if (name == "bf16") return WireFormat::bf16;
  if (name == "int8") return WireFormat::int8;
  throw std::invalid_argument("there is no wire format '" + std::string(name) + "': float32, bf16 or int8");
}

size_t wire_size(size_t rows, size_t columns, WireFormat format) {
  check_range("rows", rows, 0, most);
  check_range("columns", columns, 0, most);
  return with(format, [&](auto f) { return form_of(f, rows, columns).dense_bytes(); });
}

WirePlan wire_plan(const Columns<const float>& x, WireFormat format) {
  check_columns(x);
  WirePlan plan{format, true, 0, std::vector<size_t>(x.rows + 1)};
  with(format, [&](auto f) {
    over_rows(x, [&](size_t begin, size_t end) {
      Row<decltype(f)> row(x.count);
      for (size_t r = begin; r < end; ++r) {
        row.encode(x, r);
        plan.before[r + 1] = row.count_nonzero();
      }
    });
    for (size_t r = 0; r < x.rows; ++r) plan.before[r + 1] += plan.before[r];
    const Form form = form_of(f, x.rows, x.count);
    plan.dense = form.dense_bytes() <= form.sparse_bytes(plan.before[x.rows]);
    plan.bytes = plan.dense ? form.dense_bytes() : form.sparse_bytes(plan.before[x.rows]);
  });
  return plan;
}

void wire_write(const Columns<const float>& x, const WirePlan& plan, std::span<uint8_t> message) {
  check_range("message bytes", message.size(), plan.bytes, plan.bytes);
  write_header(plan, x.rows, x.count, message.data());
  with(plan.format, [&](auto f) {
    const Form form = form_of(f, x.rows, x.count);
    over_rows(x, [&](size_t begin, size_t end) {
      Row<decltype(f)> row(x.count);
      for (size_t r = begin; r < end; ++r) {
        const float scale = row.encode(x, r);
        std::memcpy(message.data() + header_bytes + r * form.scale_bytes, &scale, form.scale_bytes);
        uint8_t* const body = message.data() + form.masks_at();
        if (plan.dense) {
          std::memcpy(body + r * x.count * form.value_bytes, row.values.data(), x.count * form.value_bytes);
        } else {
          row.write_nonzero(form.mask_bytes(), body + r * form.mask_bytes(),
                            message.data() + form.sparse_bytes(plan.before[r]));
        }
      }
    });
  });
}

void wire_decode(std::span<const uint8_t> message, const Columns<float>& out, bool add) {
  check_columns(out);
  const Header header = read_header(message, out.rows, out.count);
  with(header.format, [&](auto f) {
    const Form form = form_of(f, out.rows, out.count);
    std::vector<size_t> before;
    if (header.dense) {
      check_bytes(message, form.dense_bytes());
    } else {
      before = read_masks(message, form);
    }
    over_rows(out, [&](size_t begin, size_t end) {
      Row<decltype(f)> row(out.count);
      for (size_t r = begin; r < end; ++r) {
        float scale = 1;
        std::memcpy(&scale, message.data() + header_bytes + r * form.scale_bytes, form.scale_bytes);
        const uint8_t* const body = message.data() + form.masks_at();
        if (header.dense) {
          std::memcpy(row.values.data(), body + r * out.count * form.value_bytes, out.count * form.value_bytes);
        } else {
          row.read_nonzero(form.mask_bytes(), body + r * form.mask_bytes(),
                           message.data() + form.sparse_bytes(before[r]));
        }
        row.decode(out, r, scale, add);
      }
    });
  });
}

}  // namespace dslide
