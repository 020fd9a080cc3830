#include "glue/tensorflow_api.h"

#include <dlfcn.h>

#include <initializer_list>

namespace farandole::tf {

namespace {

Api find() {
  Api found;
  // Python loads TensorFlow with hidden names; its library answers to its own name all the same.
  // Never load one: it would be another TensorFlow than the script's.
  void* library = nullptr;
  for (const char* name : {"libtensorflow_framework.so.2", "libtensorflow_framework.so.3",
                           "libtensorflow_framework.so"}) {
    library = dlopen(name, RTLD_NOW | RTLD_NOLOAD);
    if (library != nullptr) break;
  }
  if (library == nullptr) {
    found.missing = "libtensorflow_framework.so";
    return found;
  }
#define FARANDOLE_TF_FIND(result, name, arguments)                           \
  found.name = reinterpret_cast<result(*) arguments>(dlsym(library, #name)); \
  if (found.name == nullptr && *found.missing == '\0') found.missing = #name;
  FARANDOLE_TF_FUNCTIONS(FARANDOLE_TF_FIND)
#undef FARANDOLE_TF_FIND
  return found;
}

}  // namespace

const Api& api() {
  static const Api found = find();
  return found;
}

}  // namespace farandole::tf
