/// Between what the core knows and what Python knows: errors, shapes.
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <vector>

#include "engine/engine.h"

namespace farandole::bindings {

/// A text that another process may have written: what is not UTF-8 becomes U+FFFD.
[[nodiscard]] nanobind::object as_text(const std::string& text);

/// The one border where an error of the core becomes an exception. `hosts`: by rank.
[[nodiscard]] nanobind::object to_exception(const Error& error,
                                            const std::vector<std::string>& hosts);

[[noreturn]] void raise(const Error& error, const std::vector<std::string>& hosts);

[[nodiscard]] inline Shape to_shape(const nanobind::tuple& extents) {
  Shape shape;
  shape.reserve(extents.size());
  for (nanobind::handle extent : extents) shape.push_back(nanobind::cast<std::int64_t>(extent));
  return shape;
}

}  // namespace farandole::bindings
