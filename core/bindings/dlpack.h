/// Results in memory of the engine, as other libraries take them over.
///
/// Source: DLPack, the ABI of DLManagedTensor and DLManagedTensorVersioned
/// (https://dmlc.github.io/dlpack/latest/c_api.html).
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <functional>
#include <optional>

#include "engine/execution/work.h"

namespace farandole::bindings {

/// Memory with its owner, as DLPack 1.0 and later say it: the reader calls `deleter` once, from any
/// thread, without the interpreter lock.
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

}  // namespace farandole::bindings
