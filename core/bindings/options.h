/// How an engine is set up, as Python says it: every setting by its name.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <string>

#include "engine/options.h"

namespace farandole::bindings {

namespace nb = nanobind;

template <class T>
bool take(nb::handle given, T& field) {
  return nb::try_cast(given, field);
}
/// In seconds.
inline bool take(nb::handle given, Duration& field) {
  double seconds = 0;
  if (!nb::try_cast(given, seconds)) return false;
  field = std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
  return true;
}
inline bool take(nb::handle given, LogLevel& field) {
  int level = 0;
  if (!nb::try_cast(given, level)) return false;
  field = static_cast<LogLevel>(level);
  return true;
}

/// ValueError: one is missing, none has that name, or a value is of the wrong type.
inline EngineOptions options_from(const nb::dict& settings) {
  const auto refuse = [](nb::handle name, const char* why) {
    const std::string sentence = std::string("setting ") + nb::str(name).c_str() + why;
    throw nb::value_error(sentence.c_str());
  };
  nb::dict left;
  left.update(settings);
  EngineOptions options;
  const auto visit = [&](const char* called, auto& field) {
    const nb::str name(called);
    if (!left.contains(name)) refuse(name, " of the engine is missing");
    if (!take(left[name], field)) refuse(name, " of the engine has a value of the wrong type");
    left.attr("pop")(name);
  };
  options.each(visit);
  for (const auto& [name, value] : left) refuse(name, " is none of the engine");
  return options;
}

}  // namespace farandole::bindings
