/// The product's table of a driver, filled from the one of tests/fakes.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include "devices/driver.h"

namespace farandole::testing {

inline void* library() {
  static void* const handle = ::dlopen(FARANDOLE_FAKES "/libcuda.so.1", RTLD_NOW);
  return handle;
}

template <typename Signature>
Signature* symbol(const char* name) {
  void* found = ::dlsym(library(), name);
  EXPECT_NE(found, nullptr) << name;
  return reinterpret_cast<Signature*>(found);
}

inline const DeviceDriver& driver() {
  static const DeviceDriver table = [] {
    DeviceDriver filled;
#define FARANDOLE_FILL(name, text, arguments) filled.name = symbol<DriverStatus arguments>(text);
    FARANDOLE_DRIVER_FUNCTIONS(FARANDOLE_FILL)
#undef FARANDOLE_FILL
    return filled;
  }();
  return table;
}

}  // namespace farandole::testing
