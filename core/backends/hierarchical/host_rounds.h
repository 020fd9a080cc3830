/// Operations inside hosts and between them that overlap, round by round.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "backends/operation.h"

namespace farandole {

/// Every round has three stages, each of them an operation of another backend or nothing:
///
///   before  inside the host: what the carriers need comes to them
///   across  between the hosts, among the carriers
///   after   inside the host: what the carriers got goes to everybody
///
/// Operations of one backend run one after another, in one order on all its members. Between hosts
/// that is round after round. Inside a host it is
///     before 0, before 1, after 0, before 2, after 1, before 3 …
/// whatever arrives first where: so the network has the next round to work on while memory is busy
/// with the last one, and nothing depends on timing.
class HostRounds : public Operation {
 public:
  Result<Step> step() final;
  std::vector<Rank> waiting_for() const final;

 protected:
  /// The same number on every member of every host. None: nothing to do.
  explicit HostRounds(std::size_t rounds) noexcept : rounds_(rounds) {}

 private:
  static constexpr std::size_t kAhead = 2;

  /// Null: this member has nothing to do there.
  virtual std::unique_ptr<Operation> before(std::size_t round) = 0;
  virtual std::unique_ptr<Operation> across(std::size_t round) = 0;
  virtual std::unique_ptr<Operation> after(std::size_t round) = 0;
  /// All stages of that round are over.
  virtual void finish(std::size_t /*round*/) {}

  [[nodiscard]] Result<bool> step_inside();
  [[nodiscard]] Result<bool> step_across();

  std::size_t rounds_;
  std::unique_ptr<Operation> inside_;
  std::unique_ptr<Operation> across_;
  bool preparing_ = false;    // what inside_ is: before or after
  std::size_t prepared_ = 0;  // rounds that have passed each stage
  std::size_t crossed_ = 0;
  std::size_t finished_ = 0;
};

}  // namespace farandole
