/// The rounds of all process sets of this rank, each set a lane: which may be used now, and what
/// others ask for.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string_view>
#include <vector>

#include "engine/base/engine_lock.h"
#include "engine/control/peers.h"
#include "engine/control/world.h"
#include "engine/execution/dispatcher.h"
#include "transport/proposals.h"

namespace farandole {

/// One set's.
struct Lane {
  ProcessSet set;  ///< as it was when this was opened
  std::unique_ptr<Proposals> proposals;
  PathCount* run = nullptr;  ///< what was proposed and agreed
  bool ready = false;        ///< the set has been added: all members have opened their lanes
  bool linked = false;       ///< this rank is connected with all members on other hosts
  int unused = 0;            ///< how often it has been closed since it was last wanted
};

/// Lanes are added and removed by the holder of the progress lock, with the engine lock held; so
/// either lock is enough to look at them.
class Lanes {
 public:
  explicit Lanes(Peers& peers) noexcept : peers_(peers) {}

  /// Opens the lane of a set of which this rank is a member, or of the world; nothing comes of it
  /// if the set has no fast path. `added`: while others run; then ready() tells when it may be
  /// used.
  void open(const ProcessSet& set, bool added) FARANDOLE_REQUIRES(progress_lock, engine_lock);
  void ready(std::int32_t process_set) noexcept FARANDOLE_REQUIRES(progress_lock, engine_lock);
  /// Connections have come. A lane is used once it has all of them: whoever proposes without would
  /// wait for a connection that the operation itself may not need.
  void linked() noexcept FARANDOLE_REQUIRES(progress_lock, engine_lock);
  void remove(std::int32_t process_set) FARANDOLE_REQUIRES(progress_lock, engine_lock);

  /// Null if that set has no fast path (yet).
  [[nodiscard]] Lane* find(std::int32_t process_set) const noexcept
      FARANDOLE_REQUIRES(progress_lock);
  [[nodiscard]] Lane* of_generation(std::uint32_t generation) const noexcept
      FARANDOLE_REQUIRES(progress_lock);
  /// Any thread, without a lock.
  [[nodiscard]] bool empty() const noexcept { return count_.load(std::memory_order_relaxed) == 0; }

  /// What was proposed and agreed, by path.
  [[nodiscard]] const std::map<std::string_view, PathCount>& runs() const noexcept
      FARANDOLE_REQUIRES(engine_lock) {
    return runs_;
  }
  void close() noexcept FARANDOLE_REQUIRES(engine_lock);
  /// All that have been wanted lately. The others reopen when they are: to close them again would
  /// cost every operation that goes the regular way. Between hosts nobody sees that a lane is
  /// closed, so all reopen.
  void reopen() noexcept FARANDOLE_REQUIRES(engine_lock);
  /// Answers to those who have asked; some have to wait. True: somebody got an answer.
  bool answer() noexcept FARANDOLE_REQUIRES(progress_lock, engine_lock);

  [[nodiscard]] bool asked() const noexcept FARANDOLE_REQUIRES(progress_lock);

 private:
  static constexpr int kMostUnused = 4;

  Peers& peers_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::map<std::string_view, PathCount> runs_ FARANDOLE_GUARDED_BY(engine_lock);
  std::atomic<std::size_t> count_{0};
};

}  // namespace farandole
