// Each file here binds one part of the core to Python: arguments are checked for type and shape, the GIL is released,
// the core is called. No logic.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <memory>
#include <stdexcept>

#include "runtime/bf16.hpp"

namespace nb = nanobind;

namespace dslide {

// C-contiguous arrays in CPU memory. `In` is read only, `Out` is written to.
template <class T, int N>
using In = nb::ndarray<const T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;
template <class T, int N>
using Out = nb::ndarray<T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;

// The same for numbers that are stored as float32 or as bf16, which numpy hasn't: uint16 stands for it.
template <int N>
using InStored = nb::ndarray<nb::ro, nb::ndim<N>, nb::c_contig, nb::device::cpu>;
template <int N>
using OutStored = nb::ndarray<nb::ndim<N>, nb::c_contig, nb::device::cpu>;

// The same for rows of numbers that may be apart.
using InStoredRows = nb::ndarray<nb::ro, nb::ndim<2>, nb::device::cpu>;
using OutStoredRows = nb::ndarray<nb::ndim<2>, nb::device::cpu>;

// Numbers from one row to the next.
template <class Array>
size_t pitch(const Array& rows) {
  const auto columns = static_cast<int64_t>(rows.shape(1));
  if (rows.size() && ((columns > 1 && rows.stride(1) != 1) || (rows.shape(0) > 1 && rows.stride(0) < columns))) {
    throw std::invalid_argument("the numbers of a row must lie side by side");
  }
  return rows.shape(0) > 1 ? static_cast<size_t>(rows.stride(0)) : rows.shape(1);
}

// What is in such an array; null if it is empty.
template <class Array>
Numbers numbers(const Array& array) {
  const bool is_half = array.dtype() == nb::dtype<uint16_t>();
  if (!is_half && array.dtype() != nb::dtype<float>()) {
    throw std::invalid_argument("expected numbers of float32, or of uint16 as bf16");
  }
  return {array.size() ? const_cast<void*>(static_cast<const void*>(array.data())) : nullptr, is_half};
}

// A numpy array that owns `data`.
template <class T>
nb::ndarray<nb::numpy, T> owned(std::unique_ptr<T[]> data, std::initializer_list<size_t> shape) {
  T* p = data.release();
  nb::capsule owner(p, [](void* q) noexcept { delete[] static_cast<T*>(q); });
  return nb::ndarray<nb::numpy, T>(p, shape, owner);
}

void bind_hashing(nb::module_& m);
void bind_data(nb::module_& m);
void bind_machine(nb::module_& m);
void bind_kernels(nb::module_& m);
void bind_active(nb::module_& m);
void bind_layers(nb::module_& m);
void bind_links(nb::module_& m);
void bind_wire(nb::module_& m);

}  // namespace dslide
