/// Where threads that submit and the holder of the baton meet: the negotiator, what it wants done
/// until somebody carries it out, and the lock of the engine.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/control/bypass.h"
#include "engine/control/negotiator.h"
#include "result.h"

namespace rueda {

class Negotiation {
 public:
  /// An error: a process set that shall exist from the start is refused. The rest as for
  /// Negotiator.
  Result<void> open(const std::vector<std::vector<Rank>>& groups,
                    const std::vector<std::string>& hosts, Rank self,
                    const NegotiatorOptions& options, Timeline* timeline);
  /// There is a way around the negotiator. Before anything is submitted.
  void use(Bypass* bypass) noexcept { bypass_ = bypass; }

  /// The one lock of an engine: what is submitted, decided or offered changes together. Every
  /// submission takes it, so it is held for moments only, and nobody calls out or waits under it.
  [[nodiscard]] std::mutex& mutex() const noexcept { return mutex_; }

  // With the lock held.

  /// Null before open().
  [[nodiscard]] Negotiator* negotiator() const noexcept { return negotiator_.get(); }
  [[nodiscard]] Effects& effects() noexcept { return effects_; }
  [[nodiscard]] Bypass* bypass() const noexcept { return bypass_; }
  /// After every call of the negotiator that may have changed something. True: there is something
  /// to be carried out.
  bool moved();
  /// The same, after a submission: this rank goes the regular way.
  bool submitted();
  /// There is something for whoever drives, also if there are no effects.
  void alert() noexcept { pending_.store(true, std::memory_order_seq_cst); }
  /// Why nothing runs any more: the first cause.
  [[nodiscard]] const std::optional<Error>& failed() const noexcept { return failed_; }
  void fail(Error error) { failed_ = std::move(error); }
  /// What is to be carried out now.
  void take(Effects& effects);

  // Any thread.

  /// See Engine.
  [[nodiscard]] std::optional<Error> failure() const;
  [[nodiscard]] std::map<std::int32_t, std::vector<Rank>> process_sets() const;
  /// alert() or moved() has found something since take().
  [[nodiscard]] bool pending() const noexcept { return pending_.load(std::memory_order_seq_cst); }
  /// When the negotiator wants to look at the clock.
  [[nodiscard]] std::optional<TimePoint> next_tick() const noexcept;

 private:
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

  mutable std::mutex mutex_;  // guards what is not atomic
  std::unique_ptr<Negotiator> negotiator_;
  Bypass* bypass_ = nullptr;  // null: there is none
  Effects effects_;
  std::optional<Error> failed_;

  std::atomic<bool> pending_{false};
  std::atomic<std::int64_t> next_tick_ns_{kNever};
};

}  // namespace rueda
