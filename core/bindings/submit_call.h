/// Engine.submit() as the interpreter calls it. Every collective passes here, so it is no function
/// of nanobind, whose look at ten arguments takes as long as a small collective's other steps.
#pragma once

#include <nanobind/nanobind.h>

#include <climits>
#include <cstdint>
#include <string>

#include "bindings/engine.h"
#include "bindings/interpreter.h"
#include "bindings/numbers.h"

namespace farandole::bindings {

namespace submit_call {

[[noreturn]] inline void wrong_type(const char* what, const char* wanted, PyObject* got) {
  PyErr_Clear();
  const nanobind::str kind(nanobind::handle(got).type().attr("__name__"));
  throw nanobind::type_error(
      (std::string(what) + " must be " + wanted + ", not " + kind.c_str()).c_str());
}

inline int integer(const char* what, PyObject* value) {
  if (!PyLong_Check(value)) [[unlikely]] {
    wrong_type(what, "an int", value);
  }
  const long long number = PyLong_AsLongLong(value);
  if (number < INT_MIN || number > INT_MAX || (number == -1 && PyErr_Occurred() != nullptr))
      [[unlikely]] {
    PyErr_Clear();
    throw nanobind::type_error((std::string(what) + " is too large").c_str());
  }
  return static_cast<int>(number);
}

inline double factor(const char* what, PyObject* value) {
  const double number = PyFloat_AsDouble(value);
  if (number == -1.0 && PyErr_Occurred() != nullptr) [[unlikely]] {
    wrong_type(what, "a number that fits a float", value);
  }
  return number;
}

/// The arguments are in order, the last one may be left out.
inline PyObject* call(PyObject* self, PyObject* const* given, Py_ssize_t count) noexcept {
  return for_interpreter([&] {
    if (count < 9 || count > 10) [[unlikely]] {
      throw nanobind::type_error("submit takes 9 or 10 arguments, in order");
    }
    return nanobind::inst_ptr<Engine>(self)->submit(
        integer("kind", given[0]), given[1], given[2], integer("op", given[3]),
        factor("prescale", given[4]), factor("postscale", given[5]), integer("root", given[6]),
        integer("process_set", given[7]), integer("mode", given[8]),
        count > 9 ? nanobind::handle(given[9]) : nanobind::none());
  });
}

}  // namespace submit_call

/// Gives the class its method.
inline void add_submit(nanobind::handle engine_class) {
  static PyMethodDef method = fast_method(
      "submit", submit_call::call,
      "submit($self, kind, name, tensors, op, prescale, postscale, root, process_set, mode, "
      "owners=None, /)\n--\n\n"
      "Submit a contiguous tensor, a list of them that run together, or None for a kind that has "
      "none. A tensor is (in, out, dtype, shape, device, device_index, stream, splits, received), "
      "short where the rest is nothing: addresses, out 0 where the engine allocates; in 0 of an "
      "allreduce with an out: this rank brings nothing, and out, which holds zeros, gets what "
      "the others bring; of alltoall, "
      "how many rows go to each member, and the address of an int32 for each member, where the "
      "numbers of rows that came go. stream None: it is not known; "
      "the default one comes before and after, and whoever waits, waits on the host.\n\n"
      "Returns the handle. BLOCKING waits: the list of results, as wait() returns it; 0 if there "
      "is nothing to take; or the handle of results on devices. If a signal handler raises "
      "meanwhile (Ctrl-C), the operation goes on without the caller. AWAITED: somebody waits for "
      "the handle at once. owners: what keeps that memory; it is held until the engine is done "
      "with it, also if nobody waits for the handle.");
  add_method(engine_class, method);
}

}  // namespace farandole::bindings
