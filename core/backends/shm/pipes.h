/// Sends and receives between the ranks of a host, as streams of bytes through rings.
///
/// One object per process, shared by the backends of all process sets: two ranks have one ring in
/// each direction, whatever the number of sets that both are in, and its position and the turns
/// belong to the ring. As every rank runs the operations of all sets in one order, the streams of
/// different sets do not mix. In front of each transfer that is not empty stands the operation that
/// it belongs to, in the ring itself: whoever reads finds it in the line of the first byte.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backends/backend.h"
#include "backends/operation.h"
#include "backends/registry.h"
#include "transport/byte_ring.h"
#include "transport/doorbell.h"
#include "transport/operation_tag.h"

namespace farandole {

/// Used by the holder of the progress lock only. Outlives its operations; segments outlive it.
class ShmPipes {
 public:
  /// All ranks of the host by local index, with their global numbers; `self` is the own place.
  ShmPipes(const std::vector<Rank>& ranks, const std::vector<ShmMember>& members, int self);

  /// What is sent and received from now on belongs to that operation.
  void begin(OperationTag operation) noexcept { operation_ = operation; }
  /// `to`, `from`: local index of another rank.
  [[nodiscard]] std::unique_ptr<Operation> send(int to, std::span<const std::byte> data);
  [[nodiscard]] std::unique_ptr<Operation> recv(int from, std::span<std::byte> data);

 private:
  class Transfer;
  class Send;
  class Recv;

  /// Transfers of one direction take turns in the order in which they were made.
  struct Turns {
    std::uint64_t given = 0;
    std::uint64_t current = 0;
    bool broken = false;  // one was given up half-way: nobody knows what the next byte belongs to
  };
  struct Peer {
    Rank rank = -1;
    Doorbell bell;
    RingWriter out;
    RingReader in;
    Turns sends;
    Turns recvs;
  };

  std::vector<Peer> peers_;  // by local index; the own entry is unused
  OperationTag operation_ = 0;
};

/// Members on one host without flags and slots of their own: sends and receives through the rings
/// that any two ranks of the host have, everything else by the defaults.
class PipesBackend : public Backend {
 public:
  /// `local_indices`: by set rank, the place of the member in `pipes`.
  PipesBackend(Members members, std::shared_ptr<ShmPipes> pipes, std::vector<int> local_indices);

  [[nodiscard]] std::string_view name() const noexcept override { return "pipes"; }
  [[nodiscard]] std::string_view path(Kind kind, std::size_t bytes) const noexcept override;

  void begin(OperationTag operation) override { pipes_->begin(operation); }
  std::unique_ptr<Operation> send(int peer, std::span<const std::byte> data) final;
  std::unique_ptr<Operation> recv(int peer, std::span<std::byte> data) final;

 private:
  std::shared_ptr<ShmPipes> pipes_;
  std::vector<int> local_indices_;
};

/// The places of ranks of this host in it.
[[nodiscard]] std::vector<int> local_indices(const ShmHost& host, std::span<const Rank> ranks);

/// See registry.h.
[[nodiscard]] Result<std::unique_ptr<Backend>> open_pipes(Members members, int channel,
                                                          const Resources& resources);

}  // namespace farandole
