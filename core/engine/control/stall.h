/// The stall check: warns about operations that some ranks have submitted and others have not.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/base/rank_set.h"
#include "result.h"
#include "types.h"

namespace farandole {

/// An operation that waits for ranks.
struct Waiting {
  std::string name;
  TimePoint since;
  std::vector<Rank> missing;  ///< ascending
  RankSet reported = {};      ///< the others, who wait
};

struct StallReport {
  std::string text;
  std::optional<Error> fatal;  ///< something waited past the shutdown time
};

/// Decides when to warn, and writes the text. The coordinator tells it what waits.
class StallMonitor {
 public:
  /// Zero `warning`: off. Zero `shutdown`: only warns; else it is not shorter than `warning`, as
  /// the settings see to. `who` describes a rank in messages; null: by its number alone.
  StallMonitor(Duration warning, Duration shutdown, std::function<std::string(Rank)> who = nullptr);

  [[nodiscard]] bool enabled() const noexcept { return warning_ > Duration::zero(); }
  [[nodiscard]] Duration warning() const noexcept { return warning_; }
  /// When check() is due if the oldest operation has waited since `oldest`.
  [[nodiscard]] TimePoint due(TimePoint oldest) const;
  [[nodiscard]] std::optional<StallReport> check(TimePoint now, std::span<const Waiting> waiting);

 private:
  [[nodiscard]] std::string names(std::span<const Rank> ranks) const;

  Duration warning_;
  Duration shutdown_;
  std::function<std::string(Rank)> who_;
  std::optional<TimePoint> last_check_;
};

}  // namespace farandole
