#include "bindings/translation.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings/thread_end.h"

namespace nb = nanobind;

namespace farandole::bindings {

namespace {

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

}  // namespace farandole::bindings
