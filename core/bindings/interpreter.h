/// Calls of the interpreter itself, for what runs for every operation: methods without nanobind's
/// look at the arguments, lengths and items of lists and tuples.
#pragma once

#include <nanobind/nanobind.h>

namespace farandole::bindings {

inline PyObject* kind_of(const nanobind::builtin_exception& error) {
  switch (error.type()) {
    case nanobind::exception_type::value_error:
      return PyExc_ValueError;
    case nanobind::exception_type::type_error:
      return PyExc_TypeError;
    default:
      return PyExc_RuntimeError;
  }
}

/// What `step` returns, as a new reference; null with an exception of Python set if it throws.
template <typename Step>
PyObject* for_interpreter(Step&& step) noexcept {
  try {
    return step().release().ptr();
  } catch (nanobind::python_error& error) {
    error.restore();
  } catch (const nanobind::builtin_exception& error) {
    PyErr_SetString(kind_of(error), error.what());
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

using FastCall = PyObject* (*)(PyObject* self, PyObject* const* given, Py_ssize_t count);

[[nodiscard]] inline PyMethodDef fast_method(const char* name, FastCall call, const char* doc) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(call)), METH_FASTCALL, doc};
}

/// Gives a class its method. `method` lives as long as the process.
inline void add_method(nanobind::handle to, PyMethodDef& method) {
  const nanobind::object descriptor =
      nanobind::steal(PyDescr_NewMethod(reinterpret_cast<PyTypeObject*>(to.ptr()), &method));
  nanobind::setattr(to, method.ml_name, descriptor);
}

// Lengths and items of lists and tuples that have been looked at: by the interpreter's macros, or
// by functions where one module serves many versions of Python, which hides the memory of objects.

#ifdef Py_LIMITED_API
inline Py_ssize_t length_of_tuple(PyObject* tuple) { return PyTuple_Size(tuple); }
inline PyObject* item_of_tuple(PyObject* tuple, Py_ssize_t i) { return PyTuple_GetItem(tuple, i); }
inline Py_ssize_t length_of_list(PyObject* list) { return PyList_Size(list); }
inline PyObject* item_of_list(PyObject* list, Py_ssize_t i) { return PyList_GetItem(list, i); }
#else
inline Py_ssize_t length_of_tuple(PyObject* tuple) { return PyTuple_GET_SIZE(tuple); }
inline PyObject* item_of_tuple(PyObject* tuple, Py_ssize_t i) { return PyTuple_GET_ITEM(tuple, i); }
inline Py_ssize_t length_of_list(PyObject* list) { return PyList_GET_SIZE(list); }
inline PyObject* item_of_list(PyObject* list, Py_ssize_t i) { return PyList_GET_ITEM(list, i); }
#endif

}  // namespace farandole::bindings
