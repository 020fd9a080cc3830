/// Results in memory of the engine, as other libraries take them over.
///
/// Source: DLPack, the ABI of DLManagedTensor (https://dmlc.github.io/dlpack/latest/c_api.html).
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <optional>

#include "engine/execution/work.h"

namespace rueda::bindings {

/// Hands a result over: whoever takes the capsule owns the memory, also beyond the engine's end.
[[nodiscard]] nanobind::object to_dlpack(Output& output);

/// What `dtype` is called here. None: it is none of those that can be reduced.
[[nodiscard]] std::optional<DType> ordinary_dtype(const nanobind::dlpack::dtype& dtype);

}  // namespace rueda::bindings
