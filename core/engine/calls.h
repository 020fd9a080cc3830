/// Calls of the script's threads: they submit, wait for what they have submitted, and take it.
///
/// A thread that stays for its operation takes the progress lock if that is free, and drives the
/// engine itself. Only such calls take the fast path; without the lock, and without a fast path, a
/// submission takes the regular way.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "engine/base/progress.h"
#include "engine/control/negotiation.h"
#include "engine/control/peers.h"
#include "engine/execution/handles.h"
#include "engine/execution/submissions.h"
#include "engine/fast_path/fast_path.h"

namespace farandole {

/// Any thread. See Engine for what they promise.
class Calls {
 public:
  Calls(Negotiation& negotiation, Submissions& submissions, Handles& handles,
        const Peers& peers) noexcept
      : negotiation_(negotiation), submissions_(submissions), handles_(handles), peers_(peers) {}
  /// Who drives; `fast_path`: null if there is none. Before anything is submitted.
  void use(Progress& progress, FastPath* fast_path) noexcept {
    progress_ = &progress;
    fast_path_ = fast_path;
  }

  Result<Handle> submit(Submission& submission) FARANDOLE_EXCLUDES(progress_lock, engine_lock);
  std::optional<bool> poll(Handle handle) FARANDOLE_EXCLUDES(engine_lock);
  std::optional<bool> wait(Handle handle, TimePoint deadline)
      FARANDOLE_EXCLUDES(progress_lock, engine_lock);
  std::optional<bool> watch(Handle handle, TimePoint deadline)
      FARANDOLE_EXCLUDES(progress_lock, engine_lock);
  void mark_all_waited() { tell(&Negotiator::mark_all_waited); }
  /// Whoever has waited for it has gone: an exception has interrupted the wait.
  void leave(Handle handle) FARANDOLE_EXCLUDES(engine_lock);
  [[nodiscard]] std::shared_ptr<Work> find(Handle handle) const FARANDOLE_EXCLUDES(engine_lock);
  std::shared_ptr<Work> take(Handle handle) FARANDOLE_EXCLUDES(engine_lock);
  std::vector<std::shared_ptr<Work>> abandon_all() FARANDOLE_EXCLUDES(engine_lock);

 private:
  Result<Handle> blocking(Submission& submission) FARANDOLE_EXCLUDES(progress_lock, engine_lock);
  Result<Handle> drive(Submission& submission) FARANDOLE_REQUIRES(progress_lock)
      FARANDOLE_EXCLUDES(engine_lock);
  Result<Handle> with_callback(Submission& submission)
      FARANDOLE_EXCLUDES(progress_lock, engine_lock);
  Result<Handle> take_regular_way(Submission& submission) FARANDOLE_EXCLUDES(engine_lock);
  void alert(bool comes);
  Handle forget(const Work& work) FARANDOLE_EXCLUDES(engine_lock);
  void tell(void (Negotiator::*call)(TimePoint, Effects&)) FARANDOLE_EXCLUDES(engine_lock);

  Negotiation& negotiation_;
  Submissions& submissions_;
  Handles& handles_;
  const Peers& peers_;
  Progress* progress_ = nullptr;
  FastPath* fast_path_ = nullptr;
};

}  // namespace farandole
