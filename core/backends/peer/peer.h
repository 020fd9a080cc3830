/// Members of one host that copy from each other's device memory: see decision 63.
///
/// It moves bytes. What it cannot do (reductions) another backend of devices does.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backends/device_backend.h"
#include "backends/device_wait.h"
#include "backends/peer/buffers.h"

namespace farandole {

class PeerBackend final : public DeviceBackend {
 public:
  /// `host` serves the same members in host memory; `rest` those with the same device. Both outlive
  /// this.
  PeerBackend(Backend& host, DeviceBackend& rest, std::unique_ptr<PeerBuffers> buffers);
  ~PeerBackend() override;

  /// Return whether it does that itself.
  [[nodiscard]] static bool moves(Kind kind) noexcept {
    return kind == Kind::Allgather || kind == Kind::Broadcast || kind == Kind::Alltoall;
  }

  [[nodiscard]] std::string_view name() const noexcept override { return "peer"; }
  [[nodiscard]] std::string_view path(Kind kind, std::size_t bytes) const noexcept override {
    return moves(kind) ? "peer" : rest_.path(kind, bytes);
  }
  [[nodiscard]] EngineDevice* device() const noexcept override { return buffers_->device().get(); }
  [[nodiscard]] void* stream() const noexcept override { return device()->to_device(); }
  [[nodiscard]] bool serves(Kind kind, const Reduction& /*reduction*/) const noexcept override {
    return moves(kind);
  }
  Result<void> follow(std::shared_ptr<const DevicePoint> point) override;
  [[nodiscard]] std::string describe() const override;

  void begin(OperationTag operation) override { host_.begin(operation); }
  std::unique_ptr<Operation> send(int peer, std::span<const std::byte> data) override {
    return rest_.send(peer, data);
  }
  std::unique_ptr<Operation> recv(int peer, std::span<std::byte> data) override {
    return rest_.recv(peer, data);
  }
  std::unique_ptr<Operation> start(Verb verb) override;

  [[nodiscard]] Backend& host() const noexcept { return host_; }
  [[nodiscard]] const PeerBuffers& buffers() const noexcept { return *buffers_; }
  /// See PeerBuffers::close().
  void close() noexcept override {
    closed_ = true;
    buffers_->close();
  }
  /// An operation was dropped: streams may still be in the buffers.
  void interrupted() noexcept { interrupted_ = true; }

 private:
  /// Specialised for what it has a way of its own for.
  template <class Of>
  std::unique_ptr<Operation> perform(Of verb) {
    return rest_.start(std::move(verb));
  }
  [[nodiscard]] bool on_host(const void* address) const noexcept;

  Backend& host_;
  DeviceBackend& rest_;
  std::unique_ptr<PeerBuffers> buffers_;
  bool closed_ = false;
  bool interrupted_ = false;
};

/// Ways of the bytes of one operation.
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

/// Copies out of each other's buffers, chunk after chunk: while the readers are in one slot, the
/// owner fills the other. The members meet on the host once for every chunk, and once at the end:
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
