/// Submissions whose thread drives the engine itself for a while: the fast path is theirs only.
#pragma once

#include "engine/base/progress.h"
#include "engine/execution/submissions.h"
#include "engine/fast_path/fast_path.h"

namespace farandole {

/// Any thread. Takes the progress lock if that is free; without it, and without a fast path, a
/// submission takes the regular way.
class DrivingCalls final {
 public:
  /// What it works with; all of it outlives this. `fast_path`: null if there is none.
  DrivingCalls(Progress& progress, Submissions& submissions, FastPath* fast_path) noexcept
      : progress_(progress), submissions_(submissions), fast_path_(fast_path) {}

  /// Stays for a moment. 0: done; else the handle of an operation that is under way.
  Result<Handle> blocking(Submission& submission) FARANDOLE_EXCLUDES(progress_lock, engine_lock);
  /// Stays only where nothing else is under way, as the other ranks may be there already.
  Result<Handle> with_callback(Submission& submission)
      FARANDOLE_EXCLUDES(progress_lock, engine_lock);

 private:
  Result<Handle> drive(Submission& submission) FARANDOLE_REQUIRES(progress_lock)
      FARANDOLE_EXCLUDES(engine_lock);

  Progress& progress_;
  Submissions& submissions_;
  FastPath* fast_path_;
};

}  // namespace farandole
