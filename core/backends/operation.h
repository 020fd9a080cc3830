/// A running collective as an object, so that another thread can go on with it between two steps.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
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

}  // namespace farandole
