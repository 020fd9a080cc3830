/// One group of calls of NCCL, from the stream's side: put there, and watched until it is over.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "backends/device_wait.h"
#include "backends/nccl/nccl.h"

namespace farandole {

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
