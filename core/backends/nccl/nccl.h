/// Members with a device each, by NCCL. Sums are in NCCL's order: see decision 62.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "backends/device_backend.h"
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
  /// Waits for what is on the stream: it may come after a kernel of the user that never ends.
  /// False: the time was over before it. Then the communicator stays for ever.
  [[nodiscard]] bool settle(TimePoint deadline);

  /// Whether NCCL can do that.
  [[nodiscard]] static bool serves(Kind kind, DType dtype, ReduceOp op, double prescale,
                                   double postscale) noexcept;

  [[nodiscard]] std::string_view name() const noexcept override { return "nccl"; }
  [[nodiscard]] std::string_view path(Kind, std::size_t) const noexcept override { return "nccl"; }
  [[nodiscard]] EngineDevice* device() const noexcept override {
    return communicator_->device().get();
  }
  void begin(OperationTag operation) override { host_.begin(operation); }
  std::unique_ptr<Operation> send(int peer, std::span<const std::byte> data) override;
  std::unique_ptr<Operation> recv(int peer, std::span<std::byte> data) override;
  std::unique_ptr<Operation> start(Verb verb) override;

  Result<void> follow(std::shared_ptr<const DevicePoint> point) override;
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

}  // namespace farandole
