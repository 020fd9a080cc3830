#include "engine/fast_path/driving_calls.h"

namespace farandole {

Result<Handle> DrivingCalls::blocking(Submission& submission) {
  const bool driving = progress_.take();
  const bool proposed = driving && propose(submission);
  Result<Handle> handle =
      proposed ? fast_path_->see_through(true) : submissions_.submit(submission);
  if (!handle || *handle == 0) {
    if (driving) progress_.give_back();
    return handle;
  }
  const bool done = submissions_.stay(*handle, driving);
  if (driving) progress_.give_back();
  return done ? Handle{0} : *handle;
}

Result<Handle> DrivingCalls::with_callback(Submission& submission) {
  const bool driving = fast_path_ != nullptr && !fast_path_->idle() &&
                       submissions_.unfinished() == 0 && progress_.take();
  const bool proposed = driving && fast_path_->propose(submission);
  Result<Handle> handle =
      proposed ? fast_path_->see_through(false) : submissions_.submit(submission);
  if (driving) progress_.give_back();
  return handle;
}

}  // namespace farandole
