// Each file binds one part of the core to Python: it checks arguments, releases the GIL and calls the core. No logic.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <memory>
#include <tuple>
#include <utility>
#include "runtime/bf16.hpp"
#include "runtime/checks.hpp"

namespace nb = nanobind;

namespace dslide {
using namespace nb::literals;

// Arrays that are not converted: they are written to, or referenced after the call.
template <class... Properties> struct Exact : nb::ndarray<Properties...> {};

// C-contiguous arrays in CPU memory: `In` read-only, `Kept` read-only and referenced after the call, `Out` written to.
template <class T, int N> using In = nb::ndarray<const T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;
template <class T, int N> using Kept = Exact<const T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;
template <class T, int N> using Out = Exact<T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;

// The same for arrays stored as float32 or bf16; numpy has no bf16, so its type is uint16.
template <int N> using InStored = nb::ndarray<nb::ro, nb::ndim<N>, nb::c_contig, nb::device::cpu>;
template <int N> using OutStored = Exact<nb::ndim<N>, nb::c_contig, nb::device::cpu>;

// The same for rows that need not be adjacent.
using KeptStoredRows = Exact<nb::ro, nb::ndim<2>, nb::device::cpu>;
using OutStoredRows = Exact<nb::ndim<2>, nb::device::cpu>;

template <class Array, class... Sizes> bool has_shape(const Array& array, Sizes... sizes) {
  size_t axis = 0;
  return ((array.shape(axis++) == static_cast<size_t>(sizes)) && ...);
}

// Distance from one row to the next, in numbers.
template <class Array> size_t pitch(const Array& rows) {
  const int64_t columns = rows.shape(1);
  require(!rows.size() || ((columns < 2 || rows.stride(1) == 1) && (rows.shape(0) < 2 || rows.stride(0) >= columns)),
          "the numbers of a row must lie side by side");
  return rows.shape(0) > 1 ? rows.stride(0) : columns;
}

// A view of such an array; null if it is empty.
template <class Array> StoredArray stored(const Array& array) {
  const bool is_bf16 = array.dtype() == nb::dtype<uint16_t>();
  require(is_bf16 || array.dtype() == nb::dtype<float>(), "expected numbers of float32, or of uint16 as bf16");
  return {array.size() ? const_cast<void*>(static_cast<const void*>(array.data())) : nullptr, is_bf16};
}

// A numpy array that owns `data`.
template <class T> nb::ndarray<nb::numpy, T> owned(std::unique_ptr<T[]> data, std::initializer_list<size_t> shape) {
  T* p = data.release();
  return {p, shape, nb::capsule(p, [](void* q) noexcept { delete[] static_cast<T*>(q); })};
}

// A numpy array that owns the vector.
template <class Vector> nb::ndarray<nb::numpy, typename Vector::value_type> owned(Vector&& values) {
  auto* kept = new Vector(std::move(values));
  nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<Vector*>(p); });
  return {kept->data(), {kept->size()}, owner};
}

// Calls fn() without the GIL.
template <class Fn> auto released(const Fn& fn) {
  nb::gil_scoped_release release;
  return fn();
}

// Arguments of `define`: nb::arg and other annotations of nanobind.
template <class... Args> std::tuple<Args...> args(Args... all) { return {std::move(all)...}; }

// Adds a function, which holds the GIL, to a module or class. It is the last argument, where it is easiest to read.
template <class Scope, class... Args, class Fn>
void define_held(Scope& scope, const char* name, const std::tuple<Args...>& all, const Fn& fn) {
  std::apply([&](const Args&... each) { scope.def(name, fn, each...); }, all);
}

// The same for a function that runs without the GIL.
template <class Scope, class Args, class Fn>
void define(Scope& scope, const char* name, const Args& all, const Fn& fn) {
  define_held(scope, name, std::tuple_cat(all, args(nb::call_guard<nb::gil_scoped_release>())), fn);
}

void bind_hashing(nb::module_& m);
void bind_data(nb::module_& m);
void bind_machine(nb::module_& m);
void bind_kernels(nb::module_& m);
void bind_active(nb::module_& m);
void bind_layers(nb::module_& m);
void bind_label_prior(nb::module_& m);
void bind_candidates(nb::module_& m);
void bind_neighbours(nb::module_& m);
void bind_wire(nb::module_& m);
}  // namespace dslide

template <class... Properties> struct nb::detail::type_caster<dslide::Exact<Properties...>> {
  using Array = make_caster<ndarray<Properties...>>;
  NB_TYPE_CASTER(dslide::Exact<Properties...>, Array::Name)
  bool from_python(handle source, uint32_t flags, cleanup_list* cleanup) noexcept {
    Array array;
    if (!array.from_python(source, flags & ~uint32_t{cast_flags::convert}, cleanup)) return false;
    static_cast<ndarray<Properties...>&>(value) = std::move(array.value);
    return true;
  }
};
