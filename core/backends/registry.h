/// Which backends exist and whom each of them serves: one row each in registry.cpp.
#pragma once

#include <memory>
#include <string_view>

#include "backends/backend.h"
#include "backends/resources.h"

namespace rueda {

/// No channel: the set gets no memory of its own, all its bytes go through the rings.
inline constexpr int kNoChannel = -1;

/// What a set of ranks has: all that the choice of a backend depends on. The same on every member.
struct SetTraits {
  int ranks = 0;
  int hosts = 0;         ///< transport groups that they are in
  bool channel = false;  ///< there is memory of the set's own on each host
  bool foreign = false;  ///< a backend in another language was asked for
};

/// Makes the backend of this rank, which is one of the members; see Fabric::open().
using OpenBackend = Result<std::unique_ptr<Backend>> (*)(Members members, int channel,
                                                         const Resources& resources);

struct BackendRow {
  std::string_view name;  ///< as the backend calls itself; one in another language has its own
  bool (*serves)(const SetTraits& set);
  OpenBackend open;
};

/// The first row that serves such a set.
[[nodiscard]] const BackendRow& backend_for(const SetTraits& set) noexcept;

/// The backend of the row that serves these members.
[[nodiscard]] Result<std::unique_ptr<Backend>> open_backend(Members members, int channel,
                                                            const Resources& resources);

}  // namespace rueda
