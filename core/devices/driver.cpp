#include "devices/driver.h"

#include <dlfcn.h>

#include <utility>

namespace farandole {

namespace {

Error unusable(const std::string& library, const std::string& why) {
  return Error{.code = Code::Unsupported,
               .message = "the driver of the device (" + library + ") " + why};
}

}  // namespace

std::string describe(const DeviceDriver& driver, DriverStatus status) {
  const char* name = nullptr;
  const char* text = nullptr;
  if (driver.error_name(status, &name) != kDriverSuccess || name == nullptr) {
    return "status " + std::to_string(status);
  }
  std::string words = name;
  if (driver.error_text(status, &text) == kDriverSuccess && text != nullptr) {
    words += " (" + std::string(text) + ")";
  }
  return words;
}

Result<std::shared_ptr<const DeviceDriver>> load_driver(const std::string& library) {
  void* const handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* const why = ::dlerror();
    return unusable(library, "cannot be loaded: " + std::string(why != nullptr ? why : "unknown"));
  }
  auto driver = std::make_shared<DeviceDriver>();
  const char* missing = nullptr;
#define FARANDOLE_FIND(name, symbol, arguments)                                        \
  driver->name = reinterpret_cast<DriverStatus(*) arguments>(::dlsym(handle, symbol)); \
  if (driver->name == nullptr && missing == nullptr) missing = symbol;
  FARANDOLE_DRIVER_FUNCTIONS(FARANDOLE_FIND)
#undef FARANDOLE_FIND
  if (missing != nullptr) {
    return unusable(library, "has no function " + std::string(missing) + ": it is too old");
  }
  if (const DriverStatus status = driver->init(0); status != kDriverSuccess) {
    return unusable(library, "does not start: " + describe(*driver, status));
  }
  return std::shared_ptr<const DeviceDriver>(std::move(driver));
}

}  // namespace farandole
