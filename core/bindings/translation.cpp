#include "bindings/translation.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings/thread_end.h"

namespace nb = nanobind;

namespace rueda::bindings {

namespace {

nb::dlpack::dtype dlpack_dtype(DType dtype) {
  const auto bits = static_cast<std::uint8_t>(8 * size_of(dtype));
  const auto of = [bits](nb::dlpack::dtype_code code) {
    return nb::dlpack::dtype{static_cast<std::uint8_t>(code), bits, 1};
  };
  switch (dtype) {
    case DType::UInt8:
    case DType::UInt16:
    case DType::UInt32:
    case DType::UInt64:
    case DType::Float8E4M3FN:  // too new for many who read this: they view the bytes
    case DType::Float8E5M2:
    case DType::Float8E4M3FNUZ:
    case DType::Float8E5M2FNUZ:
      return of(nb::dlpack::dtype_code::UInt);
    case DType::Int8:
    case DType::Int16:
    case DType::Int32:
    case DType::Int64:
      return of(nb::dlpack::dtype_code::Int);
    case DType::Float16:
    case DType::Float32:
    case DType::Float64:
      return of(nb::dlpack::dtype_code::Float);
    case DType::BFloat16:
      return of(nb::dlpack::dtype_code::Bfloat);
    case DType::Complex64:
    case DType::Complex128:
      return of(nb::dlpack::dtype_code::Complex);
    case DType::Bool:
      return of(nb::dlpack::dtype_code::Bool);
  }
  return {};
}

/// A new reference that CPython has returned, or the exception that it has raised.
nb::object checked(PyObject* returned) {
  if (returned == nullptr) throw nb::python_error();
  return nb::steal(returned);
}

}  // namespace

nb::object as_text(const std::string& text) {
  return nb::steal(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
}

/// The one border where an error of the core becomes an exception. `hosts`: by rank.
nb::object to_exception(const Error& error, const std::vector<std::string>& hosts) {
  std::string host;
  if (error.peer >= 0 && static_cast<std::size_t>(error.peer) < hosts.size()) {
    host = hosts[static_cast<std::size_t>(error.peer)];
  }
  const std::string_view code = name_of(error.code);
  const nb::tuple said =
      nb::make_tuple(nb::str(code.data(), code.size()), as_text(error.what()), error.peer,
                     as_text(error.tensor), error.missing, error.waited_s, host);
  const nb::object module = checked(import_module("horovod.errors"));
  const nb::object made = module.attr("from_core");
  return checked(call_object(made.ptr(), said.ptr()));
}

void raise(const Error& error, const std::vector<std::string>& hosts) {
  const nb::object exception = to_exception(error, hosts);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
  throw nb::python_error();
}

nb::object to_dlpack(Output& output) {
  auto* buffer = new HostBuffer(std::move(output.buffer));
  nb::capsule owner(buffer, [](void* p) noexcept { delete static_cast<HostBuffer*>(p); });
  const std::vector<std::size_t> shape(output.shape.begin(), output.shape.end());
  const nb::ndarray<> array(buffer->data(), shape.size(), shape.data(), owner, nullptr,
                            dlpack_dtype(output.dtype), nb::device::cpu::value, 0, 'C');
  return nb::cast(array, nb::rv_policy::reference);
}

}  // namespace rueda::bindings
