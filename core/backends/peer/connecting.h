/// The members of a set make buffers and open those of the others. Either all can, or all know who
/// cannot and why.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backends/device_backend.h"
#include "backends/device_options.h"
#include "backends/peer/buffers.h"

namespace farandole {

/// Return why no member can copy from another one, as far as all know it before they try; empty:
/// nothing. The same on all.
[[nodiscard]] std::string obstacle_to_peer(const DeviceSet& set);

class PeerConnecting final : public DeviceOpening {
 public:
  /// All members have a device, and are on one host.
  explicit PeerConnecting(DeviceSet set);
  ~PeerConnecting() override;

  Result<Step> step() override;
  [[nodiscard]] std::vector<Rank> waiting_for() const override { return step_->waiting_for(); }
  [[nodiscard]] std::optional<TimePoint> due() const override { return step_->due(); }

 private:
  enum class Phase : std::uint8_t { Telling, Answering, Closing };
  struct Notice;
  struct Answer;
  [[nodiscard]] Result<void> prepare();
  [[nodiscard]] Result<void> open();
  [[nodiscard]] std::string first_problem() const;
  void answer();

  DeviceSet set_;
  Phase phase_ = Phase::Telling;
  std::unique_ptr<Notice> own_notice_;
  std::vector<Notice> notices_;  // by member
  std::unique_ptr<Answer> own_answer_;
  std::vector<Answer> answers_;  // by member
  std::unique_ptr<IpcBuffer> own_;
  std::vector<PeerBuffers::Other> others_;
  std::unique_ptr<Operation> step_;  // ends before what it writes
};

/// See registry.h.
[[nodiscard]] std::unique_ptr<DeviceOpening> open_peer(const DeviceSet& set,
                                                       const DeviceOptions& options);

}  // namespace farandole
