/// Which backends exist and which sets each of them serves: one row each in registry.cpp.
#pragma once

#include <memory>
#include <string_view>

#include "backends/backend.h"
#include "backends/resources.h"
#include "transport/shm_layout.h"

namespace farandole {

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

}  // namespace farandole
