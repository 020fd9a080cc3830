/// Decides which operations run, together with which others, in one order for all ranks.
///
/// A pure state machine: submissions, messages and time come in by calls; messages to send,
/// dispatches to run and failures to report go out through Effects. No thread, no clock, no socket:
/// thousands of ranks run in one thread of a test.
///
/// Every rank has one Negotiator. Each is a *member* (holds and reports its own submissions). The
/// root of the control tree, rank 0, is also the *caller* (decides); all others are also *nodes*
/// (pass reports up; those with children count them and merge equal ones).
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

namespace rueda {

class Timeline;

struct NegotiatorOptions {
  std::size_t fusion_threshold_bytes = std::size_t{128} << 20;  ///< 0: no fusion
  std::size_t batch_bytes = std::size_t{1}
                            << 20;  ///< what nobody waits for goes when it reaches this
  Duration cycle = std::chrono::milliseconds(1);      ///< … or this long after the first of it
  Duration stall_warning = std::chrono::seconds(60);  ///< zero: off
  Duration stall_shutdown = Duration::zero();         ///< zero: never
  /// After how long a deadlock that is proven ends the world. Zero: never.
  Duration deadlock = std::chrono::seconds(60);
  bool disable_group_fusion = false;
  /// How many keys, and how many signatures, stay numbered; the caller's counts for all. 0: none.
  std::size_t key_capacity = 16384;
  /// Process sets that exist from the start, numbered from 1; valid, see World::check_addition().
  std::vector<std::vector<Rank>> process_sets;
};

/// One entry of a dispatch, seen from this rank.
struct DispatchEntry {
  std::uint64_t ticket = 0;  ///< what this rank gave to submit(); 0 if this rank has joined
  /// As this rank submitted it, without the group's name. If it has joined: as the others did,
  /// with first dimension 0 where rows may differ.
  std::shared_ptr<const Signature> signature;
  Track track = 0;  ///< where the timeline draws it
};

/// A process set appears, or goes, at this position among the dispatches.
struct SetChange {
  std::int32_t id = 0;
  std::uint32_t generation = 0;
  bool added = false;  ///< false: removed
  std::vector<Rank> ranks;
};

/// An ordered list of operations that run as one batch: same set, kind, dtype, factors, op, device.
struct Dispatch {
  std::uint64_t number = 0;  ///< 1, 2, 3 … the same on every rank
  std::int32_t process_set = 0;
  std::vector<DispatchEntry> entries;
  std::optional<SetChange> change;  ///< by its only entry, an operation of the world
};

struct Failure {
  std::uint64_t ticket = 0;
  Error error;
};

/// What a call brought about. The engine keeps one and clears it after use.
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
  /// messages. `timeline`: hears what the caller does; null: nobody does.
  Negotiator(const std::vector<std::vector<Rank>>& groups, std::vector<std::string> hosts,
             Rank self, const NegotiatorOptions& options, Timeline* timeline = nullptr);
  ~Negotiator();
  Negotiator(Negotiator&&) noexcept;
  Negotiator& operator=(Negotiator&&) noexcept;

  /// This rank has an operation ready. `ticket` (not 0) comes back in its dispatch or failure.
  /// `waited`: somebody waits for it already. A key that this rank has in flight is Duplicate
  /// (nothing changes). The window of a key closes when its dispatch comes out.
  Result<void> submit(const Key& key, const Signature& signature, std::uint64_t ticket, bool waited,
                      TimePoint now, Effects& effects);
  /// All members of a group, or none if one of them is Duplicate.
  Result<void> submit_group(std::span<const Key> keys, std::span<const Signature> signatures,
                            std::span<const std::uint64_t> tickets, bool waited, TimePoint now,
                            Effects& effects);
  /// Somebody on this rank waits for this ticket from now on (no effect if it is gone). What is
  /// waited for counts as blocked: when all ranks are and nothing can start, that is a deadlock.
  void want(std::uint64_t ticket, TimePoint now, Effects& effects);
  /// Reports what is held back, though nobody is blocked: for poll, and for submissions whose
  /// completion is a callback.
  void demand(TimePoint now, Effects& effects);
  /// Somebody on this rank waits for everything it has submitted so far.
  void want_all(TimePoint now, Effects& effects);

  /// `ticket` comes back in a failure if the world ends before all have joined.
  Result<void> join(std::uint64_t ticket, TimePoint now, Effects& effects);
  /// `why`: without the rank, which is this one.
  void shutdown(TimePoint now, Effects& effects, wire::Departure why = {});
  /// Why another rank has ended the world: its script failed, or it left while this rank had
  /// operations or went on to submit some. None: it did not, or nobody here needed it.
  [[nodiscard]] std::optional<Error> departure() const;
  /// This rank has finished all dispatches before the shutdown entry.
  void acknowledge_shutdown(TimePoint now, Effects& effects);

  /// A message of the negotiator of `from`, a neighbour in the tree. An error: it makes no sense.
  Result<void> receive(Rank from, std::span<const std::byte> message, TimePoint now,
                       Effects& effects);

  /// The live process set of that number; null if there is none. Until the next call.
  [[nodiscard]] const ProcessSet* process_set(std::int32_t id) const noexcept;
  [[nodiscard]] std::map<std::int32_t, std::vector<Rank>> process_sets() const;
  /// What an operation that is matched by count, submitted now, has as its key. Both kinds of set
  /// changes are counted together.
  [[nodiscard]] Key counted_key(Kind kind, const ProcessSet& set) const;

  /// An operation in few words, the same on all ranks that have negotiated one like it before.
  struct Shorthand {
    std::uint32_t key = 0;  ///< 0: an unnamed key
    std::uint32_t signature = 0;
  };
  /// None if there is no such word yet, or this rank has anything in flight or is about to end.
  [[nodiscard]] std::optional<Shorthand> shorthand(const Key& key,
                                                   const Signature& signature) const;
  /// How many messages of the stream this rank has applied: at one position every rank knows the
  /// same dispatches, joins, sets and numbers.
  [[nodiscard]] std::uint64_t position() const noexcept;
  /// This rank has nothing in flight, and may submit.
  [[nodiscard]] bool resting() const noexcept;
  /// An operation that is matched by count has run without having been submitted here.
  void passed(const Key& key);

  /// Time passes: stall checks, batches that waited long enough.
  void tick(TimePoint now, Effects& effects);
  /// When tick() is due next; none if nothing is pending.
  [[nodiscard]] std::optional<TimePoint> next_tick() const;

  /// Full names of this rank's pending operations and, at the caller, who has not reported them.
  struct Pending {
    std::string name;
    std::vector<Rank> missing;
  };
  [[nodiscard]] std::vector<Pending> pending() const;
  /// What others wait for that `rank` has not submitted: at the caller. Elsewhere all that this
  /// rank waits for, as nobody knows more.
  [[nodiscard]] std::vector<Pending> owed(Rank rank) const;
  /// True if this rank has submissions that are not dispatched yet.
  [[nodiscard]] bool busy() const noexcept;
  /// How many keys and numbers are remembered: for tests that this is bounded.
  [[nodiscard]] std::size_t remembered() const noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace rueda
