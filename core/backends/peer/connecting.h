/// The members of a set make buffers and open those of the others. Either all can, or all know who
/// cannot and why.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "backends/peer/buffers.h"

namespace farandole {

class PeerConnecting final : public Operation {
 public:
  /// `host`: serves the same members, and outlives this. `devices`: that of each member.
  PeerConnecting(Backend& host, std::shared_ptr<EngineDevice> device,
                 std::vector<DeviceIdentity> devices);
  ~PeerConnecting() override;

  Result<Step> step() override;
  [[nodiscard]] std::vector<Rank> waiting_for() const override { return step_->waiting_for(); }
  [[nodiscard]] std::optional<TimePoint> due() const override { return step_->due(); }

  // Once it is done.

  /// Null: somebody cannot.
  [[nodiscard]] std::unique_ptr<PeerBuffers> take() { return std::move(buffers_); }
  /// Who cannot, and why; the same text on all members.
  [[nodiscard]] const std::string& problem() const noexcept { return problem_; }

 private:
  enum class Phase : std::uint8_t { Telling, Answering, Closing };
  struct Notice;
  struct Answer;
  [[nodiscard]] Result<void> prepare();
  [[nodiscard]] Result<void> open();
  [[nodiscard]] std::string first_problem() const;
  void answer();
  [[nodiscard]] std::string name_of(std::size_t member) const;

  Backend& host_;
  std::shared_ptr<EngineDevice> device_;
  std::vector<DeviceIdentity> devices_;
  Phase phase_ = Phase::Telling;
  std::unique_ptr<Notice> own_notice_;
  std::vector<Notice> notices_;  // by member
  std::unique_ptr<Answer> own_answer_;
  std::vector<Answer> answers_;  // by member
  std::unique_ptr<IpcBuffer> own_;
  std::vector<PeerBuffers::Other> others_;
  std::unique_ptr<PeerBuffers> buffers_;
  std::string problem_;
  std::unique_ptr<Operation> step_;  // ends before what it writes
};

}  // namespace farandole
