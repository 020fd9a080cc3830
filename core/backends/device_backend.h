/// The contract of backends whose tensors lie in memory of devices, and of opening one for a set.
///
/// Their operations start in the order of streams. Rows of registry.cpp say which exist; every set
/// also has the staged one, which does what they leave.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "backends/backend.h"
#include "backends/operation.h"
#include "devices/devices.h"

namespace farandole {

/// A tensor of which the host works on a copy. Both ends may lie in any memory.
struct HostedTensor {
  const std::byte* in = nullptr;
  std::size_t in_bytes = 0;
  std::byte* out = nullptr;
  std::size_t out_bytes = 0;  ///< at most `in_bytes`
};
/// Starts work on the copies, by tensor; results are left in them.
using HostWork = std::function<std::unique_ptr<Operation>(const std::vector<std::byte*>& copies)>;

class DeviceBackend : public Backend {
 public:
  using Backend::Backend;

  /// Null on a rank that takes part without a device.
  [[nodiscard]] virtual EngineDevice* device() const noexcept = 0;
  /// The stream that its results are written in. Needs a device.
  [[nodiscard]] virtual void* stream() const noexcept = 0;
  /// Return whether it can do that. The same on all members: else the set's batch is staged.
  [[nodiscard]] virtual bool serves(Kind /*kind*/, const Reduction& /*reduction*/) const noexcept {
    return true;
  }
  /// Return whether its operations take tensors of that device of this rank.
  [[nodiscard]] virtual bool takes(const EngineDevice& /*device*/) const noexcept { return true; }
  /// What is started from now on comes after that point of a device.
  virtual Result<void> follow(std::shared_ptr<const DevicePoint> point) = 0;
  /// Where everything that was started and is done will have ended. Needs a device.
  [[nodiscard]] Result<std::shared_ptr<DevicePoint>> end() const {
    return device()->context().point(stream());
  }
  /// Copies tensors to the host as a whole, and the results of `work` back.
  [[nodiscard]] virtual std::unique_ptr<Operation> run_on_host(
      std::vector<HostedTensor> /*tensors*/, HostWork /*work*/) {
    return failed_operation(Code::Internal, std::string(name()) + " copies nothing to the host");
  }

  /// A sentence for the log: what travels by it. Empty: nothing needs to be said.
  [[nodiscard]] virtual std::string describe() const { return {}; }
  /// What its operation waits for beside the host's backend, for messages; or empty.
  [[nodiscard]] virtual std::string_view doing() const noexcept { return {}; }

  /// The set has had its last batch, and its members are about to meet: memory of others is let go.
  virtual void close() noexcept {}
  /// The set is gone: what has to be reached before this may end; null: nothing.
  [[nodiscard]] virtual std::shared_ptr<const DevicePoint> outlives() const { return nullptr; }
  /// Waits for what is on streams of its own; false: it goes on beyond the deadline.
  [[nodiscard]] virtual bool settle(TimePoint /*deadline*/) { return true; }
  /// The world has failed: what is on the device ends as it is. Nothing is started afterwards.
  virtual void abort() noexcept {}
};

/// The members of a set, as those who open a backend of devices for it see them.
struct DeviceSet {
  Backend& host;          ///< serves the same members in host memory; outlives the backend
  DeviceBackend& staged;  ///< serves them with the device of this member; outlives the backend
  std::shared_ptr<EngineDevice> device;  ///< of this member; null: it takes part without one
  std::vector<std::optional<DeviceIdentity>> devices;  ///< by member; none: as above

  [[nodiscard]] std::string name_of(std::size_t member) const {
    return "rank " + std::to_string(host.members().ranks[member]);
  }
  /// "rank 1 takes part without a device"; empty: all have one.
  [[nodiscard]] std::string without_device() const {
    for (std::size_t m = 0; m < devices.size(); ++m) {
      if (!devices[m]) return name_of(m) + " takes part without a device";
    }
    return {};
  }
};

/// Opens a backend on all members of a set, or on none.
class DeviceOpening : public Operation {
 public:
  // Once it is done.

  /// Null: somebody cannot.
  [[nodiscard]] std::unique_ptr<DeviceBackend> take() { return std::move(backend_); }
  /// Who cannot, and why; the same on all members, but for details.
  [[nodiscard]] const std::string& problem() const noexcept { return problem_; }

  /// See DeviceBackend.
  [[nodiscard]] virtual std::string_view doing() const noexcept { return {}; }

 protected:
  std::unique_ptr<DeviceBackend> backend_;
  std::string problem_;
};

/// A value from each member, in order of set ranks. Both outlive the operation.
template <typename T>
[[nodiscard]] std::unique_ptr<Operation> gather_values(Backend& host, const T& own,
                                                       std::vector<T>& all) {
  static_assert(std::is_trivially_copyable_v<T>);
  GatherPlan plan;
  plan.in = {std::as_bytes(std::span(&own, 1))};
  for (T& each : all) plan.out.push_back({std::as_writable_bytes(std::span(&each, 1))});
  return host.start(std::move(plan));
}

}  // namespace farandole
