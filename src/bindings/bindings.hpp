// Each file binds one part of the core to Python: it checks types and shapes of arguments, releases the GIL and calls
// the core. No logic.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <memory>
#include <stdexcept>
#include <utility>

#include "runtime/bf16.hpp"

namespace nb = nanobind;

namespace dslide {

// C-contiguous arrays in CPU memory. `In` is read-only, `Out` is written to.
template <class T, int N>
using In = nb::ndarray<const T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;
template <class T, int N>
using Out = nb::ndarray<T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;

// The same for arrays stored as float32 or bf16; numpy has no bf16, so its type is uint16.
template <int N>
using InStored = nb::ndarray<nb::ro, nb::ndim<N>, nb::c_contig, nb::device::cpu>;
template <int N>
using OutStored = nb::ndarray<nb::ndim<N>, nb::c_contig, nb::device::cpu>;

// The same for rows that need not be adjacent.
using InStoredRows = nb::ndarray<nb::ro, nb::ndim<2>, nb::device::cpu>;
using OutStoredRows = nb::ndarray<nb::ndim<2>, nb::device::cpu>;

// Distance from one row to the next, in numbers.
template <class Array>
size_t pitch(const Array& rows) {
  const auto columns = static_cast<int64_t>(rows.shape(1));
  if (rows.size() && ((columns > 1 && rows.stride(1) != 1) || (rows.shape(0) > 1 && rows.stride(0) < columns))) {
    throw std::invalid_argument("the numbers of a row must lie side by side");
  }
  return rows.shape(0) > 1 ? static_cast<size_t>(rows.stride(0)) : rows.shape(1);
}

// A view of such an array; null if it is empty.
template <class Array>
StoredArray stored(const Array& array) {
  const bool is_bf16 = array.dtype() == nb::dtype<uint16_t>();
  if (!is_bf16 && array.dtype() != nb::dtype<float>()) {
    throw std::invalid_argument("expected numbers of float32, or of uint16 as bf16");
  }
  return {array.size() ? const_cast<void*>(static_cast<const void*>(array.data())) : nullptr, is_bf16};
}

// A numpy array that owns `data`.
template <class T>
nb::ndarray<nb::numpy, T> owned(std::unique_ptr<T[]> data, std::initializer_list<size_t> shape) {
  T* p = data.release();
  nb::capsule owner(p, [](void* q) noexcept { delete[] static_cast<T*>(q); });
  return nb::ndarray<nb::numpy, T>(p, shape, owner);
}

// A numpy array that owns the vector.
template <class Vector>
nb::ndarray<nb::numpy, typename Vector::value_type> owned(Vector&& values) {
  auto* kept = new Vector(std::move(values));
  nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<Vector*>(p); });
  return {kept->data(), {kept->size()}, owner};
}

void bind_hashing(nb::module_& m);
void bind_data(nb::module_& m);
void bind_machine(nb::module_& m);
void bind_kernels(nb::module_& m);
void bind_active(nb::module_& m);
void bind_layers(nb::module_& m);
void bind_label_prior(nb::module_& m);
void bind_wire(nb::module_& m);

}  // namespace dslide
