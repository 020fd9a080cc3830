/// Status values of the driver API that the core does not name.
#pragma once

#include "devices/driver.h"

namespace farandole::fakes {

inline constexpr DriverStatus kNotInitialized = 3;
inline constexpr DriverStatus kInvalidDevice = 101;
inline constexpr DriverStatus kInvalidContext = 201;
inline constexpr DriverStatus kMapFailed = 205;
inline constexpr DriverStatus kIllegalAddress = 700;
inline constexpr DriverStatus kContextIsDestroyed = 709;
inline constexpr DriverStatus kAlreadyRegistered = 712;
inline constexpr DriverStatus kNotRegistered = 713;
inline constexpr DriverStatus kNotPermitted = 800;
inline constexpr DriverStatus kNotSupported = 801;
inline constexpr DriverStatus kCaptureUnsupported = 900;

/// Whether a context that has met this error answers with it from then on.
[[nodiscard]] bool breaks_context(DriverStatus status) noexcept;

struct StatusText {
  DriverStatus status;
  const char* name;
  const char* text;
};
/// nullptr: no status of this driver.
[[nodiscard]] const StatusText* text_of(DriverStatus status) noexcept;

}  // namespace farandole::fakes
