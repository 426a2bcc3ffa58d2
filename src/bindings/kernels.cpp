// The kernels of every instruction-set level, for tests and benchmarks.
#include "kernels/kernels.hpp"
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include "bindings.hpp"

namespace dslide {
namespace {
// The length of some vectors, which must be equal.
template <class First, class... Others> size_t length(const First& first, const Others&... others) {
  require((has_shape(others, first.shape(0)) && ...), "arrays of different lengths");
  return first.shape(0);
}

const Bf16Pair* pairs(const uint32_t* bits) { return reinterpret_cast<const Bf16Pair*>(bits); }
Bf16Pair* pairs(uint32_t* bits) { return reinterpret_cast<Bf16Pair*>(bits); }

// A matrix product of the kernels; a_data and b_data are the elements of a and b.
template <class Product, class Array, class Number>
void multiply(const Product& product, const Array& a, const Number* a_data, bool transposed, const Array& b,
              const Number* b_data, const Out<float, 2>& c, size_t n, bool accumulate) {
  const size_t rows = a.shape(transposed), inner = a.shape(!transposed);
  require(inner == b.shape(0) && rows == c.shape(0), "arrays of different lengths");
  require(n <= b.shape(1) && n <= c.shape(1), "n is more than there are columns");
  product(rows, n, inner, a_data, transposed ? 1 : a.shape(1), transposed ? a.shape(1) : 1, b_data, b.shape(1),
          c.data(), c.shape(1), accumulate, nullptr);
}

void bind_linear_algebra(nb::class_<Kernels>& c) {
  const auto product_args = args("a"_a, "transposed"_a, "b"_a, "c"_a, "n"_a, "accumulate"_a);
  define_held(c, "gemm", product_args,
              [](const Kernels& k, In<float, 2> a, bool transposed, In<float, 2> b, Out<float, 2> out, size_t n,
                 bool accumulate) { multiply(k.gemm, a, a.data(), transposed, b, b.data(), out, n, accumulate); });
  define_held(c, "gemm_pairs", std::tuple_cat(product_args, args("As gemm, for bf16 pairs in uint32.")),
              [](const Kernels& k, In<uint32_t, 2> a, bool transposed, In<uint32_t, 2> b, Out<float, 2> out, size_t n,
                 bool accumulate) {
    multiply(k.gemm_pairs, a, pairs(a.data()), transposed, b, pairs(b.data()), out, n, accumulate);
  });
  define_held(c, "dot_pairs", args(), [](const Kernels& k, In<uint32_t, 1> a, In<uint32_t, 1> b) {
    return k.dot_pairs(pairs(a.data()), pairs(b.data()), length(a, b));
  });
  define_held(c, "pair_up", args("low"_a, "high"_a, "out"_a),
              [](const Kernels& k, In<float, 1> low, In<float, 1> high, Out<uint32_t, 1> out) {
    k.pair_up(low.data(), high.data(), length(low, high, out), pairs(out.data()));
  });
  define_held(c, "pair_neighbours", args("x"_a, "out"_a), [](const Kernels& k, In<float, 1> x, Out<uint32_t, 1> out) {
    require(has_shape(out, (x.shape(0) + 1) / 2), "arrays of different lengths");
    k.pair_neighbours(x.data(), x.shape(0), pairs(out.data()));
  });
  define_held(c, "pack", args("rows"_a, "out"_a, "width"_a),
              [](const Kernels& k, In<float, 2> rows, Out<float, 2> out, size_t width) {
    const size_t n = rows.shape(1);
    require(n % 4 == 0 && width % 4 == 0 && rows.shape(0) <= width && width <= out.shape(1) && n == out.shape(0),
            "pack: shapes don't fit");
    std::vector<const float*> at;
    for (size_t i = 0; i < rows.shape(0); ++i) at.push_back(rows.data() + i * n);
    k.pack(at.data(), at.size(), width, n, out.data(), out.shape(1));
  });
  define_held(c, "dot", args(),
              [](const Kernels& k, In<float, 1> a, In<float, 1> b) { return k.dot(a.data(), b.data(), length(a, b)); });
  define_held(c, "dot_int8", args(), [](const Kernels& k, In<float, 1> a, In<int8_t, 1> b) {
    return k.dot_int8(a.data(), b.data(), length(a, b));
  });
  define_held(c, "widen_int8", args("from_"_a, "scale"_a, "to"_a),
              [](const Kernels& k, In<int8_t, 1> from, float scale, Out<float, 1> to) {
    k.widen_int8(from.data(), scale, to.data(), length(from, to));
  });
  define_held(c, "axpy", args("a"_a, "x"_a, "y"_a), [](const Kernels& k, float a, In<float, 1> x, Out<float, 1> y) {
    k.axpy(a, x.data(), y.data(), length(x, y));
  });
  define_held(c, "weighted_sum", args("out"_a, "ids"_a, "values"_a, "base"_a),
              [](const Kernels& k, Out<float, 1> out, In<int32_t, 1> ids, In<float, 1> values, InStored<2> base) {
    const size_t n = out.shape(0), count = values.shape(0), known = ids.shape(0), stride = base.shape(1);
    require(n <= stride, "out is longer than the rows");
    require(count <= known, "fewer ids than values");
    for (size_t i = 0; i < known; ++i) {
      require(ids(i) >= 0 && static_cast<size_t>(ids(i)) < base.shape(0), "no such row");
    }
    const StoredArray rows = stored(base);
    if (rows.is_bf16) {
      k.weighted_sum_bf16(out.data(), n, ids.data(), values.data(), count, known, rows.as_bf16(), stride);
    } else {
      k.weighted_sum(out.data(), n, ids.data(), values.data(), count, known, rows.as_float(), stride);
    }
  });
  define_held(c, "widen", args("from_"_a, "to"_a), [](const Kernels& k, In<uint16_t, 1> from, Out<float, 1> to) {
    k.widen(reinterpret_cast<const Bf16*>(from.data()), to.data(), length(from, to));
  });
  define_held(c, "column_sums", args("z"_a, "sums"_a), [](const Kernels& k, In<float, 2> z, Out<float, 1> sums) {
    require(sums.shape(0) <= z.shape(1), "more sums than columns");
    k.column_sums(z.shape(0), sums.shape(0), z.data(), z.shape(1), sums.data());
  });
  define_held(c, "multiply_add", args("rounds"_a, "factor"_a, "addend"_a, "sums"_a),
              [](const Kernels& k, size_t rounds, float factor, float addend, Out<float, 1> sums) {
    require(has_shape(sums, CHAINS * k.lanes), "arrays of different lengths");
    k.multiply_add(rounds, factor, addend, sums.data());
  });
}

void bind_simhash(nb::class_<Kernels>& c) {
  define_held(c, "signed_sums", args("x"_a, "tiles"_a), [](const Kernels& k, In<float, 3> x, Out<float, 3> tiles) {
    const size_t groups = length(x, tiles);
    require(has_shape(x, groups, 4, 8) && has_shape(tiles, groups, 16, 8),
            "x must be (groups, 4, 8), tiles (groups, 16, 8)");
    k.signed_sums(x.data(), groups, tiles.data());
  });
  define_held(c, "positive_bits", args("tiles"_a, "words"_a),
              [](const Kernels& k, In<float, 2> tiles, Out<uint64_t, 1> words) {
    require(tiles.shape(0) <= 64 && tiles.shape(1) == 8 && has_shape(words, 8),
            "tiles must be (at most 64, 8), words (8)");
    k.positive_bits(tiles.data(), tiles.shape(0), words.data());
  });
  define_held(c, "add_choices", args("tiles"_a, "choices"_a, "sums"_a),
              [](const Kernels& k, In<float, 3> tiles, In<uint8_t, 2> choices, Out<float, 2> sums) {
    const size_t tables = length(tiles, choices);
    require(has_shape(tiles, tables, 16, 8) && has_shape(choices, tables, 8) && has_shape(sums, 8, 8),
            "tiles must be (tables, 16, 8), choices (tables, 8), sums (8, 8)");
    for (size_t i = 0; i < choices.size(); ++i) {
      require(choices.data()[i] <= 60 && choices.data()[i] % 4 == 0, "no such tile");
    }
    k.add_choices(tiles.data(), choices.data(), tables, sums.data());
  });
}

void bind_losses(nb::class_<Kernels>& c) {
  define_held(c, "shifted_max", args(), [](const Kernels& k, In<float, 1> z, In<float, 1> shift) {
    return k.shifted_max(z.data(), shift.data(), length(z, shift));
  });
  define_held(c, "softmax_stats", args("z"_a, "shift"_a, "reference"_a, "sum"_a),
              [](const Kernels& k, In<float, 2> z, In<float, 1> shift, Out<float, 1> reference, Out<float, 1> sum) {
    const size_t rows = length(z, reference, sum), n = shift.shape(0);
    require(has_shape(z, rows, n), "arrays of different lengths");
    k.softmax_stats(rows, n, z.data(), n, shift.data(), reference.data(), sum.data());
  });
  define_held(
      c, "softmax_gradient", args("z"_a, "shift"_a, "log_norm"_a, "scale"_a, "dz"_a),
      [](const Kernels& k, In<float, 2> z, In<float, 1> shift, In<float, 1> log_norm, float scale, Out<float, 2> dz) {
    const size_t rows = length(z, log_norm), n = shift.shape(0);
    require(has_shape(z, rows, n) && has_shape(dz, rows, n), "arrays of different lengths");
    k.softmax_gradient(rows, n, z.data(), n, shift.data(), log_norm.data(), scale, dz.data(), n);
  });
  define_held(c, "exponentials", args("z"_a, "shift"_a, "reference"_a, "sum"_a),
              [](const Kernels& k, Out<float, 2> z, In<float, 1> shift, Out<float, 1> reference, Out<float, 1> sum) {
    const size_t rows = length(z, shift), n = length(sum, reference);
    require(n <= z.shape(1), "more sums than columns");
    return k.exponentials(rows, n, z.data(), z.shape(1), shift.data(), reference.data(), sum.data());
  });
  define_held(c, "sigmoid_gradient", args("z"_a, "shift"_a, "weight"_a, "scale"_a),
              [](const Kernels& k, Out<float, 1> z, In<float, 1> shift, In<float, 1> weight, float scale) {
    return k.sigmoid_gradient(z.data(), shift.data(), weight.data(), length(z, shift, weight), scale);
  });
}

void bind_optimizers(nb::class_<Kernels>& c) {
  define_held(c, "adam",
              args("w"_a, "m"_a, "v"_a, "g"_a, "rate"_a, "beta1"_a, "beta2"_a, "epsilon"_a, "correct1"_a, "correct2"_a,
                   "keep"_a, "seed"_a = 0),
              [](const Kernels& k, OutStored<1> w, OutStored<1> mean, OutStored<1> square, In<float, 1> g, float rate,
                 float beta1, float beta2, float epsilon, float correct1, float correct2, float keep, uint32_t seed) {
    const size_t n = length(w, mean, square, g);
    require(mean.dtype() == square.dtype(), "moments must be stored alike");
    k.adam(stored(w), stored(mean), stored(square), g.data(), n,
           {rate, beta1, beta2, epsilon, correct1, correct2, keep}, seed);
  });
  define_held(
      c, "adagrad", args("w"_a, "v"_a, "g"_a, "rate"_a, "epsilon"_a, "keep"_a, "seed"_a = 0),
      [](const Kernels& k, OutStored<1> w, OutStored<1> v, In<float, 1> g, float rate, float epsilon, float keep,
         uint32_t seed) { k.adagrad(stored(w), stored(v), g.data(), length(w, v, g), rate, epsilon, keep, seed); });
  define_held(c, "sgd", args("w"_a, "g"_a, "rate"_a, "keep"_a, "seed"_a = 0),
              [](const Kernels& k, OutStored<1> w, In<float, 1> g, float rate, float keep, uint32_t seed) {
    k.sgd(stored(w), g.data(), length(w, g), rate, keep, seed);
  });
}
}  // namespace

void bind_kernels(nb::module_& m) {
  m.def("isa", [] { return std::string(kernels().name); }, "Name of the kernel set in use.");
  m.def("isa_levels", &kernel_levels, "Names of the kernel sets this CPU supports, best last.");
  nb::class_<Kernels> c(m, "Kernels",
                        "One set of kernels, by name. Arrays are float32, or uint16 for bf16 where supported.");
  c.def("__init__", [](Kernels* k, const std::string& name) { new (k) Kernels(kernels(name)); }, "name"_a);
  c.def_prop_ro("name", [](const Kernels& k) { return std::string(k.name); });
  c.def_ro("lanes", &Kernels::lanes, "Floats per vector.");
  c.def_prop_ro("chains", [](const Kernels&) { return CHAINS; }, "Vectors that `multiply_add` works on.");
  bind_linear_algebra(c);
  bind_simhash(c);
  bind_losses(c);
  bind_optimizers(c);
}
}  // namespace dslide
