/// Negotiation: decides which operations run, in which batches, in one order for all ranks.
///
/// A pure state machine. Submissions, messages and the time come in by calls. Messages to send,
/// dispatches to run and failures to report go out through Effects. It has no thread, clock or
/// socket, so a test runs thousands of ranks in one thread.
///
/// Every rank has one Negotiator. Each is a *participant*: it holds and reports its own
/// submissions. Rank 0, the root of the control tree, is also the *coordinator*: it decides. Every
/// other rank is also a *tree node*: it passes reports up, and merges equal ones if it has
/// children.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "collectives/signature.h"
#include "engine/control/wire.h"
#include "engine/control/world.h"
#include "engine/timeline/timeline_event.h"
#include "result.h"

namespace farandole {

struct NegotiatorOptions {
  std::size_t fusion_threshold_bytes = std::size_t{128} << 20;  ///< 0: no fusion
  /// Submissions that nobody waits for are reported when they reach this …
  std::size_t batch_bytes = std::size_t{1} << 20;
  Duration cycle = std::chrono::milliseconds(1);      ///< … or this long after the first of them
  Duration stall_warning = std::chrono::seconds(60);  ///< zero: off
  Duration stall_shutdown = Duration::zero();         ///< zero: never
  /// A proven deadlock ends the world after this time. Zero: never. None: after the time of the
  /// warning.
  std::optional<Duration> deadlock;
  bool disable_group_fusion = false;
  /// Capacity of the response cache, in keys and in signatures; the coordinator's applies to all
  /// ranks. 0: no cache.
  std::size_t key_capacity = 16384;
  /// Process sets that exist from the start, numbered from 1 in this order; valid, see
  /// World::check_addition().
  std::vector<std::vector<Rank>> process_sets;

  /// After 1 / kSaySo of that limit a rank reports that it is blocked.
  static constexpr int kSaySo = 12;

  [[nodiscard]] Duration deadlock_limit() const {
    if (deadlock) return *deadlock;
    // Who switches the check for late ranks off has not asked to hang in a proven deadlock.
    return stall_warning > Duration::zero() ? stall_warning : std::chrono::seconds(60);
  }

  /// See EngineOptions.
  template <class Visitor>
  void each(Visitor& visit) {
    visit("fusion_threshold_bytes", fusion_threshold_bytes);
    visit("cycle_time_s", cycle);
    visit("cache_capacity", key_capacity);
    visit("stall_warning_s", stall_warning);
    visit("stall_shutdown_s", stall_shutdown);
    visit("disable_group_fusion", disable_group_fusion);
    visit("process_sets", process_sets);
  }
};

class Timeline;

/// One entry of a dispatch, seen from this rank.
struct DispatchEntry {
  std::uint64_t ticket = 0;  ///< the ticket given to submit_group(); 0 if this rank has joined
  /// As this rank submitted it, without the name of the group. If this rank has joined: as the
  /// others submitted it, with first dimension 0 where the number of rows may differ.
  std::shared_ptr<const Signature> signature;
  Track track = 0;  ///< where the timeline draws it
};

/// A process set is added or removed at this position among the dispatches.
struct SetChange {
  std::int32_t id = 0;
  std::uint32_t generation = 0;
  int channel = kNoChannel;  ///< see ProcessSet
  bool added = false;        ///< false: removed
  std::vector<Rank> ranks;
};

/// An ordered list of operations that run as one batch: same set, kind, dtype, factors, op, device.
struct Dispatch {
  std::uint64_t number = 0;  ///< 1, 2, 3 … the same on every rank
  std::int32_t process_set = 0;
  std::vector<DispatchEntry> entries;
  std::optional<SetChange>
      change;  ///< made by the dispatch's only entry, an operation of the world
};

struct Failure {
  std::uint64_t ticket = 0;
  Error error;
};

/// The effects of a call. The engine reuses one object and clears it after use.
struct Effects {
  struct Send {
    Rank to;
    std::size_t begin, end;  ///< message = bytes[begin, end)
  };
  std::vector<std::byte> bytes;
  std::vector<Send> sends;
  std::vector<Dispatch> dispatches;
  std::vector<Failure> failures;
  std::vector<std::string> warnings;       ///< for the log of this rank
  std::vector<std::string> errors;         ///< the same, at level error
  std::optional<Rank> joined_last;         ///< every rank has joined: completes the pending join
  std::size_t dispatches_before_join = 0;  ///< how many of `dispatches` come before that
  std::optional<Rank> shutdown_by;  ///< the shutdown entry was reached: nothing runs after it
  bool closed = false;              ///< all ranks acknowledged the shutdown
  std::optional<Error> fatal;  ///< the world cannot go on (e.g. stall shutdown): abort with this
  void clear() noexcept;
  /// True if there is nothing in it.
  [[nodiscard]] bool empty() const noexcept;
};

class Negotiator {
 public:
  /// `groups`: the transport groups, as in control_tree(). `hosts`: host name by rank, for
  /// messages. `timeline`: records what the coordinator does; may be null.
  Negotiator(const std::vector<std::vector<Rank>>& groups, std::vector<std::string> hosts,
             Rank self, const NegotiatorOptions& options, Timeline* timeline = nullptr);
  ~Negotiator();
  Negotiator(Negotiator&&) noexcept;
  Negotiator& operator=(Negotiator&&) noexcept;

  /// This rank has an operation ready: all tensors of a group, or one. Each ticket (not 0) comes
  /// back in a dispatch or failure. `waited`: somebody waits for it already. Fails, with nothing
  /// submitted, with Duplicate if this rank has one of the keys in flight, which it is until its
  /// dispatch comes out.
  Result<void> submit_group(std::span<const Key> keys, std::span<const Signature> signatures,
                            std::span<const std::uint64_t> tickets, bool waited, TimePoint now,
                            Effects& effects);
  /// Somebody on this rank waits for this ticket from now on. No effect if the ticket is done. A
  /// rank that waits counts as blocked: if all ranks are blocked and no operation can start, that
  /// is a deadlock.
  void mark_waited(std::uint64_t ticket, TimePoint now, Effects& effects);
  /// No thread stands still for these tickets, but a graph goes on when they are done. Reports what
  /// is held. A rank that has nothing else counts as blocked too, after ten times the time limit
  /// for deadlocks.
  void mark_demanded(std::span<const std::uint64_t> tickets, TimePoint now, Effects& effects);
  /// The wait for this ticket was interrupted: the rank is not blocked by it any more.
  void mark_left(std::uint64_t ticket, TimePoint now, Effects& effects);
  /// Return whether no thread of this rank could submit anything: all of them wait for operations
  /// that are negotiated here. If that is so on all ranks, a deadlock needs no time to be proven.
  void stand_still(bool still, TimePoint now, Effects& effects);
  /// Reports what is held, without saying that anybody waits: for poll().
  void flush_held(TimePoint now, Effects& effects);
  /// Somebody on this rank waits for everything that it has submitted so far.
  void mark_all_waited(TimePoint now, Effects& effects);

  /// `ticket` comes back in a failure if the world ends before all have joined.
  Result<void> join(std::uint64_t ticket, TimePoint now, Effects& effects);
  /// Asks the coordinator to end the world. `why`: its rank is filled in here.
  void shutdown(TimePoint now, Effects& effects, wire::Departure why = {});
  /// Why another rank has ended the world, if that harms this one: its script failed, or it left
  /// while this rank had operations in flight or submitted more. None: it did not, or this rank did
  /// not need it.
  [[nodiscard]] std::optional<Error> departure() const;
  /// This rank has finished all dispatches before the shutdown entry.
  void acknowledge_shutdown(TimePoint now, Effects& effects);

  /// A message from the negotiator of `from`, a neighbour in the control tree. Fails if it is
  /// malformed. All messages that have come are taken before answer().
  Result<void> take(Rank from, std::span<const std::byte> message, TimePoint now, Effects& effects);
  /// Reports and decides what follows from the messages that were taken, in one message for each
  /// neighbour.
  void answer(TimePoint now, Effects& effects);

  /// See World::towards().
  [[nodiscard]] std::optional<std::vector<Rank>> towards(std::uint32_t generation) const;
  /// The process set of that id; null if there is none. Valid until the next call.
  [[nodiscard]] const ProcessSet* process_set(std::int32_t id) const noexcept;
  [[nodiscard]] std::map<std::int32_t, std::vector<Rank>> process_sets() const;
  /// The key of an operation that is matched by count, if it were submitted now. Additions and
  /// removals of process sets are counted together.
  [[nodiscard]] Key counted_key(Kind kind, const ProcessSet& set) const;

  /// The cache ids of an operation: the same on all ranks at one position of the stream.
  struct CachedIds {
    std::uint32_t key = 0;  ///< 0: an unnamed key
    std::uint32_t signature = 0;
    std::uint64_t* exchanges = nullptr;  ///< of the key, to be counted on; null: unnamed
  };
  /// None if the operation is not in the response cache.
  [[nodiscard]] std::optional<CachedIds> cached_ids(const Key& key,
                                                    const Signature& signature) const;
  /// The last message of the dispatch stream, of those that this rank has applied, that concerns a
  /// member of the set; of the world, simply the last one. At one position all members know the
  /// same dispatches to any of them, joins and process sets.
  [[nodiscard]] std::uint64_t position(const ProcessSet& set) const noexcept;
  /// This rank has nothing in flight, and may submit.
  [[nodiscard]] bool resting() const noexcept;
  /// An operation that is matched by count goes the fast path, or is proposed there.
  void passed(const Key& key);

  /// Does what is due by time: stall checks, and reports of submissions that were held long enough.
  void tick(TimePoint now, Effects& effects);
  /// When tick() is due; none if nothing is pending.
  [[nodiscard]] std::optional<TimePoint> next_tick() const;

  /// A pending operation: its full name and, at the coordinator, the ranks that have not reported
  /// it.
  struct Pending {
    std::string name;
    std::vector<Rank> missing;
  };
  [[nodiscard]] std::vector<Pending> pending() const;
  /// At the coordinator: what others have submitted and `rank` has not. On other ranks: everything
  /// that this rank has pending, as only the coordinator knows more.
  [[nodiscard]] std::vector<Pending> owed(Rank rank) const;
  /// How many keys and cache ids are kept: for tests that this is bounded.
  [[nodiscard]] std::size_t remembered() const noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace farandole
