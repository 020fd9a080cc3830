/// Backends that exist, the sets that each of them serves (one row each in registry.cpp), what they
/// are made from, and the factory that opens the one for given ranks.
#pragma once

#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backends/backend.h"
#include "backends/device_options.h"
#include "transport/doorbell.h"
#include "transport/mesh.h"
#include "transport/peer_memory.h"
#include "transport/shm_layout.h"
#include "transport/shm_segment.h"
#include "types.h"

namespace farandole {

/// A rank of this host: its segment, how to wake it, and its memory if it may be read.
struct ShmMember {
  ShmView segment;
  int local_index = 0;      ///< its index among the ranks of the host (layout of the rings)
  Doorbell bell;            ///< unused for the own entry
  ShmHeap* heap = nullptr;  ///< outlives the backends; null: tensors are in private memory
  PeerMemory memory{};      ///< unused for the own entry
};

/// How this rank reaches the ranks of its transport group, itself included.
struct ShmHost {
  std::vector<Rank> ranks;         ///< by local index, ascending
  std::vector<ShmMember> members;  ///< by local index
  int self = 0;                    ///< local index
  ShmSegment* own = nullptr;       ///< outlives the backend factory and its backends
};

class ShmPipes;

/// Opens a set of more than one rank in a backend that is written in Python.
using OpenForeign = std::function<std::unique_ptr<Backend>(Members)>;

/// The connections and memory from which a process makes its backends.
struct Resources {
  ShmHost host;                     ///< empty if this rank is alone in its group
  std::shared_ptr<ShmPipes> pipes;  ///< of the host; null if this rank is alone in its group
  std::shared_ptr<Mesh> mesh;       ///< null if the world is one group
  OpenForeign foreign;              ///< empty: no backend in Python
};

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

/// Chooses and opens the backend that serves given ranks: for the world and for all other process
/// sets.
///
/// Used by the holder of the progress lock only, except for members(), which reads nothing that
/// changes after the constructor.
class BackendFactory {
 public:
  /// `groups`: the transport groups of the world. `host`: empty if this rank is alone in its group.
  /// `mesh`: null if the world is one group.
  BackendFactory(Rank self, std::vector<std::vector<Rank>> groups, ShmHost host,
                 std::shared_ptr<Mesh> mesh);

  /// From now on `open` makes the backend of every set of more than one rank: a backend in Python.
  void use(OpenForeign open) { resources_.foreign = std::move(open); }

  /// The limit for the segments of all ranks of the world. A set whose channel would lie beyond it
  /// has no channel, on every host.
  void limit_segments(std::size_t bytes) noexcept { segment_limit_ = bytes; }

  /// Opens a backend for these ranks (global, ascending, this one among them). All of them open the
  /// set with the same `channel`. If some share memory with this rank, memory is reserved for the
  /// channel in this rank's segment, and its flags are reset. The members must then run
  /// dissemination_barrier() before their first operation. The world needs none, because its flags
  /// are zero from the start. Fails if memory is lacking or there is no such channel.
  [[nodiscard]] Result<std::unique_ptr<Backend>> open(std::span<const Rank> ranks, int channel);

  /// True if the channel would lie beyond the limit. Gives the same result on all ranks, because
  /// all members of a set must agree whether it has a channel. Any thread.
  [[nodiscard]] bool is_cut_off(int channel) const noexcept;

  /// The members of such a set: groups hold set ranks, ordered by first member. Any thread.
  [[nodiscard]] Members members(std::span<const Rank> ranks) const;

 private:
  const Rank self_;
  const std::vector<std::vector<Rank>> groups_;
  Resources resources_;
  std::size_t segment_limit_ = std::numeric_limits<std::size_t>::max();
};

}  // namespace farandole
