/// A communicator of NCCL, and how the members of a set make one.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backends/device_backend.h"
#include "backends/device_options.h"
#include "backends/nccl/library.h"

namespace farandole {

/// How often one looks whether NCCL has done what it does on threads of its own: put an operation
/// on the stream, or connect the ranks, which takes longer.
constexpr auto kNcclLook = std::chrono::microseconds(50);
constexpr auto kNcclConnectLook = std::chrono::microseconds(500);

/// A communicator. Any call of NCCL may come back before it has done its work.
class NcclCommunicator {
 public:
  NcclCommunicator(std::shared_ptr<const NcclLibrary> library,
                   std::shared_ptr<EngineDevice> device) noexcept
      : library_(std::move(library)), device_(std::move(device)) {}
  ~NcclCommunicator();
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  /// Begins to connect; settled() tells when it has. Until then it ends by abort().
  Result<void> open(int size, const NcclId& id, int rank);
  /// Whether what was called has done its work; fails as it did, or as the communicator has since.
  [[nodiscard]] Result<bool> settled() const;
  [[nodiscard]] Result<void> check(NcclStatus status, const char* what) const;
  /// All that is under way ends as it is. Idempotent.
  void abort() noexcept;

  [[nodiscard]] const NcclLibrary& library() const noexcept { return *library_; }
  [[nodiscard]] const std::shared_ptr<EngineDevice>& device() const noexcept { return device_; }
  [[nodiscard]] NcclComm get() const noexcept { return comm_; }

 private:
  std::shared_ptr<const NcclLibrary> library_;
  std::shared_ptr<EngineDevice> device_;
  NcclComm comm_ = nullptr;
  bool aborted_ = false;
};

/// Return why NCCL cannot serve such a set; empty: it can, if the members have it. The same on all.
[[nodiscard]] std::string obstacle_to_nccl(const DeviceSet& set);

/// The members compare their NCCL and connect.
class NcclConnecting final : public DeviceOpening {
 public:
  /// All members have a device, each its own.
  NcclConnecting(const DeviceSet& set, const DeviceOptions& options);
  /// Members that are still to come never will: without them nothing but this ends.
  ~NcclConnecting() override;

  Result<Step> step() override;
  [[nodiscard]] std::vector<Rank> waiting_for() const override {
    return step_ ? step_->waiting_for() : host_.members().ranks;
  }
  [[nodiscard]] std::optional<TimePoint> due() const override {
    return step_ ? step_->due() : due_;
  }
  [[nodiscard]] std::string_view doing() const noexcept override;

 private:
  enum class Phase : std::uint8_t { Comparing, Naming, Connecting };
  [[nodiscard]] std::string obstacle() const;
  Result<Step> name();
  Result<Step> connect();
  Result<Step> settle();

  Backend& host_;
  std::shared_ptr<EngineDevice> device_;
  const bool early_;
  std::shared_ptr<const NcclLibrary> library_;  // null: this member has none
  std::string missing_;                         // why
  std::int32_t version_ = 0;                    // of library_
  std::vector<std::int32_t> versions_;          // by member; 0: it has none
  NcclId id_{};
  Phase phase_ = Phase::Comparing;
  std::unique_ptr<NcclCommunicator> communicator_;  // while it connects
  std::optional<TimePoint> due_;                    // the same
  std::unique_ptr<Operation> step_;                 // until then; ends before what it writes
};

/// See registry.h.
[[nodiscard]] std::unique_ptr<DeviceOpening> open_nccl(const DeviceSet& set,
                                                       const DeviceOptions& options);

}  // namespace farandole
