/// Bytes that members copy out of each other's buffers, chunk after chunk. While the readers are in
/// one slot, the owner fills the other.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "backends/device_wait.h"
#include "backends/peer/peer.h"

namespace farandole {

/// What goes where.
struct PeerPlan {
  /// What goes through the own buffer, in that order: this member's contribution.
  std::vector<std::span<const std::byte>> in;
  /// The bytes of a member's contribution from `begin` on, to where they belong.
  struct Source {
    int member = 0;
    std::size_t begin = 0;
    std::vector<std::span<std::byte>> out;
  };
  std::vector<Source> from;
  /// From this member to itself.
  struct Copy {
    std::span<const std::byte> in;
    std::byte* out = nullptr;
  };
  std::vector<Copy> own;
  /// Bytes of the longest contribution. Equal on every member, so that all cut alike.
  std::size_t longest = 0;
};

/// The members meet on the host once for every chunk, and once at the end:
///
///     fill 0 | meet | read 0, fill 1 | meet | read 1, fill 2 | meet | read 2 | meet
///
/// A member comes to a meeting when its own device has done what is before it. So who passes it may
/// read the chunk of every member, and may fill the slot that was read before. No stream ever waits
/// for another process, and none is stuck when one dies.
class PeerCopying final : public Operation {
 public:
  PeerCopying(PeerBackend& backend, PeerPlan plan);
  ~PeerCopying() override;

  Result<Step> step() override;
  [[nodiscard]] std::vector<Rank> waiting_for() const override {
    return meeting_ ? meeting_->waiting_for() : std::vector<Rank>();
  }
  [[nodiscard]] std::optional<TimePoint> due() const override {
    return meeting_ ? meeting_->due() : wait_.due();
  }

 private:
  [[nodiscard]] Result<void> start();
  [[nodiscard]] Result<void> fill(std::size_t chunk);
  [[nodiscard]] Result<void> read(std::size_t chunk);
  /// What the own device has not done yet of what comes before the next meeting; null: nothing.
  [[nodiscard]] Result<std::shared_ptr<const DevicePoint>> unfinished();

  PeerBackend& backend_;
  EngineDevice& device_;
  PeerPlan plan_;
  std::size_t chunks_;
  bool started_ = false;
  bool over_ = false;
  std::size_t met_ = 0;                        // meetings that are over
  std::shared_ptr<const DevicePoint> filled_;  // null: nothing to wait for
  std::shared_ptr<const DevicePoint> read_;    // the same
  DeviceWait wait_;
  std::unique_ptr<Operation> meeting_;  // under way
};

}  // namespace farandole
