/// Translations between the core and Python: errors, shapes, and results, in host memory and for
/// devices.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/thread_end.h"
#include "engine/engine.h"
#include "engine/execution/work.h"

namespace farandole::bindings {

/// A text that another process may have written: what is not UTF-8 becomes U+FFFD.
[[nodiscard]] nanobind::object as_text(const std::string& text);

/// The one border where an error of the core becomes an exception. `hosts`: by rank.
[[nodiscard]] nanobind::object to_exception(const Error& error,
                                            const std::vector<std::string>& hosts);

[[noreturn]] void raise(const Error& error, const std::vector<std::string>& hosts);

/// Keys of that many connections; none without protection. ValueError: not as many, or of the wrong
/// length.
[[nodiscard]] std::vector<SealKeys> to_seal_keys(int protection,
                                                 const std::vector<nanobind::bytes>& keys,
                                                 std::size_t connections);

[[nodiscard]] inline Shape to_shape(const nanobind::tuple& extents) {
  Shape shape;
  shape.reserve(extents.size());
  for (nanobind::handle extent : extents) shape.push_back(nanobind::cast<std::int64_t>(extent));
  return shape;
}

/// Memory with its owner, as DLPack 1.0 and later say it: the reader calls `deleter` once, from any
/// thread, without the interpreter lock.
///
/// Source: DLPack, the ABI of DLManagedTensor and DLManagedTensorVersioned
/// (https://dmlc.github.io/dlpack/latest/c_api.html).
struct VersionedMemory {
  static constexpr std::uint32_t kMajor = 1;

  std::uint32_t major = kMajor;
  std::uint32_t minor = 0;
  void* context = nullptr;
  void (*deleter)(VersionedMemory*) = nullptr;
  std::uint64_t flags = 0;
  nanobind::dlpack::dltensor tensor;
};

/// Hands a result over: whoever takes the capsule owns the memory, also beyond the engine's end.
[[nodiscard]] nanobind::object to_dlpack(Output& output);

/// What `reader` makes of the memory in a capsule of to_dlpack(), which it owns from then on. The
/// capsule is used up, also if it throws. Invalid, and nothing has happened: it is another capsule,
/// somebody has read it, or DLPack has no name for the dtype.
[[nodiscard]] nanobind::object read(
    nanobind::handle capsule, const std::function<nanobind::object(VersionedMemory&)>& reader);

/// What `dtype` is called here. None: it is none of those that can be reduced.
[[nodiscard]] std::optional<DType> ordinary_dtype(const nanobind::dlpack::dtype& dtype);

/// A result for a device, before its owner has said where it goes.
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
