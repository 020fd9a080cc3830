/// The stall check: warns about operations that some ranks have submitted and others have not.
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

/// Decides when to warn, and writes the text. The coordinator tells it what waits.
class StallMonitor {
 public:
  /// Zero `warning`: off. Zero `shutdown`: only warns. A `shutdown` shorter than `warning` is
  /// ignored. `who` describes a rank in messages ("rank 3 (host b)"); null: by its number alone.
  StallMonitor(Duration warning, Duration shutdown, std::function<std::string(Rank)> who = nullptr);

  /// What is wrong with the settings; empty if nothing.
  [[nodiscard]] std::string complaint() const;
  [[nodiscard]] bool enabled() const noexcept { return warning_ > Duration::zero(); }
  [[nodiscard]] Duration warning() const noexcept { return warning_; }
  /// When check() is due if the oldest operation has waited since `oldest`.
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
