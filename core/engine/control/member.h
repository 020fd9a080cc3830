/// This rank's own submissions: held back until somebody waits, reported, dispatched or failed.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/base/hash_index.h"
#include "engine/control/collector.h"
#include "engine/control/glossary.h"
#include "engine/control/negotiator.h"
#include "engine/control/world.h"

namespace rueda {

class Member {
 public:
  Member(const World& world, Glossary& glossary, const NegotiatorOptions& options);

  /// All or none.
  Result<void> submit(std::span<const Key> keys, std::span<const Signature> signatures,
                      std::span<const std::uint64_t> tickets, bool waited, TimePoint now);
  void want(std::uint64_t ticket);
  void want_all();
  /// What is held goes with the next publish(), though nobody is blocked.
  void demand() noexcept { due_ = due_ || !held_.empty(); }
  /// `ticket` fails if the world ends before all have joined.
  Result<void> join(std::uint64_t ticket);
  void leave() noexcept { leaving_ = true; }

  /// Reports what is held, if it is due.
  void publish(Collector& collector, TimePoint now);
  void tick(Collector& collector, std::uint64_t position, TimePoint now);
  [[nodiscard]] std::optional<TimePoint> next_tick() const;

  // Entries of the stream. `term` is null if nothing here knows the key.
  void stream_moved(TimePoint now) noexcept;  ///< something came out, for whomever
  Result<void> dispatch(Term* term, const MeaningPtr& meaning, Dispatch& out);
  void fail(Term& term, Error error, Effects& effects);
  /// What this rank has in flight on the set fails. `terms`: of the set's keys, all there are.
  void set_removed(std::span<Term* const> terms, const ProcessSet& set, Effects& effects);
  void all_joined() noexcept { joined_ = false; }
  void stop(wire::Departure by, Effects& effects);

  /// Operations that are matched by count have come as far as this key.
  void count(const Key& key);
  /// The number of this rank's next one of that kind in the set.
  [[nodiscard]] std::uint64_t next_count(std::uint32_t generation, Kind kind) const;

  /// What operations fail with once the world is over.
  [[nodiscard]] Error shut_down() const;
  [[nodiscard]] bool stopped() const noexcept { return stopped_by_.has_value(); }
  /// An operation of this rank has failed as the world is over.
  [[nodiscard]] bool let_down() const noexcept { return let_down_; }
  [[nodiscard]] bool leaving() const noexcept { return leaving_; }
  [[nodiscard]] bool joined() const noexcept { return joined_; }
  /// Nothing is in flight, and more may come.
  [[nodiscard]] bool resting() const noexcept {
    return pending() == 0 && !joined_ && !leaving_ && !stopped();
  }
  [[nodiscard]] std::size_t pending() const noexcept { return by_ticket_.size(); }
  /// In the order of their tickets.
  [[nodiscard]] std::vector<Term*> pending_terms() const;

 private:
  Error refused();
  void note_want(Term& term) noexcept;
  void complete(Term& term) noexcept;

  const World& world_;
  Glossary& glossary_;
  const std::size_t batch_bytes_;
  const Duration cycle_;
  const Duration deadlock_;
  const RankSet self_;

  HashIndex<Term> by_ticket_;
  std::vector<Term*> held_;  // submitted, not reported yet
  std::size_t held_bytes_ = 0;
  TimePoint held_since_;
  bool due_ = false;

  std::size_t waited_ = 0;  // submissions in flight that somebody waits for
  TimePoint quiet_since_;   // the last time that something was submitted or came out
  bool announced_ = false;  // the caller was told that this rank is blocked
  bool retract_ = false;    // … and has to be told that it no longer is

  bool joined_ = false;
  std::uint64_t join_ticket_ = 0;
  std::map<std::pair<std::uint32_t, Kind>, std::uint64_t> counts_;  // by generation of the set
  bool leaving_ = false;
  std::optional<wire::Departure> stopped_by_;
  bool let_down_ = false;
};

}  // namespace rueda
