/// The product's table of a driver, filled from the one of tests/fakes.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include "devices/driver.h"

namespace rueda::testing {

inline void* library() {
  static void* const handle = ::dlopen(RUEDA_FAKES "/libcuda.so.1", RTLD_NOW);
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
#define RUEDA_FILL(name, text, arguments) filled.name = symbol<DriverStatus arguments>(text);
    RUEDA_DRIVER_FUNCTIONS(RUEDA_FILL)
#undef RUEDA_FILL
    return filled;
  }();
  return table;
}

}  // namespace rueda::testing
