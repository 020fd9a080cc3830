/// This rank's part in the negotiation: its submissions are held until they are due, then reported,
/// then dispatched or failed.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/base/hash_index.h"
#include "engine/control/collector.h"
#include "engine/control/negotiator.h"
#include "engine/control/response_cache.h"
#include "engine/control/world.h"

namespace farandole {

class Participant {
 public:
  Participant(const World& world, ResponseCache& cache, const NegotiatorOptions& options);

  /// Accepts all of them or, with an error, none.
  Result<void> submit(std::span<const Key> keys, std::span<const Signature> signatures,
                      std::span<const std::uint64_t> tickets, bool waited, TimePoint now);
  void mark_waited(std::uint64_t ticket);
  void mark_all_waited();
  void mark_demanded(std::span<const std::uint64_t> tickets);
  /// Nobody waits for it any more: the wait was interrupted.
  void mark_left(std::uint64_t ticket);
  /// Return whether all threads of this rank that could submit something wait for operations that
  /// this rank has submitted here.
  void stand_still(bool still);
  /// The next publish() reports what is held, although nobody waits for it.
  void flush_held() noexcept { due_ = due_ || !held_.empty(); }
  /// `ticket` fails if the world ends before all have joined.
  Result<void> join(std::uint64_t ticket);
  void leave() noexcept { leaving_ = true; }

  /// Reports what is held, if that is due.
  void publish(Collector& collector, TimePoint now);
  void tick(Collector& collector, std::uint64_t position, TimePoint now);
  [[nodiscard]] std::optional<TimePoint> next_tick() const;

  // Entries of the dispatch stream. `key_state` is null if this rank does not know the key.
  void stream_moved(TimePoint now) noexcept;  ///< an entry was applied, whichever ranks it concerns
  Result<void> dispatch(KeyState* key_state, const CanonicalSignaturePtr& canonical, Dispatch& out);
  void fail(KeyState& key_state, Error error, Effects& effects);
  /// Fails what this rank has in flight on the set. `key_states`: those of all its keys.
  void set_removed(std::span<KeyState* const> key_states, const ProcessSet& set, Effects& effects);
  void all_joined() noexcept { joined_ = false; }
  void stop(wire::Departure by, Effects& effects);

  /// Notes the number of an operation that is matched by count.
  void count(const Key& key);
  /// The number of this rank's next operation of that kind in the set.
  [[nodiscard]] std::uint64_t next_count(std::uint32_t generation, Kind kind) const;

  /// The error of operations that fail because the world has ended. `needed`: how far all ranks
  /// have come with that one; null: says nothing about it.
  [[nodiscard]] Error shut_down(const Key* needed = nullptr) const;
  [[nodiscard]] bool stopped() const noexcept { return stopped_by_.has_value(); }
  /// An operation of this rank has failed because the world has ended.
  [[nodiscard]] bool has_failed_operations() const noexcept { return has_failed_operations_; }
  [[nodiscard]] bool leaving() const noexcept { return leaving_; }
  [[nodiscard]] bool joined() const noexcept { return joined_; }
  /// Nothing is in flight, and this rank may submit.
  [[nodiscard]] bool resting() const noexcept {
    return pending() == 0 && !joined_ && !leaving_ && !stopped();
  }
  [[nodiscard]] std::size_t pending() const noexcept { return by_ticket_.size(); }
  /// In the order of their tickets.
  [[nodiscard]] std::vector<KeyState*> pending_keys() const;

 private:
  Error refused(const Key* key);
  [[nodiscard]] std::optional<std::uint64_t> times_done(const Key& key) const;
  [[nodiscard]] std::string lead(const Key& key) const;
  void mark_waited(KeyState& key_state) noexcept;
  void complete(KeyState& key_state) noexcept;
  void forget(KeyState& key_state) noexcept;
  [[nodiscard]] KeyState* in_flight(std::uint64_t ticket) const;
  [[nodiscard]] std::optional<TimePoint> blocked_at() const;
  void retract() noexcept;

  const World& world_;
  ResponseCache& cache_;
  const std::size_t batch_bytes_;
  const Duration cycle_;
  const Duration deadlock_;
  const RankSet self_;

  HashIndex<KeyState> by_ticket_;
  std::vector<KeyState*> held_;  // submitted, not reported yet
  std::size_t held_bytes_ = 0;
  TimePoint held_since_;
  bool due_ = false;

  std::size_t waited_ = 0;    // submissions in flight that somebody waits for
  std::size_t demanded_ = 0;  // … that a graph goes on after
  TimePoint quiet_since_;     // when something was last submitted or dispatched
  bool announced_ = false;    // the coordinator was told that this rank is blocked
  bool still_ = false;        // no thread could submit anything
  bool certain_ = false;      // the coordinator was told that, too
  bool retract_ = false;      // … and must be told that it no longer is

  bool joined_ = false;
  std::uint64_t join_ticket_ = 0;
  std::map<std::pair<std::uint32_t, Kind>, std::uint64_t> counts_;  // by generation of the set
  bool leaving_ = false;
  std::optional<wire::Departure> stopped_by_;
  bool has_failed_operations_ = false;
};

}  // namespace farandole
