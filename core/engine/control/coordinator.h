/// The coordinator, on rank 0: it receives all reports, decides which operations run, and writes
/// the dispatch stream.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/control/collector.h"
#include "engine/control/fusion.h"
#include "engine/control/negotiator.h"
#include "engine/control/stall.h"
#include "engine/control/stream.h"
#include "engine/timeline/timeline.h"

namespace farandole {

class Coordinator final : public Collector {
 public:
  Coordinator(const World& world, ResponseCache& cache, Stream& stream,
              const NegotiatorOptions& options, Timeline* timeline);

  Result<void> report(const Report& report, TimePoint now) override;
  Result<void> join(Rank rank, TimePoint now) override;
  void leave(const wire::Departure& who) override;
  void blocked(Rank rank, std::uint64_t position, bool certain, std::string_view name,
               TimePoint now) override;
  void unblocked(Rank rank, TimePoint now) override;
  void settle(KeyState& key_state) override;
  void all_joined() override { joined_.clear(); }
  void set_removed(const ProcessSet& set, std::span<KeyState* const> key_states,
                   TimePoint now) override;

  /// Decides about every operation that all members have reported, and sends the decisions down the
  /// control tree as one message.
  Result<void> flush(TimePoint now, Effects& effects);
  void tick(TimePoint now, Effects& effects);
  [[nodiscard]] std::optional<TimePoint> next_tick() const;
  /// The ranks whose report of this key has not arrived here.
  [[nodiscard]] std::vector<Rank> missing(const KeyState& key_state) const;
  /// What other ranks have submitted and `rank` has not, oldest first.
  [[nodiscard]] std::vector<Negotiator::Pending> owed(Rank rank) const;

 protected:
  void all_acknowledged() override { close_ = true; }

 private:
  struct OpenGroup {
    std::vector<KeyState*> members;  ///< those that all members have reported
    std::optional<Error> error;      ///< the first error among them: the whole group fails with it
  };
  struct Failing {
    KeyState* key_state;
    Error error;
  };

  [[nodiscard]] bool covered(const Tally& tally, const ProcessSet& set) const;
  [[nodiscard]] const ProcessSet& set_of(const KeyState& key_state) const;
  void find_covered_by_joined();
  [[nodiscard]] std::optional<Error> mismatch_of(KeyState& key_state) const;
  void sort_out(KeyState& key_state);
  [[nodiscard]] std::size_t bytes_of(const KeyState& key_state) const;

  // Returns a writer for the message under construction. The coordinator applies each record to its
  // own stream as soon as it is written.
  [[nodiscard]] wire::Writer down();
  Result<void> apply(TimePoint now, Effects& effects);
  Result<void> define(KeyState& key_state, TimePoint now, Effects& effects);
  Result<void> emit_failures(TimePoint now, Effects& effects);
  Result<void> emit_dispatches(TimePoint now, Effects& effects);
  Result<void> emit_changes(TimePoint now, Effects& effects);
  [[nodiscard]] Result<void> check_change(const Signature& signature) const;
  Result<void> emit_dispatch(std::span<KeyState* const> batch, TimePoint now, Effects& effects);
  void send(Effects& effects);
  void check_deadlock(TimePoint now, Effects& effects);
  [[nodiscard]] std::string describe_deadlock(const RankSet& live) const;
  [[nodiscard]] RankSet live() const;
  void find_conflicting(TimePoint now);
  [[nodiscard]] Duration conflict_age() const;
  [[nodiscard]] std::optional<TimePoint> next_look() const;

  Stream& stream_;
  const FusionOptions fusion_;
  StallMonitor stall_;
  const Duration deadlock_;
  Timeline* const timeline_;  // null: none

  OpenKeys open_;
  std::vector<KeyState*> complete_;  // since the last flush, in order
  std::unordered_map<std::string, OpenGroup> groups_;
  std::vector<Failing> failing_;
  std::vector<KeyState*> changes_;  // changes of process sets: dispatched after the operations that
                                    // became ready with them
  std::vector<KeyState*> ready_;
  std::vector<std::uint64_t>
      ready_groups_;  // parallel to ready_: number of the group within this flush; 0: no group
  std::uint64_t group_number_ = 0;

  RankSet joined_;
  Rank joined_last_ = -1;  // the highest rank of the latest round in which somebody joined
  Rank joining_ = -1;      // the highest rank that joined since the last flush
  std::optional<wire::Departure> leaving_;
  bool close_ = false;

  RankSet blocked_;                      // at this position of the stream
  RankSet certain_;                      // of these: those that cannot submit anything
  std::vector<std::string> blocked_on_;  // by rank
  bool deadlock_told_ = false;           // since somebody moved
  bool look_for_conflicts_ = false;
  TimePoint looked_;  // for conflicts, last
  TimePoint last_progress_;
  bool fatal_ = false;

  std::vector<std::byte> message_;
  std::size_t applied_ = 0;  // bytes of message_
};

}  // namespace farandole
