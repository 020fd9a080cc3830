/// Connections that are made when something needs them: between the engine, which asks, and whoever
/// makes them in a thread of its own (bootstrap).
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "mutex.h"
#include "result.h"
#include "transport/fd.h"
#include "transport/seal.h"

namespace farandole {

/// Any thread, except where noted.
class LateConnections {
 public:
  /// All connections to one rank, or why there are none.
  struct Arrival {
    Rank rank = -1;
    std::vector<Fd> streams{};
    std::vector<SealKeys> keys{};  ///< of each stream; empty: the streams are not sealed
    std::optional<Error> failure{};
  };

  [[nodiscard]] static Result<std::unique_ptr<LateConnections>> open();

  /// The connections to that rank are needed. Has an effect once for each rank.
  void ask(Rank rank) noexcept;
  /// Readable if asked() has anything to return.
  [[nodiscard]] int bell() const noexcept { return bell_.get(); }
  /// Ranks that were asked for since the last call.
  [[nodiscard]] std::vector<Rank> asked();

  /// Leaves connections for the engine, which must be woken then.
  void bring(Arrival arrival);
  /// True if take() has anything to return.
  [[nodiscard]] bool arrived() const noexcept { return arrived_.load(std::memory_order_seq_cst); }
  [[nodiscard]] std::vector<Arrival> take();

 private:
  explicit LateConnections(Fd bell) : bell_(std::move(bell)) {}

  Fd bell_;
  Mutex mutex_;
  std::set<Rank> known_ FARANDOLE_GUARDED_BY(mutex_);
  std::vector<Rank> asked_ FARANDOLE_GUARDED_BY(mutex_);
  std::vector<Arrival> arrivals_ FARANDOLE_GUARDED_BY(mutex_);
  std::atomic<bool> arrived_{false};  // written with the mutex held
};

}  // namespace farandole
