/// Control messages between two ranks of a host, through rings in their segments.
#pragma once

#include <array>
#include <deque>
#include <vector>

#include "transport/byte_ring.h"
#include "transport/control_channel.h"
#include "transport/doorbell.h"
#include "transport/shm_layout.h"

namespace farandole {

/// A message in the ring is its length (32 bits) and its bytes, written piece by piece as there is
/// room.
class ShmChannel final : public ControlChannel {
 public:
  /// This rank's end of an edge of the control tree.
  struct Edge {
    ShmView own;          ///< this rank's segment
    int own_index = 0;    ///< local index of this rank
    ShmView peer;         ///< the other rank's segment
    int peer_index = 0;   ///< its local index
    Rank peer_rank = -1;  ///< its global rank, for errors
    Doorbell bell;        ///< its bell
  };

  explicit ShmChannel(const Edge& edge);
  /// Tells the peer that nothing will follow. The segments must still be mapped.
  ~ShmChannel() override;
  ShmChannel(const ShmChannel&) = delete;
  ShmChannel& operator=(const ShmChannel&) = delete;

  Result<void> send(std::span<const std::byte> message) override;
  Result<void> flush() override;
  Result<std::optional<std::span<const std::byte>>> receive() override;
  [[nodiscard]] bool ready() const override;
  [[nodiscard]] bool congested() const override { return !queue_.empty(); }

 private:
  [[nodiscard]] Error broken(const Error& error) const;

  Rank peer_rank_;
  Doorbell bell_;
  RingWriter out_;
  RingReader in_;

  std::deque<std::vector<std::byte>> queue_;  // messages with their lengths, which found no room
  std::size_t queued_bytes_ = 0;              // of all of them
  std::size_t front_sent_ = 0;                // bytes of the first of them that are in the ring

  bool unannounced_ = false;  // something was published since the bell was last rung

  std::array<std::byte, 4> length_{};  // of the message being received
  std::size_t received_ = 0;           // bytes of length and message so far
  std::vector<std::byte> message_;  // a copy, because the peer could change the ring after a check
};

}  // namespace farandole
