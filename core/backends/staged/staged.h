/// Members with memory of devices, over a backend that works on host memory.
///
/// Chunk by chunk, so copies and the host's work overlap. What is computed and moved is what the
/// host backend does, so the bits are the same.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backends/device_backend.h"
#include "devices/devices.h"

namespace farandole {

class StagedPlan;

class StagedBackend final : public DeviceBackend {
 public:
  /// `host` serves the same members and outlives this. `device`: null on a rank without one, which
  /// takes part with host memory.
  StagedBackend(Backend& host, std::shared_ptr<EngineDevice> device);

  [[nodiscard]] std::string_view name() const noexcept override { return name_; }
  [[nodiscard]] std::string_view path(Kind /*kind*/,
                                      std::size_t /*bytes*/) const noexcept override {
    return name_;
  }
  [[nodiscard]] EngineDevice* device() const noexcept override { return device_.get(); }

  void begin(OperationTag operation) override { host_.begin(operation); }
  std::unique_ptr<Operation> send(int peer, std::span<const std::byte> data) override;
  std::unique_ptr<Operation> recv(int peer, std::span<std::byte> data) override;
  std::unique_ptr<Operation> start(Verb verb) override;
  [[nodiscard]] std::unique_ptr<Operation> run_on_host(std::vector<HostedTensor> tensors,
                                                       HostWork work) override;

  [[nodiscard]] void* stream() const noexcept override { return device_->to_device(); }
  Result<void> follow(std::shared_ptr<const DevicePoint> point) override;

 private:
  /// A plan as an operation of this backend.
  [[nodiscard]] std::unique_ptr<Operation> run(std::unique_ptr<StagedPlan> plan);
  template <class Of>
  std::unique_ptr<Operation> perform(Of verb);
  Backend& host_;
  std::shared_ptr<EngineDevice> device_;
  std::string name_;
};

}  // namespace farandole
