/// Tensors of a framework as Engine.submit() takes them: the ordinary ones without a step of the
/// interpreter, as this is done for every tensor of every operation.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <optional>
#include <utility>

#include "bindings/exchange_table.h"
#include "bindings/interpreter.h"
#include "bindings/numbers.h"
#include "bindings/translation.h"

namespace farandole::bindings {

/// Knows a tensor by its class's exchange table, or by the methods of torch.Tensor. It takes those
/// of host memory that are contiguous, are what their memory says, and have an address and one of
/// some dtypes. What to do with all others is said elsewhere.
class HostDescriber {
 public:
  /// `codes`: dtype -> number in the core. `otherwise`: is called with the same arguments where
  /// this does not know. `classes`: tensors of just these need no question to Python if `exchange`
  /// is their table; those of a class derived from one may say something else of themselves.
  HostDescriber(nanobind::dict codes, nanobind::object otherwise, const nanobind::tuple& classes,
                nanobind::handle exchange)
      : codes_(std::move(codes)),
        otherwise_(std::move(otherwise)),
        classes_(classes),
        exchange_(exchange) {}

  /// `out`: as the caller said it; null: the tensor is its own result.
  nanobind::object describe(PyObject* tensor, PyObject* out) const {
    nanobind::object made =
        exchange_.knows() && is_exchanged(tensor) ? exchanged(tensor, out) : ordinary(tensor, out);
    if (made.is_valid()) return made;
    if (PyErr_Occurred() != nullptr) {
      if (!is_of_tensor()) throw nanobind::python_error();
      PyErr_Clear();  // the other way says what is wrong
    }
    return out == nullptr ? otherwise_(nanobind::handle(tensor))
                          : otherwise_(nanobind::handle(tensor), nanobind::handle(out));
  }

 private:
  bool is_exchanged(PyObject* tensor) const {
    const auto* const type = reinterpret_cast<PyObject*>(Py_TYPE(tensor));
    for (Py_ssize_t i = 0; i < length_of_tuple(classes_.ptr()); ++i) {
      if (item_of_tuple(classes_.ptr(), i) == type) return true;
    }
    return false;
  }

  /// As ordinary() does, by the table.
  nanobind::object exchanged(PyObject* tensor, PyObject* out) const {
    nanobind::dlpack::dltensor seen{};
    if (!exchange_.describe(tensor, seen)) return {};
    if (seen.device.device_type != nanobind::device::cpu::value || seen.data == nullptr) return {};
    const std::optional<DType> dtype = ordinary_dtype(seen.dtype);
    if (!dtype || seen.ndim > kMostDimensions) return {};
    // A copy: whatever makes an object, or asks the tensor, may run code that resizes it.
    std::array<std::int64_t, kMostDimensions> extents;
    std::int64_t elements = 1;
    for (std::int32_t d = seen.ndim; d-- > 0;) {
      const std::int64_t extent = seen.shape[d];
      if (extent != 1 && seen.strides[d] != elements) return {};
      elements *= extent;
      extents[static_cast<std::size_t>(d)] = extent;
    }
    // The table does not tell of the negative bit, see ordinary(). Types of less than a byte look
    // like those of one.
    const bool begins_with_one = seen.ndim == 0 || extents[0] == 1;
    if (begins_with_one && !says(tensor, is_neg_, Py_False)) return {};
    if ((*dtype == DType::UInt8 || *dtype == DType::Int8) && code_of(tensor) == nullptr) return {};
    const nanobind::object shape = nanobind::steal(PyTuple_New(seen.ndim));
    if (!shape.is_valid()) return {};
    for (std::int32_t d = 0; d < seen.ndim; ++d) {
      PyObject* const extent = PyLong_FromLongLong(extents[static_cast<std::size_t>(d)]);
      if (extent == nullptr || PyTuple_SetItem(shape.ptr(), d, extent) != 0) return {};
    }
    const nanobind::object address =
        nanobind::steal(PyLong_FromVoidPtr(static_cast<std::byte*>(seen.data) + seen.byte_offset));
    const nanobind::object code = nanobind::steal(PyLong_FromLong(static_cast<long>(*dtype)));
    if (!address.is_valid() || !code.is_valid()) return {};
    return described(address.ptr(), out, code.ptr(), shape.ptr());
  }

  static nanobind::object described(PyObject* address, PyObject* out, PyObject* code,
                                    PyObject* shape) {
    return nanobind::steal(
        PyTuple_Pack(4, address, out == nullptr || out == Py_None ? address : out, code, shape));
  }

  /// The tuple. Null: it is another tensor, or something has been raised.
  nanobind::object ordinary(PyObject* tensor, PyObject* out) const {
    const nanobind::object shape = nanobind::steal(PyObject_GetAttr(tensor, shape_.ptr()));
    if (!shape.is_valid() || PyTuple_Check(shape.ptr()) == 0) return {};
    const Py_ssize_t dimensions = length_of_tuple(shape.ptr());
    const bool begins_with_one = dimensions == 0 || is_one(item_of_tuple(shape.ptr(), 0));
    // In memory of a tensor with the negative bit lie the values with the other sign. It is the
    // imaginary part of a conjugate, and contiguous only if it has one element.
    if (begins_with_one && !says(tensor, is_neg_, Py_False)) return {};
    const bool one_element = begins_with_one && dimensions == 1;  // which is always contiguous
    if (!one_element && !says(tensor, is_contiguous_, Py_True)) return {};
    nanobind::object address = asked(tensor, data_ptr_);
    if (!address.is_valid() || PyObject_IsTrue(address.ptr()) != 1) return {};
    PyObject* const code = code_of(tensor);
    if (code == nullptr) return {};
    const nanobind::object on_host = nanobind::steal(PyObject_GetAttr(tensor, is_cpu_.ptr()));
    if (on_host.ptr() != Py_True) return {};
    return described(address.ptr(), out, code, shape.ptr());
  }

  /// By its dtype, as it says; borrowed. Null: it is another one, or something has been raised.
  PyObject* code_of(PyObject* tensor) const {
    const nanobind::object dtype = nanobind::steal(PyObject_GetAttr(tensor, dtype_.ptr()));
    return dtype.is_valid() ? PyDict_GetItemWithError(codes_.ptr(), dtype.ptr()) : nullptr;
  }

  /// What has been raised may mean that this is no such tensor. Anything else, such as what a
  /// handler of a signal raises, is for the caller.
  static bool is_of_tensor() {
    return PyErr_ExceptionMatches(PyExc_AttributeError) != 0 ||
           PyErr_ExceptionMatches(PyExc_KeyError) != 0 ||
           PyErr_ExceptionMatches(PyExc_RuntimeError) != 0;
  }
  static bool is_one(PyObject* extent) {
    if (PyLong_Check(extent) == 0) return false;
    const long number = PyLong_AsLong(extent);
    if (number == -1) PyErr_Clear();  // it may be larger than that
    return number == 1;
  }
  static nanobind::object asked(PyObject* tensor, const nanobind::object& method) {
    PyObject* const given[] = {tensor};
    return nanobind::steal(PyObject_VectorcallMethod(method.ptr(), given, 1, nullptr));
  }
  static bool says(PyObject* tensor, const nanobind::object& method, PyObject* answer) {
    return asked(tensor, method).ptr() == answer;
  }
  static nanobind::object word(const char* text) {
    return nanobind::steal(PyUnicode_InternFromString(text));
  }

  const nanobind::dict codes_;
  const nanobind::object otherwise_;
  const nanobind::tuple classes_;
  const ExchangeTable exchange_;
  const nanobind::object shape_ = word("shape");
  const nanobind::object is_neg_ = word("is_neg");
  const nanobind::object is_contiguous_ = word("is_contiguous");
  const nanobind::object data_ptr_ = word("data_ptr");
  const nanobind::object dtype_ = word("dtype");
  const nanobind::object is_cpu_ = word("is_cpu");
};

inline PyObject* describe_call(PyObject* self, PyObject* const* given, Py_ssize_t count) noexcept {
  return for_interpreter([&] {
    if (count < 1 || count > 2) throw nanobind::type_error("describe takes a tensor, and out");
    if (!nanobind::inst_ready(self))
      throw nanobind::type_error("describe: __init__ was not called");
    return nanobind::inst_ptr<HostDescriber>(self)->describe(given[0],
                                                             count > 1 ? given[1] : nullptr);
  });
}

inline void add_host_describer(nanobind::module_& module) {
  using namespace nanobind::literals;
  nanobind::class_<HostDescriber> added(
      module, "HostDescriber",
      "Describes ordinary tensors of PyTorch in host memory; `otherwise` is called with what it "
      "does not know. `codes`: dtype -> number. Tensors of just `classes` are described by "
      "`exchange`, the `__dlpack_c_exchange_api__` of these, if there is one.");
  added.def(
      nanobind::init<nanobind::dict, nanobind::object, const nanobind::tuple&, nanobind::handle>(),
      "codes"_a, "otherwise"_a, "classes"_a = nanobind::tuple(), "exchange"_a = nanobind::none(),
      nanobind::sig("def __init__(self, codes: dict[Any, int], otherwise: Callable[..., Any], "
                    "classes: tuple[type, ...] = (), exchange: object = None) -> None"));
  static PyMethodDef method = fast_method(
      "describe", describe_call,
      "describe($self, tensor, out=None, /)\n--\n\n"
      "The tuple that Engine.submit() takes. out: address of the result, 0 if the engine allocates "
      "it; None: the tensor is its own result.");
  add_method(added, method);
}

}  // namespace farandole::bindings
