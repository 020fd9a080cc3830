/// What users have submitted: from the record, through the negotiator, to the batch that runs it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "collectives/collective.h"
#include "engine/base/engine_lock.h"
#include "engine/control/negotiation.h"
#include "engine/control/peers.h"
#include "engine/execution/dispatcher.h"
#include "engine/execution/handles.h"
#include "engine/execution/submission.h"
#include "engine/execution/work.h"
#include "memory/host_pool.h"

namespace farandole {

/// What has been decided and has not got its place in the order of batches.
struct Decided {
  std::vector<Dispatch> dispatches;
  std::optional<Rank> joined_last;
  std::size_t dispatches_before_join = 0;
  [[nodiscard]] bool empty() const noexcept { return dispatches.empty() && !joined_last; }
  void clear() noexcept {
    dispatches.clear();
    joined_last.reset();
  }
  /// Takes what comes after all that is here already.
  void append(Effects& effects);
};

/// Guarded by the engine lock. Whoever asks the negotiator for something else asks it by itself.
class Submissions {
 public:
  /// Results that nobody gave memory for come from the pool.
  Submissions(Negotiation& negotiation, Handles& handles, Peers& peers,
              std::shared_ptr<HostPool> pool)
      : negotiation_(negotiation), handles_(handles), peers_(peers), pool_(std::move(pool)) {}

  /// Takes the regular way: gives it to the negotiator.
  Result<Handle> submit(Submission& submission) FARANDOLE_REQUIRES(engine_lock) {
    return submission.kind == Kind::Join ? join(submission) : negotiate(submission);
  }

  /// A submission that this rank has nothing to say against, ready to be negotiated.
  struct Draft {
    const Collective* collective = nullptr;
    std::string name;  ///< full name, of the group if it is one
    std::shared_ptr<Work> work;
    bool fresh = true;  ///< the work has been made for it
    std::vector<std::unique_ptr<Entry>> entries;
    std::vector<Key> keys;
    std::vector<Signature> signatures;
    std::vector<std::uint64_t> tickets;
  };
  /// `work`: what the submission stands for, if it has a handle already; or null. `set`: the one in
  /// which it was proposed, whatever has its number now; null: the one that has it.
  Result<Draft> draft(Submission& submission, std::shared_ptr<Work> work,
                      const ProcessSet* set = nullptr) FARANDOLE_REQUIRES(engine_lock);
  /// Gives it to the negotiator. The submission is what the draft was made of.
  Result<void> negotiate(Draft& draft, const Submission& submission)
      FARANDOLE_REQUIRES(engine_lock);
  /// An own proposal has its outcome: a join that came after it goes its way. True: it has come to
  /// its end at once, as the negotiator refused it.
  [[nodiscard]] bool join_behind_proposal() FARANDOLE_REQUIRES(progress_lock, engine_lock);
  /// Where results come from that nobody gave memory for.
  [[nodiscard]] HostPool& pool() noexcept { return *pool_; }
  /// The number of a call without name. Ranks may use other sets, and ranks that join early do
  /// without some calls: so every set counts by itself, and anew after each join, which all ranks
  /// call equally often.
  [[nodiscard]] std::uint64_t next_unnamed(std::uint32_t generation)
      FARANDOLE_REQUIRES(engine_lock);

  /// What was decided gets its place in the order of batches.
  void enqueue(Decided& decided, Dispatcher& dispatcher)
      FARANDOLE_REQUIRES(progress_lock, engine_lock);
  /// What has not been dispatched: nothing of it runs any more.
  [[nodiscard]] std::vector<std::unique_ptr<Entry>> take_entries()
      FARANDOLE_REQUIRES(progress_lock, engine_lock);

  /// One entry that was not dispatched and will not be; null if there is none.
  [[nodiscard]] std::unique_ptr<Entry> extract(std::uint64_t ticket)
      FARANDOLE_REQUIRES(engine_lock);

 private:
  struct Naming;
  [[nodiscard]] Naming name(const Submission& submission, const ProcessSet* set)
      FARANDOLE_REQUIRES(engine_lock);
  [[nodiscard]] Result<void> check_change(const Submission& submission) const
      FARANDOLE_REQUIRES(engine_lock);
  Result<void> add_entry(Draft& draft, Submission& submission, const Naming& naming)
      FARANDOLE_REQUIRES(engine_lock);
  Result<Handle> negotiate(Submission& submission) FARANDOLE_REQUIRES(engine_lock);
  Result<Handle> join(Submission& submission) FARANDOLE_REQUIRES(engine_lock);
  [[nodiscard]] const Members& members_of(const ProcessSet& set) FARANDOLE_REQUIRES(engine_lock);
  [[nodiscard]] Dispatcher::Batch batch_of(Dispatch& dispatch) FARANDOLE_REQUIRES(engine_lock);
  [[nodiscard]] Dispatcher::Batch batch_of_join(Rank last) FARANDOLE_REQUIRES(engine_lock);

  Negotiation& negotiation_;
  Handles& handles_;
  Peers& peers_;
  std::shared_ptr<HostPool> pool_;

  /// By ticket, until dispatched.
  std::unordered_map<std::uint64_t, std::unique_ptr<Entry>> entries_
      FARANDOLE_GUARDED_BY(engine_lock);
  /// Calls without a name since this rank joined last, also refused ones, by generation of the set.
  std::unordered_map<std::uint32_t, std::uint64_t> unnamed_calls_ FARANDOLE_GUARDED_BY(engine_lock);
  std::uint64_t joins_ FARANDOLE_GUARDED_BY(engine_lock) = 0;  // of this rank
  std::uint64_t last_ticket_ FARANDOLE_GUARDED_BY(engine_lock) = 0;
  /// Of the join in flight; 0: none.
  std::uint64_t join_ticket_ FARANDOLE_GUARDED_BY(engine_lock) = 0;
  /// It waits for the outcome of an own proposal before it.
  bool join_waits_ FARANDOLE_GUARDED_BY(engine_lock) = false;
  /// By generation of the set, as far as asked for.
  std::map<std::uint32_t, Members> members_ FARANDOLE_GUARDED_BY(engine_lock);
};

}  // namespace farandole
