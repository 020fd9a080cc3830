/// Operations whose members first tell each other how much each brings.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "backends/backend.h"
#include "collectives/task.h"

namespace farandole {

/// Every member brings equally many numbers; where they are known already, this step is left out.
/// When every member has all numbers, each gets memory for its result. That may fail for large
/// results, so the members then tell each other whether it did. Then the operation proper is made,
/// or all members refuse it together.
class Counted : public Operation {
 public:
  /// The members agree if a member's result has so many bytes or more. An agreement would slow
  /// smaller operations down; there a rank without memory ends the world.
  static constexpr std::size_t kAgreed = std::size_t{4} << 20;

  Result<Step> step() final;
  std::vector<Rank> waiting_for() const final {
    return exchange_ ? exchange_->waiting_for() : std::vector<Rank>();
  }
  std::optional<TimePoint> due() const final { return exchange_ ? exchange_->due() : std::nullopt; }
  std::string_view path() const final { return exchange_ ? exchange_->path() : ""; }
  std::optional<Error> refusal() const final { return refusal_; }

 protected:
  /// `own`: the numbers of this member. The tasks tell those of all members, if they know them.
  Counted(Backend& backend, std::vector<std::int64_t> own, std::span<const Task> tasks);

  /// Where the input of the task begins, by member, in its memory; empty: not known.
  [[nodiscard]] static std::span<const std::uint64_t> addresses(const Task& task) {
    return task.told == nullptr ? std::span<const std::uint64_t>() : task.told->addresses;
  }
  [[nodiscard]] std::int64_t number(std::size_t member, std::size_t which) const {
    return all_[member * own_.size() + which];
  }
  [[nodiscard]] Backend& backend() const noexcept { return backend_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }

 private:
  enum class Phase : std::uint8_t { Counting, Agreeing, Moving };

  // Each is called once, after number() has become valid.
  /// Memory for the result of this member.
  virtual Result<void> prepare() = 0;
  /// Bytes of a member's result; the same number on all members. SIZE_MAX: too many to count.
  [[nodiscard]] virtual std::size_t bytes_for(std::size_t member) const = 0;
  /// The operation proper. After prepare().
  virtual std::unique_ptr<Operation> move() = 0;

  [[nodiscard]] bool known(std::span<const Task> tasks);
  [[nodiscard]] bool large() const;
  void agree(bool ready);
  void refuse();

  Backend& backend_;
  std::size_t size_;
  std::vector<std::int64_t> own_;
  std::vector<std::int64_t> all_;        // by member
  std::unique_ptr<Operation> exchange_;  // null: all numbers are known from the start
  Phase phase_ = Phase::Counting;
  std::int64_t own_word_ = 0;        // not 0: this member has memory
  std::vector<std::int64_t> words_;  // by member
  std::optional<Error> refusal_;
};

}  // namespace farandole
