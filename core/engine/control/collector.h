/// Takes in what this rank and those below it in the control tree say.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "engine/control/glossary.h"
#include "engine/control/world.h"
#include "result.h"

namespace rueda {

/// Some ranks are ready for an operation. Views are valid during the call.
struct Report {
  Term& term;
  const ProcessSet& set;
  const MeaningPtr& meaning;
  std::string_view group;
  std::uint8_t size_class = 0;
  const RankSet& who;
  TimePoint since;
  bool aged = false;  ///< was held below for long: goes on without waiting for others
};

/// A node passes on what it hears, the caller decides.
class Collector {
 public:
  Collector(const World& world, Glossary& glossary);
  virtual ~Collector() = default;
  Collector(const Collector&) = delete;
  Collector& operator=(const Collector&) = delete;

  virtual Result<void> report(const Report& report, TimePoint now) = 0;
  virtual Result<void> join(Rank rank, TimePoint now) = 0;
  virtual void leave(const wire::Departure& who) = 0;
  virtual void blocked(Rank rank, std::uint64_t position, std::string_view name, TimePoint now) = 0;
  virtual void unblocked(Rank rank, TimePoint now) = 0;

  // Entries of the stream passed by.
  virtual void settle(Term& term) = 0;  ///< its dispatch or failure: the next report is another use
  virtual void all_joined() = 0;
  /// Whatever speaks of the set is forgotten. `terms`: of its keys; they are settled next.
  virtual void set_removed(const ProcessSet& set, std::span<Term* const> terms, TimePoint now) = 0;
  void stop() noexcept { stopped_ = true; }

  /// An upward message of a child. `position`: how much of the stream this rank has seen.
  Result<void> receive(std::size_t child, std::span<const std::byte> message,
                       std::uint64_t position, TimePoint now);
  /// This rank has finished before the shutdown.
  void acknowledge();
  /// How much of the stream all ranks of the subtree have seen, this one `own`.
  [[nodiscard]] std::uint64_t seen(std::uint64_t own) const noexcept;

 protected:
  virtual void all_acknowledged() = 0;
  [[nodiscard]] bool stopped() const noexcept { return stopped_; }

  const World& world_;
  Glossary& glossary_;

 private:
  Result<void> receive_ready(std::size_t child, const wire::Entry& entry, Rank origin, Duration age,
                             TimePoint now);
  Result<void> acknowledge_child(std::size_t child);

  std::vector<std::uint64_t> seen_;  // by child
  std::vector<bool> acknowledged_;   // by child
  std::size_t awaited_;              // acknowledgements still to come, the own one included
  bool own_acknowledged_ = false;
  bool stopped_ = false;  // the shutdown entry has passed: nothing more is ready
};

/// What a peer said makes no sense.
[[nodiscard]] Error nonsense(const World& world, Rank from, std::string_view what);

}  // namespace rueda
