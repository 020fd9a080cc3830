/// Lengths and items of lists and tuples that have been looked at: by the interpreter's macros, or
/// by functions where one module serves many versions of Python, which hides the memory of objects.
#pragma once

#include <nanobind/nanobind.h>

namespace farandole::bindings {

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
