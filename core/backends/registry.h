/// Backends that exist, and the sets that each of them serves: one row each in registry.cpp.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "backends/backend.h"
#include "backends/device_options.h"
#include "backends/resources.h"
#include "transport/shm_layout.h"

namespace farandole {

class DeviceBackend;
class DeviceOpening;
struct DeviceSet;
class EngineDevice;

/// The facts about a set on which the choice of its backend depends. Equal on every member.
struct SetTraits {
  int ranks = 0;
  int hosts = 0;         ///< how many transport groups they are in
  bool channel = false;  ///< the set has a channel on each host
  bool foreign = false;  ///< a backend in Python was requested
};

/// Makes the backend of this rank, which is one of the members; see BackendFactory::open().
using OpenBackend = Result<std::unique_ptr<Backend>> (*)(Members members, int channel,
                                                         const Resources& resources);

struct BackendRow {
  std::string_view name;  ///< the backend's name; a backend in Python has its own
  bool (*serves)(const SetTraits& set);
  OpenBackend open;
};

/// The first row that serves such a set.
[[nodiscard]] const BackendRow& backend_for(const SetTraits& set) noexcept;

/// The backend of the row that serves these members.
[[nodiscard]] Result<std::unique_ptr<Backend>> open_backend(Members members, int channel,
                                                            const Resources& resources);

/// A backend for tensors on devices, beside that of the set in host memory.
struct DeviceBackendRow {
  std::string_view name;        ///< by which settings ask for it
  bool by_default;              ///< it also serves where no setting asks for anything
  bool (*concerns)(Kind kind);  ///< false: who asks for it does not mean that kind
  /// Why it cannot serve such a set; empty: it can, or finds out while it opens. The same on all
  /// members, but for details.
  std::string (*obstacle)(const DeviceSet& set);
  std::unique_ptr<DeviceOpening> (*open)(const DeviceSet& set, const DeviceOptions& options);
};
[[nodiscard]] std::span<const DeviceBackendRow> device_backends() noexcept;

/// The backend for everything that no row serves: by way of `host`, which serves the same members
/// and outlives it. `device`: null on a rank that takes part without one.
[[nodiscard]] std::unique_ptr<DeviceBackend> open_staged(Backend& host,
                                                         std::shared_ptr<EngineDevice> device);

}  // namespace farandole
