/// A running collective as an object, so that another thread can go on with it between two steps.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "result.h"

namespace farandole {

enum class Step : std::uint8_t {
  Blocked,   ///< nothing could be done: a peer has to move first
  Advanced,  ///< about one chunk of work was done; call again
  Done,      ///< complete: outputs are written, inputs no longer read
};

/// Stepped by the holder of the progress lock: step() never blocks and never sleeps.
class Operation {
 public:
  virtual ~Operation() = default;
  [[nodiscard]] virtual Result<Step> step() = 0;
  /// When to step again though nothing has arrived: for what tells nobody that it is done.
  /// Meaningful after Blocked. An operation that steps another one hands on what that one says.
  [[nodiscard]] virtual std::optional<TimePoint> due() const { return std::nullopt; }
  /// The data path it took, if that does not follow from kind and size (Backend::path()); else
  /// empty. Meaningful after Done.
  [[nodiscard]] virtual std::string_view path() const { return {}; }
  /// The error if all members have agreed that the operation cannot be done. Nothing was moved, and
  /// every member has the same error. Meaningful after Done.
  [[nodiscard]] virtual std::optional<Error> refusal() const { return std::nullopt; }
  /// Global ranks that this rank waits for; for messages. Meaningful after Blocked.
  [[nodiscard]] virtual std::vector<Rank> waiting_for() const { return {}; }
};

/// An operation that cannot start: its first step returns the error.
class FailedOperation final : public Operation {
 public:
  explicit FailedOperation(Error reason) : reason_(std::move(reason)) {}
  [[nodiscard]] Result<Step> step() override { return reason_; }

 private:
  Error reason_;
};

[[nodiscard]] inline std::unique_ptr<Operation> failed_operation(Code code, std::string message,
                                                                 Rank peer = -1) {
  Error error;
  error.code = code;
  error.message = std::move(message);
  error.peer = peer;
  return std::make_unique<FailedOperation>(std::move(error));
}

}  // namespace farandole
