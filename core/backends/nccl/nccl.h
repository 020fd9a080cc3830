/// Members with a device each, by NCCL. Sums are in NCCL's order: see decision 62.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backends/device_backend.h"
#include "backends/device_wait.h"
#include "backends/nccl/communicator.h"

namespace farandole {

class NcclBackend final : public DeviceBackend {
 public:
  /// `host` serves the same members and outlives this. `early`: operations are done when they are
  /// on the stream, not when they have ended there.
  [[nodiscard]] static Result<std::unique_ptr<NcclBackend>> make(
      Backend& host, std::unique_ptr<NcclCommunicator> communicator, bool early);
  NcclBackend(Backend& host, std::unique_ptr<NcclCommunicator> communicator,
              std::unique_ptr<DeviceStream> stream, bool early);
  /// Waits as settle() does, unless that was in vain.
  ~NcclBackend() override;

  [[nodiscard]] std::string_view name() const noexcept override { return "nccl"; }
  [[nodiscard]] std::string_view path(Kind, std::size_t) const noexcept override { return "nccl"; }
  [[nodiscard]] EngineDevice* device() const noexcept override {
    return communicator_->device().get();
  }
  [[nodiscard]] bool serves(Kind kind, const Reduction& reduction) const noexcept override;
  [[nodiscard]] bool takes(const EngineDevice& device) const noexcept override {
    return &device == this->device();
  }
  [[nodiscard]] std::string describe() const override;
  [[nodiscard]] std::string_view doing() const noexcept override {
    return "NCCL is at work on the device (NCCL_DEBUG=INFO makes it say more)";
  }
  void begin(OperationTag operation) override { host_.begin(operation); }
  std::unique_ptr<Operation> send(int peer, std::span<const std::byte> data) override;
  std::unique_ptr<Operation> recv(int peer, std::span<std::byte> data) override;
  std::unique_ptr<Operation> start(Verb verb) override;

  Result<void> follow(std::shared_ptr<const DevicePoint> point) override;
  /// An operation may be done before its stream is, which may wait for one of the user.
  [[nodiscard]] std::shared_ptr<const DevicePoint> outlives() const override;
  /// What is on the stream may come after a kernel of the user that never ends. If the time was
  /// over before it, the communicator stays for ever.
  [[nodiscard]] bool settle(TimePoint deadline) override;
  void abort() noexcept override { communicator_->abort(); }

  [[nodiscard]] NcclCommunicator& communicator() const noexcept { return *communicator_; }
  [[nodiscard]] void* stream() const noexcept override { return stream_->get(); }
  [[nodiscard]] bool early() const noexcept { return early_; }
  /// What the operation that starts now comes after.
  [[nodiscard]] std::vector<std::shared_ptr<const DevicePoint>> take_points() {
    return std::move(points_);
  }

 private:
  template <class Of>
  std::unique_ptr<Operation> perform(Of verb);
  /// Puts calls of NCCL on the stream, as one group.
  using Calls = std::function<NcclStatus(const NcclLibrary&, NcclComm, DriverStream)>;
  [[nodiscard]] std::unique_ptr<Operation> run(Calls calls);
  [[nodiscard]] bool on_host(const void* address) const noexcept;
  /// The op of a reduction, made for its factor if need be.
  [[nodiscard]] Result<int> op_of(const Reduction& reduction);

  Backend& host_;
  std::unique_ptr<NcclCommunicator> communicator_;
  std::unique_ptr<DeviceStream> stream_;
  const bool early_;
  bool left_behind_ = false;
  std::vector<std::shared_ptr<const DevicePoint>> points_;
  std::vector<std::pair<std::pair<DType, double>, int>> factors_;  // ops by type and factor
};

/// One group of calls of NCCL, from the stream's side: put there, and watched until it is over.
class NcclOperation final : public Operation {
 public:
  /// `calls`: between the start and the end of a group. `before`, `after`: copies on the stream
  /// around it. `memory`: what these use, kept until it is over.
  struct Parts {
    std::function<NcclStatus(const NcclLibrary&, NcclComm, DriverStream)> calls;
    std::function<Result<void>()> before;
    std::function<Result<void>()> after;
    HostBuffer memory;
  };
  NcclOperation(NcclBackend& backend, Parts parts);
  ~NcclOperation() override;

  Result<Step> step() override;
  [[nodiscard]] std::vector<Rank> waiting_for() const override;
  [[nodiscard]] std::optional<TimePoint> due() const override { return due_ ? due_ : wait_.due(); }

 private:
  enum class Phase : std::uint8_t { Starting, Settling, Running, Over };
  Result<void> start();
  [[nodiscard]] Result<Step> watch();

  NcclBackend& backend_;
  Parts parts_;
  std::vector<std::shared_ptr<const DevicePoint>> points_;  // what it comes after
  Phase phase_ = Phase::Starting;
  std::shared_ptr<const DevicePoint> end_;
  DeviceWait wait_;
  std::optional<TimePoint> due_;  // while it settles
};

}  // namespace farandole
