/// Says who is late: operations that some ranks have submitted and others have not.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "result.h"
#include "types.h"

namespace rueda {

/// An operation that waits for ranks.
struct Waiting {
  std::string name;
  TimePoint since;
  std::vector<Rank> missing;  ///< ascending
};

struct StallReport {
  std::string text;
  std::optional<Error> fatal;  ///< something waited past the shutdown time
};

/// Decides when to speak and what to say; the caller of the negotiation tells it what waits.
class StallMonitor {
 public:
  /// Zero `warning`: off. Zero `shutdown`: only warns. A shutdown before the warning is ignored.
  /// `who`: "rank 3 (host b)", for messages; null: the number alone.
  StallMonitor(Duration warning, Duration shutdown, std::function<std::string(Rank)> who = nullptr);

  /// What is wrong with the settings; empty if nothing.
  [[nodiscard]] std::string complaint() const;
  [[nodiscard]] bool enabled() const noexcept { return warning_ > Duration::zero(); }
  [[nodiscard]] Duration warning() const noexcept { return warning_; }
  /// When check() has something to do if the oldest operation waits since then.
  [[nodiscard]] TimePoint due(TimePoint oldest) const;
  [[nodiscard]] std::optional<StallReport> check(TimePoint now, std::span<const Waiting> waiting);

 private:
  [[nodiscard]] std::string names(std::span<const Rank> ranks) const;

  Duration warning_;
  Duration shutdown_;
  bool ignored_ = false;
  std::function<std::string(Rank)> who_;
  std::optional<TimePoint> last_check_;
};

}  // namespace rueda
