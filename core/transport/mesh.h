/// This rank's data connections, shared by the backends of all process sets.
///
/// Process sets overlap and share connections: a link carries the operations of all sets that both
/// its ranks are in, in the one order in which every rank runs them.
///
/// Peers may lack their connections as yet: these are asked for when a link has something to do.
#pragma once

#include <poll.h>

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "result.h"
#include "transport/fd.h"
#include "transport/late_connections.h"
#include "transport/peer_link.h"

namespace farandole {

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
