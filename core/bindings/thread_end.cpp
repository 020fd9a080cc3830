#include "bindings/thread_end.h"

#include <pthread.h>
#include <unistd.h>

#ifdef __EXCEPTIONS
#error "compiled without exceptions: the clean-up is a jump then, and no frame is unwound"
#endif

namespace farandole::bindings {

namespace {

/// glibc jumps here from the thread's end, before it comes to the frames of our callers.
void stay(void* /*unused*/) {
  for (;;) pause();
}

}  // namespace

void restore_thread(PyThreadState* state) {
  pthread_cleanup_push(stay, nullptr);
  PyEval_RestoreThread(state);
  pthread_cleanup_pop(0);
}

PyObject* import_module(const char* name) {
  PyObject* module = nullptr;
  pthread_cleanup_push(stay, nullptr);
  module = PyImport_ImportModule(name);
  pthread_cleanup_pop(0);
  return module;
}

PyObject* call_object(PyObject* callable, PyObject* arguments) {
  PyObject* returned = nullptr;
  pthread_cleanup_push(stay, nullptr);
  returned = PyObject_CallObject(callable, arguments);
  pthread_cleanup_pop(0);
  return returned;
}

}  // namespace farandole::bindings
