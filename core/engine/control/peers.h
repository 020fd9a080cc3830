/// The other ranks as this one sees them: channels of the control tree, the data backend,
/// heartbeats. Made from open descriptors that bootstrap gives; it never connects to anybody, but
/// asks bootstrap for connections that were left out at first.
#pragma once

#include <poll.h>

#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "backends/registry.h"
#include "transport/control_channel.h"
#include "transport/doorbell.h"
#include "transport/mesh.h"
#include "transport/note_exchange.h"
#include "transport/peer_memory.h"
#include "transport/proposals.h"
#include "transport/shm_layout.h"
#include "transport/shm_segment.h"

namespace farandole {

class SocketChannel;

class Peers {
 public:
  struct Neighbour {
    Rank rank;
    std::unique_ptr<ControlChannel> channel;
    SocketChannel* socket = nullptr;  ///< the same channel, if it is one
  };

  /// `groups`: ranks that share memory, ascending inside a group, groups ordered by first rank.
  Peers(Rank self, int size, std::vector<std::vector<Rank>> groups, std::vector<std::string> hosts);
  ~Peers();

  // What bootstrap gives. Descriptors are owned by this object from then on.
  void own_segment(ShmSegment segment, Fd engine_bell, Fd waiter_bell);
  void add_local_peer(Rank rank, ShmSegment segment, Fd engine_bell, Fd waiter_bell, Fd pidfd,
                      Fd liveness);
  /// `keys`: of the control connection, then of each data connection; empty: the connections are
  /// not sealed (transport/seal.h).
  void add_network_peer(Rank rank, Fd control, std::vector<Fd> data,
                        std::vector<SealKeys> keys = {});
  /// The same for a rank whose data connections, so many, are made when something needs them.
  void add_absent_peer(Rank rank, int streams);
  /// Whether ranks of this host may read each other's memory, if the system allows it. Before
  /// open().
  void set_direct_copies(bool allowed) noexcept { direct_copies_ = allowed; }

  /// The limit for the segments of all ranks of the world: none is larger. Before open().
  void set_segment_limit(std::size_t bytes) noexcept { segment_limit_ = bytes; }

  /// See BackendFactory::use(). Before open().
  void use(OpenForeign backend) { other_backend_ = std::move(backend); }

  /// Opens channels, backend and heartbeats. An error names what is missing.
  Result<void> open();

  [[nodiscard]] Rank self() const noexcept { return self_; }
  [[nodiscard]] int size() const noexcept { return size_; }
  [[nodiscard]] const std::vector<std::vector<Rank>>& groups() const noexcept { return groups_; }
  [[nodiscard]] const std::vector<std::string>& hosts() const noexcept { return hosts_; }
  /// Those that share memory with this rank, which is among them.
  [[nodiscard]] std::vector<Rank> own_group() const;
  /// "rank 3 on host a"
  [[nodiscard]] std::string describe(Rank rank) const;

  [[nodiscard]] BellWord& bell() noexcept { return *bell_; }
  [[nodiscard]] int engine_bell() const noexcept { return engine_bell_.get(); }
  [[nodiscard]] int waiter_bell() const noexcept { return waiter_bell_.get(); }
  [[nodiscard]] Backend& backend() noexcept { return *backend_; }
  /// Backends of further process sets: see BackendFactory::open(). After open().
  [[nodiscard]] BackendFactory& backend_factory() noexcept { return *backend_factory_; }
  /// What carries the proposals of all sets between hosts.
  [[nodiscard]] NoteExchange& notes() noexcept { return notes_; }
  /// True if ranks may agree on operations by themselves: no backend in Python must see them all.
  [[nodiscard]] bool may_propose() const noexcept { return !other_backend_ || size_ == 1; }
  /// The rounds of a set of which this rank is a member (global ranks, ascending), or of the world.
  /// Null, on all members alike: too many of them are on other hosts, or the set has no channel.
  /// `generation`: of the set, 0 for the world. `reused`: another set may have had the channel
  /// before; then no other member looks at this rank's board yet. After open().
  [[nodiscard]] std::unique_ptr<Proposals> open_proposals(std::span<const Rank> ranks, int channel,
                                                          std::uint32_t generation, bool reused);
  [[nodiscard]] std::vector<Neighbour>& neighbours() noexcept { return neighbours_; }
  [[nodiscard]] ControlChannel* channel(Rank rank) noexcept;

  /// For connections that were left out; null if none were. After open().
  [[nodiscard]] LateConnections* late_connections() const noexcept { return late_.get(); }
  /// True if take_arrivals() has anything to do. Any thread, after open().
  [[nodiscard]] bool arrived() const noexcept { return late_ != nullptr && late_->arrived(); }
  /// Takes the connections that have come since. What is wrong with one is an error of the
  /// operations that wait for it.
  void take_arrivals();

  /// Descriptors whose readiness means that a message came, data can move, or a peer died.
  void watch(std::vector<pollfd>& fds) const;
  /// True while a descriptor, not a bell, tells about progress: data is in flight on sockets, or a
  /// message found no room.
  [[nodiscard]] bool awaits_descriptors() const;
  /// See Socket::persist(): of all connections.
  void persist() noexcept;
  /// A rank that is watched for heartbeats, and where these come from.
  struct Watched {
    Rank rank;
    BeatWord* word = nullptr;  ///< in its segment; null: messages of the control channel count
    std::int64_t seen = 0;     ///< the value of the word at the last look
  };
  /// All ranks of this host, and neighbours in the control tree on other hosts. After open().
  [[nodiscard]] std::vector<Watched> watched();
  /// This rank's heartbeat for the other ranks of its host: the time of the last one. After open().
  [[nodiscard]] BeatWord& beat() noexcept { return *beat_; }

  /// A rank that is lost according to a descriptor that watch() added. `certain`: its process has
  /// ended.
  struct Loss {
    Rank rank;
    bool certain;
  };
  [[nodiscard]] std::optional<Loss> lost(const pollfd* fds, std::size_t count) const;

  /// Memory for tensors that this rank shares; null if it shares none. After open().
  [[nodiscard]] const std::shared_ptr<ShmHeap>& heap() const noexcept { return heap_; }

  /// Whether this process can look into the heaps of all ranks of this host; maps them. Any thread,
  /// after open().
  [[nodiscard]] bool map_heaps();

  /// True if this process still has the descriptors that it had after open(). If not (the script
  /// has closed them), their errors say nothing about other ranks.
  [[nodiscard]] bool intact() const;
  /// True if the kernel says that the process of that rank, on this host, runs.
  [[nodiscard]] bool lives(Rank rank) const;
  /// True if the kernel says that the process of that rank, on this host, has ended.
  [[nodiscard]] bool gone(Rank rank) const;

  /// The cause that a rank of this host has left in its segment.
  [[nodiscard]] std::optional<Error> left_cause() const;
  void leave_cause(const Error& error);

  /// All descriptors, for the fork guard.
  [[nodiscard]] std::vector<int> descriptors() const;

 private:
  struct LocalPeer {
    Rank rank;
    ShmSegment segment;
    std::unique_ptr<ShmHeap> heap;
    Fd engine_bell;
    Fd waiter_bell;
    Fd pidfd;
    Fd liveness;
  };
  struct NetworkPeer {
    Rank rank;
    Fd control;
    SealKeys keys;
  };
  /// A descriptor, and the file that it referred to after open().
  struct Opened {
    int fd;
    std::uint64_t device;
    std::uint64_t inode;
  };
  void note_opened();
  void note_opened(const std::vector<int>& fds);
  [[nodiscard]] const LocalPeer* local_peer(Rank rank) const;
  Result<void> open_local();
  Result<void> open_backend_factory();
  /// The heap in a segment's file: what lies behind the fixed part.
  [[nodiscard]] std::unique_ptr<ShmHeap> heap_in(Fd file) const;

  Rank self_;
  int size_;
  std::vector<std::vector<Rank>> groups_;
  std::vector<std::string> hosts_;

  std::unique_ptr<BellWord> private_bell_;  // used if nobody shares memory with this rank
  BellWord* bell_ = nullptr;
  std::unique_ptr<BeatWord> private_beat_;
  BeatWord* beat_ = nullptr;
  Fd engine_bell_;
  Fd waiter_bell_;
  ShmSegment segment_;
  std::shared_ptr<ShmHeap> heap_;  // tensors in it may outlive this
  std::vector<LocalPeer> local_;
  std::vector<NetworkPeer> network_;
  std::vector<Opened> opened_;
  std::vector<Mesh::Peer> data_;
  std::unique_ptr<LateConnections> late_;  // outlives the mesh

  OpenForeign other_backend_;
  bool direct_copies_ = true;
  std::size_t segment_limit_ = std::numeric_limits<std::size_t>::max();
  std::optional<MemoryToken> token_;  // kept while other ranks may look for it
  std::vector<ShmView> views_;        // by local index
  std::vector<Doorbell> bells_;       // by local index
  std::vector<PeerMemory> memories_;  // by local index
  int local_index_ = 0;
  std::shared_ptr<Mesh> mesh_;
  std::vector<Neighbour> neighbours_;
  NoteExchange notes_;
  std::unique_ptr<BackendFactory> backend_factory_;
  std::unique_ptr<Backend> backend_;
};

}  // namespace farandole
