/// Members of one host that copy from each other's device memory: see decision 63.
///
/// It moves bytes. What it cannot do (reductions) another backend of devices does.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "backends/device_backend.h"
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

}  // namespace farandole
