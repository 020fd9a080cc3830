/// A result for a device, before its owner has said where it goes.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>
#include <utility>

#include "bindings/thread_end.h"
#include "bindings/translation.h"
#include "engine/execution/work.h"

namespace farandole::bindings {

class DeviceResult {
 public:
  explicit DeviceResult(Output output) : output_(std::move(output)) {}

  [[nodiscard]] int dtype() const noexcept { return static_cast<int>(output_.dtype); }
  [[nodiscard]] nanobind::tuple shape() const {
    nanobind::list extents;
    for (const std::int64_t extent : output_.shape) extents.append(extent);
    return nanobind::tuple(extents);
  }
  [[nodiscard]] int device_index() const noexcept { return output_.device->context().index(); }

  /// Once. In the order of the stream; without one it is there on return.
  void deliver(std::uintptr_t address, std::optional<std::uintptr_t> stream) {
    if (output_.buffer.data() == nullptr) {
      throw nanobind::value_error("This result has been delivered already");
    }
    const std::size_t bytes =
        static_cast<std::size_t>(element_count(output_.shape)) * size_of(output_.dtype);
    if (address == 0 && bytes > 0) throw nanobind::value_error("A result needs memory");
    auto delivered =
        output_.device->deliver(std::move(output_.buffer), bytes, reinterpret_cast<void*>(address),
                                reinterpret_cast<void*>(stream.value_or(0)));
    if (!delivered) raise(delivered.error(), {});
    if (stream) return;
    auto end = output_.device->context().point(nullptr);
    if (end) {
      const Unlocked unlocked;
      delivered = (*end)->wait();
    }
    if (!end) raise(end.error(), {});
    if (!delivered) raise(delivered.error(), {});
  }

 private:
  Output output_;
};

}  // namespace farandole::bindings
