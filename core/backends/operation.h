/// A collective under way, as an object: it can change hands between two steps.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "result.h"

namespace rueda {

enum class Step : std::uint8_t {
  Blocked,   ///< nothing could be done; somebody else has to move first
  Advanced,  ///< about one chunk of work was done; call again
  Done,      ///< complete: outputs are written, inputs no longer read
};

/// Driven by the holder of the baton: step() never blocks and never sleeps.
class Operation {
 public:
  virtual ~Operation() = default;
  [[nodiscard]] virtual Result<Step> step() = 0;
  /// Which way it took, where the size alone does not tell (Backend::path()); else empty.
  /// Meaningful after Done.
  [[nodiscard]] virtual std::string_view path() const { return {}; }
  /// All members have agreed that it cannot be done: nothing was moved, and the same error holds on
  /// each of them. Meaningful after Done.
  [[nodiscard]] virtual std::optional<Error> refusal() const { return std::nullopt; }
  /// Ranks (global numbers) whose move is awaited, for messages. Meaningful after Blocked.
  [[nodiscard]] virtual std::vector<Rank> waiting_for() const { return {}; }
};

}  // namespace rueda
