#include "transport/crypto_library.h"

#include <dlfcn.h>

#include <initializer_list>

namespace farandole::crypto {

namespace {

constexpr std::initializer_list<const char*> kNames = {"libcrypto.so.3", "libcrypto.so.1.1"};

void* open() {
  // A library that is already loaded comes first: the one that Python was built with.
  for (const int how : {RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD, RTLD_NOW | RTLD_LOCAL}) {
    for (const char* name : kNames) {
      if (void* const library = ::dlopen(name, how); library != nullptr) return library;
    }
  }
  return nullptr;
}

Library find() {
  Library found;
  void* const library = open();
  if (library == nullptr) {
    found.missing = "libcrypto.so.3";
    return found;
  }
#define FARANDOLE_CRYPTO_FIND(result, name, arguments)                         \
  found.name = reinterpret_cast<result(*) arguments>(::dlsym(library, #name)); \
  if (found.name == nullptr && *found.missing == '\0') found.missing = #name;
  FARANDOLE_CRYPTO_FUNCTIONS(FARANDOLE_CRYPTO_FIND)
#undef FARANDOLE_CRYPTO_FIND
  return found;
}

}  // namespace

const Library& library() {
  static const Library found = find();
  return found;
}

}  // namespace farandole::crypto
