#include "engine/fast_path/driving_calls.h"

namespace farandole {

Result<Handle> DrivingCalls::blocking(Submission& submission) {
  if (progress_.take()) {
    auto handle = drive(submission);
    progress_.give_back();
    return handle;
  }
  auto handle = submissions_.submit(submission);
  return handle && submissions_.stay(*handle) ? Handle{0} : handle;
}

Result<Handle> DrivingCalls::drive(Submission& submission) {
  const bool proposed =
      fast_path_ != nullptr && !fast_path_->idle() && fast_path_->propose(submission);
  auto handle = proposed ? fast_path_->see_through(true) : submissions_.submit(submission);
  const bool under_way = handle && *handle != 0;
  return under_way && submissions_.stay_driving(*handle) ? Handle{0} : handle;
}

Result<Handle> DrivingCalls::with_callback(Submission& submission) {
  const bool stays = fast_path_ != nullptr && !fast_path_->idle() && submissions_.unfinished() == 0;
  if (!stays || !progress_.take()) return submissions_.submit(submission);
  const bool proposed = fast_path_->propose(submission);
  auto handle = proposed ? fast_path_->see_through(false) : submissions_.submit(submission);
  progress_.give_back();
  return handle;
}

}  // namespace farandole
