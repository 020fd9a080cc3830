#include "engine/dispatcher.h"

#include <algorithm>

#include "collectives/registry.h"

namespace rueda {

void Dispatcher::start(TimePoint now) {
  running_ = std::move(queue_.front());
  queue_.pop_front();
  tasks_.clear();
  zeros_.clear();
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < running_.signatures.size(); ++i) {
    const auto& signature = running_.signatures[i];
    bytes += signature->bytes();
    if (Entry* entry = running_.entries[i].get()) {
      tasks_.push_back(entry->task());
    } else {
      zeros_.push_back(std::make_unique<std::byte[]>(std::max<std::size_t>(signature->bytes(), 1)));
      tasks_.push_back({.signature = signature,
                        .in = zeros_.back().get(),
                        .out = zeros_.back().get(),
                        .allocator = nullptr});
    }
  }
  const Kind kind = running_.signatures.front()->kind;
  operation_ = find_collective(kind)->start(backend_, tasks_);
  last_progress_ = now;
  const auto path = backend_.path(kind, bytes);
  const std::lock_guard lock(paths_mutex_);
  auto found = paths_.find(path);
  if (found == paths_.end()) found = paths_.emplace(std::string(path), PathCount{}).first;
  found->second.operations += 1;
  found->second.bytes += bytes;
}

Result<Step> Dispatcher::step(TimePoint now) {
  if (!operation_) {
    if (queue_.empty()) return Step::Blocked;
    start(now);
  }
  auto step = operation_->step();
  if (!step) {
    Error error = std::move(step).error();
    const Entry* first = running_.entries.front().get();
    if (error.tensor.empty() && first != nullptr) error.tensor = first->name;
    return error;
  }
  switch (*step) {
    case Step::Advanced:
      last_progress_ = now;
      return Step::Advanced;
    case Step::Done:
      operation_.reset();
      for (auto& entry : running_.entries) {
        if (entry) completed_.push_back(std::move(entry));
      }
      running_ = {};
      return Step::Done;
    case Step::Blocked:
      break;
  }
  if (timeout_ > Duration::zero() && now - last_progress_ >= timeout_) return stuck(now);
  return Step::Blocked;
}

std::optional<TimePoint> Dispatcher::deadline() const {
  if (!operation_ || timeout_ <= Duration::zero()) return std::nullopt;
  return last_progress_ + timeout_;
}

Error Dispatcher::stuck(TimePoint now) const {
  Error error{.code = Code::Timeout};
  const Entry* first = running_.entries.front().get();
  error.tensor = first != nullptr ? first->name : "";
  error.missing = operation_->waiting_for();
  error.waited_s = std::chrono::duration<double>(now - last_progress_).count();
  error.message = "'" + error.tensor + "' was started by all ranks but has made no progress for " +
                  std::to_string(static_cast<int>(error.waited_s)) + " s; waiting for rank";
  if (error.missing.size() != 1) error.message += "s";
  for (std::size_t i = 0; i < error.missing.size(); ++i) {
    error.message += (i == 0 ? " " : ", ") + std::to_string(error.missing[i]);
  }
  error.message +=
      " (stopped, or its machine is cut off?). HOROVOD_GLOO_TIMEOUT_SECONDS sets the limit";
  if (error.missing.size() == 1) error.peer = error.missing.front();
  return error;
}

std::vector<std::unique_ptr<Entry>> Dispatcher::take_all() {
  operation_.reset();  // before the memory it uses
  auto all = std::move(completed_);
  completed_.clear();
  auto take = [&all](Batch& batch) {
    for (auto& entry : batch.entries) {
      if (entry) all.push_back(std::move(entry));
    }
  };
  take(running_);
  for (Batch& batch : queue_) take(batch);
  running_ = {};
  queue_.clear();
  return all;
}

}  // namespace rueda
