/// This rank's data connections, shared by the backends of all process sets.
///
/// Process sets overlap and share connections: a link carries the operations of all sets that both
/// its ranks are in, in the one order in which every rank runs them.
///
/// Peers may lack their connections as yet: these are asked for when a link has something to do.
#pragma once

#include <poll.h>

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "mutex.h"
#include "result.h"
#include "transport/fd.h"
#include "transport/peer_link.h"
#include "transport/seal.h"

namespace farandole {

/// Connections that are made when something needs them: between the engine, which asks, and whoever
/// makes them in a thread of its own (bootstrap).
///
/// Any thread, except where noted.
class LateConnections {
 public:
  /// All connections to one rank, or why there are none.
  struct Arrival {
    Rank rank = -1;
    std::vector<Fd> streams{};
    std::vector<SealKeys> keys{};  ///< of each stream; empty: the streams are not sealed
    std::optional<Error> failure{};
  };

  [[nodiscard]] static Result<std::unique_ptr<LateConnections>> open();

  /// The connections to that rank are needed. Has an effect once for each rank.
  void ask(Rank rank) noexcept;
  /// Readable if asked() has anything to return.
  [[nodiscard]] int bell() const noexcept { return bell_.get(); }
  /// Ranks that were asked for since the last call.
  [[nodiscard]] std::vector<Rank> asked();

  /// Leaves connections for the engine, which must be woken then.
  void bring(Arrival arrival);
  /// True if take() has anything to return.
  [[nodiscard]] bool arrived() const noexcept { return arrived_.load(std::memory_order_seq_cst); }
  [[nodiscard]] std::vector<Arrival> take();

 private:
  explicit LateConnections(Fd bell) : bell_(std::move(bell)) {}

  Fd bell_;
  Mutex mutex_;
  std::set<Rank> known_ FARANDOLE_GUARDED_BY(mutex_);
  std::vector<Rank> asked_ FARANDOLE_GUARDED_BY(mutex_);
  std::vector<Arrival> arrivals_ FARANDOLE_GUARDED_BY(mutex_);
  std::atomic<bool> arrived_{false};  // written with the mutex held
};

class Mesh final : public LinkOpener {
 public:
  /// Connected stream sockets to one peer, at least one; both ends have them in the same order.
  struct Peer {
    Rank rank = -1;
    std::vector<Fd> streams{};
    std::vector<SealKeys> keys{};  ///< of each stream; empty: the streams are not sealed
    int absent = 0;                ///< without `streams`: how many there will be
  };
  /// `late`: is asked for what is absent, and outlives the mesh; null if nothing is.
  [[nodiscard]] static Result<std::shared_ptr<Mesh>> open(std::vector<Peer> peers,
                                                          LateConnections* late = nullptr);

  /// The connections to a peer that lacked them, or why there are none: then its links fail. An
  /// error: they do not fit; its links fail by that, too.
  Result<void> connect(LateConnections::Arrival arrival);

  /// Called by the links.
  void want(Rank peer) noexcept override { late_->ask(peer); }

  /// Transfers that are posted on any link from now on belong to that operation.
  void begin(OperationTag operation) noexcept { operation_ = operation; }
  /// The first connection to that rank; null if there is none.
  [[nodiscard]] PeerLink* link(Rank rank) const noexcept;
  /// All connections to that rank. Long messages are spread over them in equal parts.
  [[nodiscard]] std::vector<PeerLink*> links(Rank rank) const;

  /// Appends what a sleeping rank has to poll() for: one entry for each link with an incomplete
  /// transfer. Idle links are left out, because data that a faster peer sent early must not wake
  /// this rank.
  void wants(std::vector<pollfd>& polled) const;

  /// True if wants() would append any.
  [[nodiscard]] bool busy() const noexcept;

  /// See Socket::persist(): of all connections.
  void persist() noexcept {
    for (PeerLink* const link : connected_) link->persist();
  }

  /// All sockets, for the fork guard.
  [[nodiscard]] std::vector<int> descriptors() const;

 private:
  using Links = std::vector<std::unique_ptr<PeerLink>>;

  explicit Mesh(LateConnections* late) noexcept : late_(late) {}
  Result<void> adopt(Links& links, LateConnections::Arrival& arrival);

  LateConnections* late_;
  OperationTag operation_ = 0;
  std::map<Rank, Links> links_;       // not changed after open()
  std::vector<PeerLink*> connected_;  // of them; there may be thousands of others
};

}  // namespace farandole
