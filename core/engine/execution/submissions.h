/// What users have submitted: from the record, through the negotiator, to the batch that runs it
/// and the handle that tells its end.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "collectives/collective.h"
#include "devices/devices.h"
#include "engine/base/notifier.h"
#include "engine/base/progress.h"
#include "engine/control/negotiation.h"
#include "engine/control/peers.h"
#include "engine/execution/dispatcher.h"
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

class Submissions {
 public:
  /// Handles are above `first`. Results that nobody gave memory for come from the pool.
  Submissions(Handle first, Negotiation& negotiation, Peers& peers, std::shared_ptr<HostPool> pool,
              Notifier& notifier)
      : negotiation_(negotiation),
        peers_(peers),
        pool_(std::move(pool)),
        notifier_(notifier),
        last_handle_(first) {}
  /// Who drives. Before anything is submitted.
  void use(Progress& progress) noexcept { progress_ = &progress; }

  // Any thread; take the engine lock.

  /// Completes a submission of a kind without tensors, notes in the streams of devices where
  /// tensors are ready, and refuses memory that nothing here serves, and none. Then there is at
  /// least one tensor. Changes nothing of the engine: before any part of it has seen the
  /// submission. No lock of the engine.
  [[nodiscard]] static Result<void> prepare(Submission& submission, Devices& devices);
  /// See Engine for what they promise. In all modes the handle, to begin with.
  Result<Handle> submit(Submission& submission) FARANDOLE_EXCLUDES(engine_lock);
  std::optional<bool> poll(Handle handle) FARANDOLE_EXCLUDES(engine_lock);
  std::optional<bool> wait(Handle handle, TimePoint deadline) FARANDOLE_EXCLUDES(engine_lock);
  std::optional<bool> watch(Handle handle, TimePoint deadline) FARANDOLE_EXCLUDES(engine_lock);
  /// The caller stays for a moment. True: it is done without an error or anything to take, and
  /// forgotten.
  bool stay(Handle handle) FARANDOLE_EXCLUDES(progress_lock, engine_lock);
  /// The same for the holder of the progress lock, who drives meanwhile.
  bool stay_driving(Handle handle) FARANDOLE_REQUIRES(progress_lock)
      FARANDOLE_EXCLUDES(engine_lock);
  void mark_all_waited() { tell_negotiator(&Negotiator::mark_all_waited); }
  /// Whoever has waited for it has gone: an exception has interrupted the wait.
  void leave(Handle handle) FARANDOLE_EXCLUDES(engine_lock);
  [[nodiscard]] std::shared_ptr<Work> find(Handle handle) const FARANDOLE_EXCLUDES(engine_lock);
  std::shared_ptr<Work> take(Handle handle) FARANDOLE_EXCLUDES(engine_lock);
  std::vector<std::shared_ptr<Work>> abandon_all() FARANDOLE_EXCLUDES(engine_lock);

  /// Number of submissions that have ended so far. No lock.
  [[nodiscard]] std::uint64_t completions() const noexcept { return completions_.load(); }
  /// All threads that could submit something have waited here since there were so many completions:
  /// as long as there are no more, nothing comes of this rank by itself. None: a thread is
  /// elsewhere. No lock.
  void stand_still(std::optional<std::uint64_t> since) noexcept {
    still_since_.store(since ? *since : kMoving);
  }
  [[nodiscard]] bool stands_still() const noexcept {
    return still_since_.load(std::memory_order_relaxed) == completions_.load();
  }
  /// How many are not done. No lock.
  [[nodiscard]] std::size_t unfinished() const noexcept {
    return unfinished_.load(std::memory_order_relaxed);
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
  /// An own proposal has its outcome: a join that came after it goes its way.
  void join_behind_proposal() FARANDOLE_REQUIRES(engine_lock);
  /// Its handle is known from now on, and the engine has something to do.
  void add(std::shared_ptr<Work> work) FARANDOLE_REQUIRES(engine_lock);
  /// Where results come from that nobody gave memory for.
  [[nodiscard]] HostPool& pool() noexcept { return *pool_; }
  [[nodiscard]] Handle next_handle() noexcept FARANDOLE_REQUIRES(engine_lock) {
    return ++last_handle_;
  }
  /// The number of a call without name. Ranks may use other sets, and ranks that join early do
  /// without some calls: so every set counts by itself, and anew after each join, which all ranks
  /// call equally often.
  [[nodiscard]] std::uint64_t next_unnamed(std::uint32_t generation)
      FARANDOLE_REQUIRES(engine_lock);

  // By the holder of the progress lock, with the engine lock held.

  /// What was decided gets its place in the order of batches.
  void enqueue(Decided& decided, Dispatcher& dispatcher)
      FARANDOLE_REQUIRES(progress_lock, engine_lock);
  /// What has not been dispatched: nothing of it runs any more.
  [[nodiscard]] std::vector<std::unique_ptr<Entry>> take_entries()
      FARANDOLE_REQUIRES(progress_lock, engine_lock);

  // By the holder of the progress lock, with or without the engine lock.

  /// All of it is over.
  void complete(const std::shared_ptr<Work>& work);

  // By the holder of the progress lock, without it.

  /// One entry that was not dispatched and will not be; null if there is none.
  [[nodiscard]] std::unique_ptr<Entry> take_entry(std::uint64_t ticket)
      FARANDOLE_EXCLUDES(engine_lock);
  /// They have come to their end, all in the same way.
  void finish(std::vector<std::unique_ptr<Entry>> entries, const std::optional<Error>& error);

 private:
  [[nodiscard]] static std::string who(const Submission& submission, const Tensor& tensor,
                                       const std::string& name);
  [[nodiscard]] static Result<void> prepare(std::vector<Tensor>& tensors, Tensor& tensor,
                                            Devices& devices);
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
  [[nodiscard]] std::unique_ptr<Entry> extract(std::uint64_t ticket)
      FARANDOLE_REQUIRES(engine_lock);
  bool forget(const Work& work) FARANDOLE_EXCLUDES(engine_lock);
  void tell_negotiator(void (Negotiator::*call)(TimePoint, Effects&))
      FARANDOLE_EXCLUDES(engine_lock);
  void tell(bool comes);
  void drive_alone();

  Negotiation& negotiation_;
  Peers& peers_;
  std::shared_ptr<HostPool> pool_;
  Notifier& notifier_;
  Progress* progress_ = nullptr;

  /// By ticket, until dispatched.
  std::unordered_map<std::uint64_t, std::unique_ptr<Entry>> entries_
      FARANDOLE_GUARDED_BY(engine_lock);
  std::unordered_map<Handle, std::shared_ptr<Work>> works_ FARANDOLE_GUARDED_BY(engine_lock);
  Handle last_handle_ FARANDOLE_GUARDED_BY(engine_lock);
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

  std::atomic<std::size_t> unfinished_{0};  // works that are not done
  std::atomic<std::uint64_t> completions_{0};
  static constexpr std::uint64_t kMoving = std::numeric_limits<std::uint64_t>::max();
  std::atomic<std::uint64_t> still_since_{kMoving};
};

}  // namespace farandole
