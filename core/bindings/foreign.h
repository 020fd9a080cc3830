/// A class of Python as a backend: docs/howto/write-a-backend-in-python.md.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "backends/foreign_backends.h"

namespace farandole::bindings {

/// `type`: the class; `name`: for messages. With the interpreter lock.
[[nodiscard]] std::shared_ptr<ForeignClass> python_backend(const nanobind::object& type,
                                                           std::string name);

}  // namespace farandole::bindings
