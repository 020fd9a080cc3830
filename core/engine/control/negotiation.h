/// The negotiator, shared by threads that submit and the holder of the progress lock: with the
/// engine lock, and with the effects that the holder has yet to carry out.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "collectives/signature.h"
#include "engine/base/engine_lock.h"
#include "engine/control/negotiator.h"
#include "result.h"

namespace farandole {

/// What the regular path tells the fast path: when this rank may propose operations there, and
/// when it must not.
class FastPathGate {
 public:
  virtual ~FastPathGate() = default;
  /// This rank has submitted something on the regular path, or has ended. It makes no proposals
  /// until reopen().
  virtual void close() FARANDOLE_REQUIRES(engine_lock) = 0;
  /// This rank has nothing in flight on the regular path.
  virtual void reopen() FARANDOLE_REQUIRES(engine_lock) = 0;
  /// A proposal of this rank has no outcome yet: it comes before all that is submitted now.
  [[nodiscard]] virtual bool open() const noexcept FARANDOLE_REQUIRES(engine_lock) = 0;
  /// True if that key is in flight on the fast path. The negotiator does not know about it.
  [[nodiscard]] virtual bool has_proposed(const Key& key) const FARANDOLE_REQUIRES(engine_lock) = 0;
};

class Negotiation {
 public:
  /// Creates the negotiator. Fails if one of the initial process sets is refused.
  Result<void> open(const std::vector<std::vector<Rank>>& groups,
                    const std::vector<std::string>& hosts, Rank self,
                    const NegotiatorOptions& options, Timeline* timeline);
  /// Tells the negotiation that there is a fast path. Call it before anything is submitted.
  void use(FastPathGate* fast_path) {
    const EngineLock::Guard lock(mutex_);
    fast_path_ = fast_path;
  }

  /// The engine lock.
  [[nodiscard]] EngineLock& mutex() const noexcept { return mutex_; }

  /// Null before open().
  [[nodiscard]] Negotiator* negotiator() const noexcept FARANDOLE_REQUIRES(engine_lock) {
    return negotiator_.get();
  }
  [[nodiscard]] Effects& effects() noexcept FARANDOLE_REQUIRES(engine_lock) { return effects_; }
  [[nodiscard]] FastPathGate* fast_path() const noexcept FARANDOLE_REQUIRES(engine_lock) {
    return fast_path_;
  }
  /// Call this after every call of the negotiator that may have changed something. True: there are
  /// effects to carry out.
  bool moved() FARANDOLE_REQUIRES(engine_lock);
  /// The same after a submission on the regular path, which closes the fast path.
  bool submitted() FARANDOLE_REQUIRES(engine_lock);
  /// The first cause of the failure that ended the world; empty: it has not failed.
  [[nodiscard]] const std::optional<Error>& failed() const noexcept
      FARANDOLE_REQUIRES(engine_lock) {
    return failed_;
  }
  void fail(Error error) FARANDOLE_REQUIRES(engine_lock) { failed_ = std::move(error); }
  /// Moves the effects out, for the one who carries them out.
  void take(Effects& effects) FARANDOLE_REQUIRES(engine_lock);

  // Any thread, with the engine lock or without it.

  /// Makes pending() true although there are no effects.
  void alert() noexcept { pending_.store(true, std::memory_order_seq_cst); }
  /// True if alert() was called, or moved() found effects, since the last take().
  [[nodiscard]] bool pending() const noexcept { return pending_.load(std::memory_order_seq_cst); }
  /// When the negotiator's tick() is due.
  [[nodiscard]] std::optional<TimePoint> next_tick() const noexcept;

  // Any thread.

  /// See Engine.
  [[nodiscard]] std::optional<Error> failure() const FARANDOLE_EXCLUDES(engine_lock);
  [[nodiscard]] std::map<std::int32_t, std::vector<Rank>> process_sets() const
      FARANDOLE_EXCLUDES(engine_lock);
  /// The world and all sets there are, as if each had just been added.
  [[nodiscard]] std::vector<SetChange> sets() const FARANDOLE_EXCLUDES(engine_lock);

 private:
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

  mutable EngineLock mutex_;
  std::unique_ptr<Negotiator> negotiator_ FARANDOLE_GUARDED_BY(engine_lock);
  FastPathGate* fast_path_ FARANDOLE_GUARDED_BY(engine_lock) = nullptr;  // null: no fast path
  Effects effects_ FARANDOLE_GUARDED_BY(engine_lock);
  std::optional<Error> failed_ FARANDOLE_GUARDED_BY(engine_lock);

  std::atomic<bool> pending_{false};
  std::atomic<std::int64_t> next_tick_ns_{kNever};
};

}  // namespace farandole
