// The kernels of every instruction-set level, for tests and benchmarks.
#include "kernels/kernels.hpp"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>

#include "bindings.hpp"

namespace dslide {
namespace {

void same_size(size_t a, size_t b) {
  if (a != b) throw std::invalid_argument("arrays of different lengths");
}

const Bf16Pair* pairs(const uint32_t* bits) { return reinterpret_cast<const Bf16Pair*>(bits); }
Bf16Pair* pairs(uint32_t* bits) { return reinterpret_cast<Bf16Pair*>(bits); }

// A matrix product of the kernels; a_data and b_data are the elements of a and b.
template <class Product, class Array, class Number>
void multiply(const Product& product, const Array& a, const Number* a_data, bool transposed, const Array& b,
              const Number* b_data, const Out<float, 2>& c, size_t n, bool accumulate) {
  const size_t rows = transposed ? a.shape(1) : a.shape(0), inner = transposed ? a.shape(0) : a.shape(1);
  same_size(inner, b.shape(0));
  same_size(rows, c.shape(0));
  if (n > b.shape(1) || n > c.shape(1)) throw std::invalid_argument("n is more than there are columns");
  product(rows, n, inner, a_data, transposed ? 1 : a.shape(1), transposed ? a.shape(1) : 1, b_data, b.shape(1),
          c.data(), c.shape(1), accumulate, nullptr);
}

}  // namespace

void bind_kernels(nb::module_& m) {
  m.def("isa", [] { return std::string(kernels().name); }, "Name of the kernel set in use.");
  m.def("isa_levels", &kernel_levels, "Names of the kernel sets this CPU supports, best last.");

  nb::class_<Kernels>(m, "Kernels",
                      "One set of kernels, by name. Arrays are float32, or uint16 for bf16 where supported.")
      .def(
          "__init__", [](Kernels* k, const std::string& name) { new (k) Kernels(kernels(name)); }, nb::arg("name"))
      .def_prop_ro("name", [](const Kernels& k) { return std::string(k.name); })
      .def_ro("lanes", &Kernels::lanes, "Floats per vector.")
      .def(
          "gemm",
          [](const Kernels& k, In<float, 2> a, bool transposed, In<float, 2> b, Out<float, 2> c, size_t n,
             bool accumulate) { multiply(k.gemm, a, a.data(), transposed, b, b.data(), c, n, accumulate); },
          nb::arg("a"), nb::arg("transposed"), nb::arg("b"), nb::arg("c").noconvert(), nb::arg("n"),
          nb::arg("accumulate"))
      .def(
          "gemm_pairs",
          [](const Kernels& k, In<uint32_t, 2> a, bool transposed, In<uint32_t, 2> b, Out<float, 2> c, size_t n,
             bool accumulate) {
            multiply(k.gemm_pairs, a, pairs(a.data()), transposed, b, pairs(b.data()), c, n, accumulate);
          },
          nb::arg("a"), nb::arg("transposed"), nb::arg("b"), nb::arg("c").noconvert(), nb::arg("n"),
          nb::arg("accumulate"), "As gemm, for bf16 pairs in uint32.")
      .def("dot_pairs",
           [](const Kernels& k, In<uint32_t, 1> a, In<uint32_t, 1> b) {
             same_size(a.shape(0), b.shape(0));
             return k.dot_pairs(pairs(a.data()), pairs(b.data()), a.shape(0));
           })
      .def(
          "pair_up",
          [](const Kernels& k, In<float, 1> low, In<float, 1> high, Out<uint32_t, 1> out) {
            same_size(low.shape(0), high.shape(0));
            same_size(low.shape(0), out.shape(0));
            k.pair_up(low.data(), high.data(), low.shape(0), pairs(out.data()));
          },
          nb::arg("low"), nb::arg("high"), nb::arg("out").noconvert())
      .def(
          "pair_neighbours",
          [](const Kernels& k, In<float, 1> x, Out<uint32_t, 1> out) {
            same_size((x.shape(0) + 1) / 2, out.shape(0));
            k.pair_neighbours(x.data(), x.shape(0), pairs(out.data()));
          },
          nb::arg("x"), nb::arg("out").noconvert())
      .def(
          "pack",
          [](const Kernels& k, In<float, 2> rows, Out<float, 2> out, size_t width) {
            const size_t n = rows.shape(1);
            if (n % 4 || width % 4 || rows.shape(0) > width || width > out.shape(1) || n != out.shape(0)) {
              throw std::invalid_argument("pack: shapes don't fit");
            }
            std::vector<const float*> at;
            for (size_t i = 0; i < rows.shape(0); ++i) at.push_back(rows.data() + i * n);
            k.pack(at.data(), at.size(), width, n, out.data(), out.shape(1));
          },
          nb::arg("rows"), nb::arg("out").noconvert(), nb::arg("width"))
      .def("dot",
           [](const Kernels& k, In<float, 1> a, In<float, 1> b) {
             same_size(a.shape(0), b.shape(0));
             return k.dot(a.data(), b.data(), a.shape(0));
           })
      .def(
          "axpy",
          [](const Kernels& k, float a, In<float, 1> x, Out<float, 1> y) {
            same_size(x.shape(0), y.shape(0));
            k.axpy(a, x.data(), y.data(), x.shape(0));
          },
          nb::arg("a"), nb::arg("x"), nb::arg("y").noconvert())
      .def(
          "weighted_sum",
          [](const Kernels& k, Out<float, 1> out, In<int32_t, 1> ids, In<float, 1> values, InStored<2> base) {
            same_size(ids.shape(0), values.shape(0));
            if (out.shape(0) > base.shape(1)) throw std::invalid_argument("out is longer than the rows");
            for (size_t i = 0; i < ids.shape(0); ++i) {
              if (ids(i) < 0 || static_cast<size_t>(ids(i)) >= base.shape(0))
                throw std::invalid_argument("no such row");
            }
            const StoredArray rows = stored(base);
            if (rows.is_bf16) {
              k.weighted_sum_bf16(out.data(), out.shape(0), ids.data(), values.data(), ids.shape(0), rows.as_bf16(),
                                  base.shape(1));
            } else {
              k.weighted_sum(out.data(), out.shape(0), ids.data(), values.data(), ids.shape(0), rows.as_float(),
                             base.shape(1));
            }
          },
          nb::arg("out").noconvert(), nb::arg("ids"), nb::arg("values"), nb::arg("base"))
      .def(
          "widen",
          [](const Kernels& k, In<uint16_t, 1> from, Out<float, 1> to) {
            same_size(from.shape(0), to.shape(0));
            k.widen(reinterpret_cast<const Bf16*>(from.data()), to.data(), to.shape(0));
          },
          nb::arg("from_"), nb::arg("to").noconvert())
      .def("shifted_max",
           [](const Kernels& k, In<float, 1> z, In<float, 1> shift) {
             same_size(z.shape(0), shift.shape(0));
             return k.shifted_max(z.data(), shift.data(), z.shape(0));
           })
      .def(
          "signed_sums",
          [](const Kernels& k, In<float, 3> x, Out<float, 3> tiles) {
            same_size(x.shape(0), tiles.shape(0));
            if (x.shape(1) != 4 || x.shape(2) != 8 || tiles.shape(1) != 16 || tiles.shape(2) != 8) {
              throw std::invalid_argument("x must be (groups, 4, 8), tiles (groups, 16, 8)");
            }
            k.signed_sums(x.data(), x.shape(0), tiles.data());
          },
          nb::arg("x"), nb::arg("tiles").noconvert())
      .def(
          "positive_bits",
          [](const Kernels& k, In<float, 2> tiles, Out<uint64_t, 1> words) {
            if (tiles.shape(0) > 64 || tiles.shape(1) != 8 || words.shape(0) != 8) {
              throw std::invalid_argument("tiles must be (at most 64, 8), words (8)");
            }
            k.positive_bits(tiles.data(), tiles.shape(0), words.data());
          },
          nb::arg("tiles"), nb::arg("words").noconvert())
      .def(
          "add_choices",
          [](const Kernels& k, In<float, 3> tiles, In<uint8_t, 2> choices, Out<float, 2> sums) {
            same_size(tiles.shape(0), choices.shape(0));
            if (tiles.shape(1) != 16 || tiles.shape(2) != 8 || choices.shape(1) != 8 || sums.shape(0) != 8 ||
                sums.shape(1) != 8) {
              throw std::invalid_argument("tiles must be (tables, 16, 8), choices (tables, 8), sums (8, 8)");
            }
            for (size_t i = 0; i < choices.size(); ++i) {
              if (choices.data()[i] > 60 || choices.data()[i] % 4) throw std::invalid_argument("no such tile");
            }
            k.add_choices(tiles.data(), choices.data(), tiles.shape(0), sums.data());
          },
          nb::arg("tiles"), nb::arg("choices"), nb::arg("sums").noconvert())
      .def(
          "softmax_stats",
          [](const Kernels& k, In<float, 2> z, In<float, 1> shift, Out<float, 1> reference, Out<float, 1> sum) {
            same_size(z.shape(1), shift.shape(0));
            same_size(z.shape(0), reference.shape(0));
            same_size(z.shape(0), sum.shape(0));
            k.softmax_stats(z.shape(0), z.shape(1), z.data(), z.shape(1), shift.data(), reference.data(), sum.data());
          },
          nb::arg("z"), nb::arg("shift"), nb::arg("reference").noconvert(), nb::arg("sum").noconvert())
      .def(
          "softmax_gradient",
          [](const Kernels& k, In<float, 2> z, In<float, 1> shift, In<float, 1> log_norm, float scale,
             Out<float, 2> dz) {
            same_size(z.shape(1), shift.shape(0));
            same_size(z.shape(0), log_norm.shape(0));
            same_size(z.shape(0), dz.shape(0));
            same_size(z.shape(1), dz.shape(1));
            k.softmax_gradient(z.shape(0), z.shape(1), z.data(), z.shape(1), shift.data(), log_norm.data(), scale,
                               dz.data(), dz.shape(1));
          },
          nb::arg("z"), nb::arg("shift"), nb::arg("log_norm"), nb::arg("scale"), nb::arg("dz").noconvert())
      .def(
          "exponentials",
          [](const Kernels& k, Out<float, 2> z, In<float, 1> shift, Out<float, 1> reference, Out<float, 1> sum) {
            same_size(z.shape(0), shift.shape(0));
            same_size(sum.shape(0), reference.shape(0));
            if (sum.shape(0) > z.shape(1)) throw std::invalid_argument("more sums than columns");
            return k.exponentials(z.shape(0), sum.shape(0), z.data(), z.shape(1), shift.data(), reference.data(),
                                  sum.data());
          },
          nb::arg("z").noconvert(), nb::arg("shift"), nb::arg("reference").noconvert(), nb::arg("sum").noconvert())
      .def(
          "column_sums",
          [](const Kernels& k, In<float, 2> z, Out<float, 1> sums) {
            if (sums.shape(0) > z.shape(1)) throw std::invalid_argument("more sums than columns");
            k.column_sums(z.shape(0), sums.shape(0), z.data(), z.shape(1), sums.data());
          },
          nb::arg("z"), nb::arg("sums").noconvert())
      .def(
          "sigmoid_gradient",
          [](const Kernels& k, Out<float, 1> z, In<float, 1> shift, In<float, 1> weight, float scale) {
            same_size(z.shape(0), shift.shape(0));
            same_size(z.shape(0), weight.shape(0));
            return k.sigmoid_gradient(z.data(), shift.data(), weight.data(), z.shape(0), scale);
          },
          nb::arg("z").noconvert(), nb::arg("shift"), nb::arg("weight"), nb::arg("scale"))
      .def(
          "adam",
          [](const Kernels& k, OutStored<1> w, OutStored<1> mean, OutStored<1> square, In<float, 1> g, float rate,
             float beta1, float beta2, float epsilon, float correct1, float correct2, float keep, uint32_t seed) {
            same_size(w.shape(0), mean.shape(0));
            same_size(w.shape(0), square.shape(0));
            same_size(w.shape(0), g.shape(0));
            if (mean.dtype() != square.dtype()) throw std::invalid_argument("moments must be stored alike");
            k.adam(stored(w), stored(mean), stored(square), g.data(), w.shape(0),
                   {rate, beta1, beta2, epsilon, correct1, correct2, keep}, seed);
          },
          nb::arg("w").noconvert(), nb::arg("m").noconvert(), nb::arg("v").noconvert(), nb::arg("g"), nb::arg("rate"),
          nb::arg("beta1"), nb::arg("beta2"), nb::arg("epsilon"), nb::arg("correct1"), nb::arg("correct2"),
          nb::arg("keep"), nb::arg("seed") = 0)
      .def(
          "adagrad",
          [](const Kernels& k, OutStored<1> w, OutStored<1> v, In<float, 1> g, float rate, float epsilon, float keep,
             uint32_t seed) {
            same_size(w.shape(0), v.shape(0));
            same_size(w.shape(0), g.shape(0));
            k.adagrad(stored(w), stored(v), g.data(), w.shape(0), rate, epsilon, keep, seed);
          },
          nb::arg("w").noconvert(), nb::arg("v").noconvert(), nb::arg("g"), nb::arg("rate"), nb::arg("epsilon"),
          nb::arg("keep"), nb::arg("seed") = 0)
      .def(
          "sgd",
          [](const Kernels& k, OutStored<1> w, In<float, 1> g, float rate, float keep, uint32_t seed) {
            same_size(w.shape(0), g.shape(0));
            k.sgd(stored(w), g.data(), w.shape(0), rate, keep, seed);
          },
          nb::arg("w").noconvert(), nb::arg("g"), nb::arg("rate"), nb::arg("keep"), nb::arg("seed") = 0)
      .def(
          "multiply_add",
          [](const Kernels& k, size_t rounds, float factor, float addend, Out<float, 1> sums) {
            same_size(sums.shape(0), CHAINS * k.lanes);
            k.multiply_add(rounds, factor, addend, sums.data());
          },
          nb::arg("rounds"), nb::arg("factor"), nb::arg("addend"), nb::arg("sums").noconvert())
      .def_prop_ro("chains", [](const Kernels&) { return CHAINS; }, "Vectors that `multiply_add` works on.");
}

}  // namespace dslide
