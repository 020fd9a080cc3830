/// Sends and receives between two ranks of a host, as streams of bytes through rings.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backends/shm.h"
#include "transport/byte_ring.h"

namespace rueda {

/// Used by the holder of the baton only. Outlives its operations.
class ShmPipes {
 public:
  ShmPipes(const Members& members, const std::vector<ShmMember>& by_set_rank);

  [[nodiscard]] std::unique_ptr<Operation> send(int peer, std::span<const std::byte> data);
  [[nodiscard]] std::unique_ptr<Operation> recv(int peer, std::span<std::byte> data);

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

  std::vector<Peer> peers_;  // by set rank; the own entry is unused
};

}  // namespace rueda
