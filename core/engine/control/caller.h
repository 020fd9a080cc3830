/// Decides, at the root of the control tree: hears all reports and writes the dispatch stream.
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

namespace rueda {

class Caller final : public Collector {
 public:
  Caller(const World& world, Glossary& glossary, Stream& stream, const NegotiatorOptions& options,
         Timeline* timeline);

  Result<void> report(const Report& report, TimePoint now) override;
  Result<void> join(Rank rank, TimePoint now) override;
  void leave(const wire::Departure& who) override;
  void blocked(Rank rank, std::uint64_t position, std::string_view name, TimePoint now) override;
  void unblocked(Rank rank, TimePoint now) override;
  void settle(Term& term) override;
  void all_joined() override { joined_.clear(); }
  void set_removed(const ProcessSet& set, std::span<Term* const> terms, TimePoint now) override;

  /// Decides about everything that has become complete, and sends it down as one message.
  Result<void> flush(TimePoint now, Effects& effects);
  void tick(TimePoint now, Effects& effects);
  [[nodiscard]] std::optional<TimePoint> next_tick() const;
  /// Who has not reported this one yet, as far as is known here.
  [[nodiscard]] std::vector<Rank> missing(const Term& term) const;
  /// What others have submitted and that rank has not, the oldest first.
  [[nodiscard]] std::vector<Negotiator::Pending> owed(Rank rank) const;

 protected:
  void all_acknowledged() override { close_ = true; }

 private:
  struct OpenGroup {
    std::vector<Term*> members;  ///< complete ones
    std::optional<Error> error;  ///< the first among them: all fail with it
  };
  struct Failing {
    Term* term;
    Error error;
  };

  [[nodiscard]] bool covered(const Tally& tally, const ProcessSet& set) const;
  [[nodiscard]] const ProcessSet& set_of(const Term& term) const;
  void find_covered_by_joined();
  [[nodiscard]] std::optional<Error> judge(Term& term) const;
  void sort_out(Term& term);
  [[nodiscard]] std::size_t bytes_of(const Term& term) const;

  // The message under construction. Each record is applied here as soon as it is written.
  [[nodiscard]] wire::Writer down();
  Result<void> apply(TimePoint now, Effects& effects);
  Result<void> define(Term& term, TimePoint now, Effects& effects);
  Result<void> emit_failures(TimePoint now, Effects& effects);
  Result<void> emit_dispatches(TimePoint now, Effects& effects);
  Result<void> emit_changes(TimePoint now, Effects& effects);
  [[nodiscard]] Result<void> check_change(const Signature& signature) const;
  Result<void> emit_dispatch(std::span<Term* const> batch, TimePoint now, Effects& effects);
  void send(Effects& effects);
  void check_deadlock(TimePoint now, Effects& effects);
  void find_conflicting();

  Stream& stream_;
  const FusionOptions fusion_;
  StallMonitor stall_;
  const Duration deadlock_;
  Timeline* const timeline_;  // null: none
  bool complained_ = false;

  OpenTerms open_;
  std::vector<Term*> complete_;  // since the last flush, in order
  std::unordered_map<std::string, OpenGroup> groups_;
  std::vector<Failing> failing_;
  std::vector<Term*> changes_;  // of sets: they come after what is ready with them
  std::vector<Term*> ready_;
  std::vector<std::uint64_t> ready_groups_;  // beside ready_: which group of this flush, 0 none
  std::uint64_t group_number_ = 0;

  RankSet joined_;
  Rank joined_last_ = -1;  // the highest rank of the latest round in which somebody joined
  Rank joining_ = -1;      // the highest rank that joined since the last flush
  std::optional<wire::Departure> leaving_;
  bool close_ = false;

  RankSet blocked_;                      // at this position of the stream
  std::vector<std::string> blocked_on_;  // by rank
  bool look_for_conflicts_ = false;
  TimePoint last_progress_;
  bool fatal_ = false;

  std::vector<std::byte> message_;
  std::size_t applied_ = 0;  // bytes of message_
};

}  // namespace rueda
