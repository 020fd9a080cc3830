/// What a daemon thread does in our code when the interpreter has ended.
///
/// Such a thread waits for the interpreter lock and never gets it. Before 3.14 CPython ends it by
/// unwinding its stack: through functions that must not throw, where the process aborts, and
/// through destructors that touch Python without the lock, where it crashes. In our code it stays
/// where it is instead, until the process is gone: what CPython does from 3.14 on.
#pragma once

#include <Python.h>

namespace farandole::bindings {

/// The functions of CPython that may wait for the lock. In a file without exceptions: its frames
/// have no handlers that an unwinder could look at. (Wheels have one of their own, which does not
/// understand that of glibc.)
void restore_thread(PyThreadState* state);
PyObject* import_module(const char* name);
PyObject* call_object(PyObject* callable, PyObject* arguments);

/// Other threads of Python run while this lives.
class Unlocked {
 public:
  Unlocked() : state_(PyEval_SaveThread()) {}
  ~Unlocked() { restore_thread(state_); }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  PyThreadState* state_;
};

}  // namespace farandole::bindings
