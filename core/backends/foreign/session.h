/// The backend of one set between two threads: the one that makes progress, and the executor's.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backends/foreign/foreign.h"
#include "mutex.h"

namespace farandole {

/// One verb, from its operation's start to the moment when nobody touches its buffers any more.
struct ForeignJob {
  ForeignCall call;
  std::function<void()> before;          ///< on the executor's thread: fills the buffers
  std::function<void()> after;           ///< there too: empties them
  std::shared_ptr<std::byte[]> staging;  ///< where the call names memory of the operation's own
  std::unique_ptr<Operation> running;    // executor's thread only
  std::size_t turn = 0;                  // among the transfers to or from one peer
  std::atomic<bool> dropped{false};      ///< the operation is gone
  std::atomic<std::uint32_t> moves{0};
  std::atomic<bool> done{false};  ///< `error` says how; nothing is touched any more
  std::optional<Error> error;
};

/// Calls of Foreign::abort() under way, each on a thread of its own: it may block, or need a lock
/// that the executor's thread holds.
class Aborts : public std::enable_shared_from_this<Aborts> {
 public:
  void start(std::shared_ptr<Foreign> object);
  [[nodiscard]] bool settle(Duration patience);

 private:
  Mutex mutex_;
  std::condition_variable_any ended_;
  int under_way_ FARANDOLE_GUARDED_BY(mutex_) = 0;
};

/// Held by the backend and by all jobs of the set.
class ForeignSession : public std::enable_shared_from_this<ForeignSession> {
 public:
  ForeignSession(std::shared_ptr<ForeignClass> kind, Members members,
                 std::shared_ptr<Blocking> executor, std::shared_ptr<Aborts> aborts);

  [[nodiscard]] const ForeignClass& kind() const noexcept { return *kind_; }

  void open();
  /// Once; what was started before comes to its end first.
  void close();
  void abort();

  [[nodiscard]] std::unique_ptr<Operation> start(std::shared_ptr<ForeignJob> job,
                                                 std::vector<Rank> waiting_for);
  /// The operation goes before its job is done: ends the session, and waits until nobody touches
  /// the buffers, for a while.
  void drop(ForeignJob& job);
  /// True if drop() has waited in vain: a verb still runs, and may write to its buffers.
  [[nodiscard]] bool stuck();

  /// At least that much memory, kept from call to call. Holder of the progress lock only.
  [[nodiscard]] std::shared_ptr<std::byte[]> staging(std::size_t bytes);

 private:
  // Executor's thread.
  Step run(ForeignJob& job);
  Result<Step> advance(ForeignJob& job);
  void finish(ForeignJob& job, std::optional<Error> error);
  [[nodiscard]] Error failure(Error error, std::string_view doing) const;
  [[nodiscard]] std::shared_ptr<Foreign> object();

  const std::shared_ptr<ForeignClass> kind_;
  const Members members_;
  const std::shared_ptr<Blocking> executor_;
  const std::shared_ptr<Aborts> aborts_;

  // Holder of the progress lock.
  std::vector<std::size_t> turns_;  // transfers that were started, by direction and peer
  std::shared_ptr<std::byte[]> staging_;
  std::size_t staging_bytes_ = 0;

  // Executor's thread.
  std::vector<std::size_t> served_;  // transfers that are done, by direction and peer

  Mutex mutex_;
  std::condition_variable_any finished_;
  std::shared_ptr<Foreign> object_ FARANDOLE_GUARDED_BY(mutex_);
  /// The first error; nothing is called any more.
  std::optional<Error> failed_ FARANDOLE_GUARDED_BY(mutex_);
  bool aborted_ FARANDOLE_GUARDED_BY(mutex_) = false;
  bool closing_ FARANDOLE_GUARDED_BY(mutex_) = false;
  /// A dropped job did not come to its end in time.
  bool stuck_ FARANDOLE_GUARDED_BY(mutex_) = false;
};

}  // namespace farandole
