/// The other ranks as this one sees them: channels of the control tree, the data backend, signs of
/// life. Made from descriptors that were handed in; dials nobody.
#pragma once

#include <poll.h>

#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "backends/fabric.h"
#include "transport/control_channel.h"
#include "transport/doorbell.h"
#include "transport/mesh.h"
#include "transport/offers.h"
#include "transport/peer_memory.h"
#include "transport/shm_heap.h"
#include "transport/shm_layout.h"
#include "transport/shm_segment.h"

namespace rueda {

class SocketChannel;

class Peers {
 public:
  struct Neighbour {
    Rank rank;
    std::unique_ptr<ControlChannel> channel;
    const SocketChannel* socket = nullptr;  ///< the same channel, if it is one
  };

  /// `groups`: ranks that share memory, ascending inside a group, groups ordered by first rank.
  Peers(Rank self, int size, std::vector<std::vector<Rank>> groups, std::vector<std::string> hosts);
  ~Peers();

  // What bootstrap hands over. Descriptors are owned from here on.
  void own_segment(ShmSegment segment, Fd engine_bell, Fd waiter_bell);
  void add_local_peer(Rank rank, ShmSegment segment, Fd engine_bell, Fd waiter_bell, Fd pidfd,
                      Fd liveness);
  /// `keys`: of the control connection, then of each data connection; empty: nothing is protected.
  void add_network_peer(Rank rank, Fd control, std::vector<Fd> data,
                        std::vector<SealKeys> keys = {});
  /// Whether ranks of this host may read each other's memory, if the system allows it. Before
  /// open().
  void set_direct_copies(bool allowed) noexcept { direct_copies_ = allowed; }

  /// No rank of the world makes a larger segment. Before open().
  void set_segment_limit(std::size_t bytes) noexcept { segment_limit_ = bytes; }

  /// See Fabric::use(). Before open().
  void use(OpenForeign backend) { other_backend_ = std::move(backend); }

  /// Puts it all together. An error names what is missing.
  Result<void> open();

  [[nodiscard]] Rank self() const noexcept { return self_; }
  [[nodiscard]] int size() const noexcept { return size_; }
  [[nodiscard]] const std::vector<std::vector<Rank>>& groups() const noexcept { return groups_; }
  [[nodiscard]] const std::vector<std::string>& hosts() const noexcept { return hosts_; }
  /// "rank 3 on host a"
  [[nodiscard]] std::string describe(Rank rank) const;

  [[nodiscard]] BellWord& bell() noexcept { return *bell_; }
  [[nodiscard]] int engine_bell() const noexcept { return engine_bell_.get(); }
  [[nodiscard]] int waiter_bell() const noexcept { return waiter_bell_.get(); }
  [[nodiscard]] Backend& backend() noexcept { return *backend_; }
  /// Backends of further process sets: see Fabric::open(). After open().
  [[nodiscard]] Fabric& fabric() noexcept { return *fabric_; }
  /// Where all ranks of the world agree on small operations by themselves; null if they are
  /// too many. After open().
  [[nodiscard]] Offers* offers() const noexcept { return offers_.get(); }
  [[nodiscard]] std::vector<Neighbour>& neighbours() noexcept { return neighbours_; }
  [[nodiscard]] ControlChannel* channel(Rank rank) noexcept;

  /// Descriptors whose readiness means that a message came, data can move, or a peer died.
  void watch(std::vector<pollfd>& fds) const;
  /// Some of them matter now that did not at other times: data is under way, or a message found no
  /// room.
  [[nodiscard]] bool awaits_descriptors() const;
  /// A rank whose signs of life are awaited, and where they come from.
  struct Watched {
    Rank rank;
    BeatWord* word = nullptr;  ///< in its segment; null: messages of the control channel count
    std::int64_t seen = 0;     ///< for whoever looks at the word: what it said last
  };
  /// All ranks of the host, and the neighbours in the control tree beyond it. After open().
  [[nodiscard]] std::vector<Watched> watched();
  /// This rank's own sign of life for the others of its host: when it gave it last. After open().
  [[nodiscard]] BeatWord& beat() noexcept { return *beat_; }

  /// The rank whose sign of life ended, among what watch() added. `certain`: the process is gone.
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

  /// This process still has the descriptors that were open after open(). If not, what they say
  /// says nothing about the other ranks.
  [[nodiscard]] bool intact() const;
  /// The kernel says that the process of that rank, of this host, lives.
  [[nodiscard]] bool lives(Rank rank) const;
  /// The kernel says that the process of that rank has ended.
  [[nodiscard]] bool gone(Rank rank) const;

  /// What a rank on this host left behind as the reason why it gave up.
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
  /// A descriptor, and the file that it stood for.
  struct Opened {
    int fd;
    std::uint64_t device;
    std::uint64_t inode;
  };
  void note_opened();
  [[nodiscard]] const LocalPeer* local_peer(Rank rank) const;
  Result<void> open_local();
  Result<void> open_fabric();
  void open_offers();
  [[nodiscard]] std::vector<Rank> own_group() const;
  /// The heap in a segment's file, as far as the file goes.
  [[nodiscard]] std::unique_ptr<ShmHeap> heap_in(Fd file) const;

  Rank self_;
  int size_;
  std::vector<std::vector<Rank>> groups_;
  std::vector<std::string> hosts_;

  std::unique_ptr<BellWord> private_bell_;  // where nobody shares memory with this rank
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

  OpenForeign other_backend_;
  bool direct_copies_ = true;
  std::size_t segment_limit_ = std::numeric_limits<std::size_t>::max();
  std::optional<MemoryToken> token_;  // while others may look for it
  std::vector<ShmView> views_;        // by local index
  std::vector<Doorbell> bells_;       // by local index
  std::vector<PeerMemory> memories_;  // by local index
  int local_index_ = 0;
  std::shared_ptr<Mesh> mesh_;
  std::vector<Neighbour> neighbours_;
  std::unique_ptr<Offers> offers_;
  std::unique_ptr<Fabric> fabric_;
  std::unique_ptr<Backend> backend_;
};

}  // namespace rueda
