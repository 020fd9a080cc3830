#include "backends/nccl/operation.h"

#include <algorithm>
#include <utility>

namespace farandole {

NcclOperation::NcclOperation(NcclBackend& backend, Parts parts)
    : backend_(backend), parts_(std::move(parts)), points_(backend.take_points()) {}

/// If it is dropped before it is over, others may never come to it.
NcclOperation::~NcclOperation() {
  if (phase_ == Phase::Settling || phase_ == Phase::Running) backend_.abort();
  if (phase_ != Phase::Starting) {
    backend_.device()->keep(std::move(parts_.memory), backend_.stream());
  }
}

Result<void> NcclOperation::start() {
  const NcclCommunicator& communicator = backend_.communicator();
  const NcclLibrary& nccl = communicator.library();
  if (parts_.before) {
    if (auto done = parts_.before(); !done) return done;
  }
  const DeviceContext::Current current(backend_.device()->context());
  NcclStatus status = nccl.group_start();
  if (status == kNcclSuccess) {
    status = parts_.calls(nccl, communicator.get(), static_cast<DriverStream>(backend_.stream()));
    const NcclStatus ended = nccl.group_end();
    if (status == kNcclSuccess || status == kNcclInProgress) status = ended;
  }
  return communicator.check(status, "cannot start an operation");
}

Result<Step> NcclOperation::step() {
  switch (phase_) {
    case Phase::Starting:
      phase_ = Phase::Settling;
      if (auto started = start(); !started) return std::move(started).error();
      [[fallthrough]];
    case Phase::Settling: {
      auto settled = backend_.communicator().settled();
      if (!settled) return std::move(settled).error();
      if (!*settled) {
        due_ = Clock::now() + kNcclLook;
        return Step::Blocked;
      }
      due_.reset();
      if (parts_.after) {
        if (auto done = parts_.after(); !done) return std::move(done).error();
      }
      auto end = backend_.end();
      if (!end) return std::move(end).error();
      end_ = std::move(*end);
      phase_ = Phase::Running;
      [[fallthrough]];
    }
    case Phase::Running:
      return watch();
    case Phase::Over:
      break;
  }
  return Step::Done;
}

Result<Step> NcclOperation::watch() {
  auto over = end_->reached();
  if (!over) return std::move(over).error();
  if (*over || backend_.early()) {
    phase_ = Phase::Over;
    return Step::Done;
  }
  if (auto fine = backend_.communicator().settled(); !fine) return std::move(fine).error();
  const bool computes = std::ranges::any_of(points_, [](const auto& point) {
    const auto reached = point->reached();
    return reached && !*reached;
  });
  if (computes) return wait_.wait(*backend_.device(), end_);
  wait_.not_alone();
  if (auto watched = wait_.watch(*backend_.device(), end_); !watched) {
    return std::move(watched).error();
  }
  return Step::Blocked;
}

std::vector<Rank> NcclOperation::waiting_for() const { return backend_.members().ranks; }

}  // namespace farandole
