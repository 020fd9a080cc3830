#include "collectives/counted.h"

#include <algorithm>
#include <span>
#include <string>
#include <utility>

namespace farandole {

namespace {

/// Every member gets the `own` numbers of all members, one member after another in `all`.
GatherPlan gather(std::span<const std::int64_t> own, std::span<std::int64_t> all) {
  GatherPlan plan;
  plan.in = {std::as_bytes(own)};
  for (std::size_t at = 0; at < all.size(); at += own.size()) {
    plan.out.push_back({std::as_writable_bytes(all.subspan(at, own.size()))});
  }
  return plan;
}

}  // namespace

Counted::Counted(Backend& backend, std::vector<std::int64_t> own, std::span<const Task> tasks)
    : backend_(backend),
      size_(static_cast<std::size_t>(backend.members().size())),
      own_(std::move(own)),
      all_(size_ * own_.size()) {
  if (!known(tasks)) exchange_ = backend.start(gather(own_, all_));
}

/// Takes what the tasks tell. All members agree on them, so either all know it or none does.
bool Counted::known(std::span<const Task> tasks) {
  const std::size_t each = own_.size() / tasks.size();
  for (std::size_t t = 0; t < tasks.size(); ++t) {
    if (tasks[t].told == nullptr || tasks[t].told->numbers.empty()) return false;
    const std::span<const std::int64_t> numbers = tasks[t].told->numbers;
    for (std::size_t m = 0; m < size_; ++m) {
      std::ranges::copy(numbers.subspan(m * each, each), &all_[m * own_.size() + t * each]);
    }
  }
  return true;
}

Result<Step> Counted::step() {
  if (exchange_) {
    auto step = exchange_->step();
    if (!step || *step != Step::Done) return step;
  }
  switch (phase_) {
    case Phase::Counting: {
      auto prepared = prepare();
      if (large()) {
        agree(static_cast<bool>(prepared));
        return Step::Advanced;
      }
      if (!prepared) return std::move(prepared).error();
      break;
    }
    case Phase::Agreeing:
      refuse();
      if (refusal_) return Step::Done;
      break;
    case Phase::Moving:
      return Step::Done;
  }
  phase_ = Phase::Moving;
  exchange_ = move();
  return Step::Advanced;
}

bool Counted::large() const {
  for (std::size_t m = 0; m < size_; ++m) {
    if (bytes_for(m) >= kAgreed) return true;
  }
  return false;
}

void Counted::agree(bool ready) {
  phase_ = Phase::Agreeing;
  own_word_ = ready ? 1 : 0;
  words_.resize(size_);
  exchange_ = backend_.start(gather({&own_word_, 1}, words_));
}

/// The error if a member has no memory: the same text on all members.
void Counted::refuse() {
  for (std::size_t m = 0; m < size_; ++m) {
    if (words_[m] != 0) continue;
    const std::size_t bytes = bytes_for(m);
    const std::string much = bytes == SIZE_MAX ? "more bytes than any memory can hold"
                                               : std::to_string(bytes) + " bytes";
    refusal_ = Error{.code = Code::Internal,
                     .message = "no memory for a result of " + much,
                     .peer = backend_.members().ranks[m]};
    return;
  }
}

}  // namespace farandole
