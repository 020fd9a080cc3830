#include "engine/execution/dispatcher.h"

#include <algorithm>
#include <span>

#include "collectives/registry.h"

namespace farandole {

Result<void> Dispatcher::open(const SetChange& added) {
  if (!std::ranges::binary_search(added.ranks, self())) return {};
  auto backend = open_set_(added);
  if (!backend) {
    return Error::wrap(std::move(backend).error(),
                       "cannot open process set " + std::to_string(added.id));
  }
  sets_[added.id] = std::move(*backend);
  return {};
}

Rank Dispatcher::self() const {
  const Members& world = world_.members();
  return world.ranks[static_cast<std::size_t>(world.self)];
}

Backend* Dispatcher::backend_of(std::int32_t id) const {
  if (id == 0) return &world_;
  const auto found = sets_.find(id);
  return found == sets_.end() ? nullptr : found->second.get();
}

/// Takes the next batch. Without an operation afterwards: it has nothing to run on this rank.
Result<void> Dispatcher::start(TimePoint now) {
  running_ = {std::move(queue_.front())};
  queue_.pop_front();
  tasks_.clear();
  last_progress_ = now;
  started_[running_.position.order()] = running_.position.number;
  if (running_.signatures.empty()) return {};
  const std::int32_t set = running_.change ? running_.change->id : running_.process_set;
  if (running_.change && running_.change->added) {
    if (auto opened = open(*running_.change); !opened) return opened;
  }
  Backend* const backend = backend_of(set);
  if (backend == nullptr) return {};  // others meet in that set
  if (running_.change && !running_.change->added && devices_ != nullptr) devices_->close(set);
  backend_ = backend;
  bytes_ = 0;
  for (std::size_t i = 0; i < running_.signatures.size(); ++i) {
    const auto& signature = running_.signatures[i];
    bytes_ += signature->bytes();
    if (Entry* entry = running_.entries[i].get()) {
      Task task = entry->task();
      if (!running_.tracks.empty() && running_.tracks[i] != 0) {
        task.allocator = &running_.allocators.emplace_back(*entry, *timeline_, running_.tracks[i]);
      }
      tasks_.push_back(task);
    } else {
      running_.zeros.push_back(
          std::make_unique<std::byte[]>(std::max<std::size_t>(signature->bytes(), 1)));
      tasks_.push_back({.signature = signature,
                        .in = running_.zeros.back().get(),
                        .out = running_.zeros.back().get(),
                        .allocator = nullptr});
    }
  }
  const Kind kind = running_.signatures.front()->kind;
  if (!running_.tracks.empty()) timeline_->started(running_.tracks, kind, now);
  backend->begin(static_cast<OperationTag>(running_.position.stream) << kTagShift |
                 running_.position.number);
  const Collective& collective = *find_collective(kind);
  on_devices_ = running_.signatures.front()->device != Device::Host;
  operation_ = on_devices_ ? devices_->start({.process_set = running_.process_set,
                                              .host = *backend,
                                              .collective = collective,
                                              .entries = running_.entries,
                                              .tasks = tasks_})
                           : collective.start(*backend, tasks_);
  return {};
}

void Dispatcher::count_path() {
  std::string_view path = operation_->path();
  const Backend* const backend = on_devices_ ? devices_->backend() : backend_;
  if (path.empty()) path = backend->path(running_.signatures.front()->kind, bytes_);
  const Lock lock(paths_mutex_);
  auto found = paths_.find(path);
  if (found == paths_.end()) found = paths_.emplace(std::string(path), PathCount{}).first;
  found->second.operations += 1;
  found->second.bytes += bytes_;
}

Error Dispatcher::where(Error error) const {
  const Entry* first = running_.entries.empty() ? nullptr : running_.entries.front().get();
  if (error.tensor.empty() && first != nullptr) error.tensor = first->name;
  return error;
}

void Dispatcher::complete() {
  refusal_ = operation_ ? operation_->refusal() : std::nullopt;
  if (refusal_) {
    refusal_ = where(*std::move(refusal_));
  } else if (operation_ && !running_.change) {
    count_path();
  }
  operation_.reset();
  if (on_devices_) devices_->end(running_.entries);
  if (!running_.tracks.empty()) {
    timeline_->finished(running_.tracks, running_.signatures, Clock::now());
  }
  if (running_.change && !running_.change->added) {
    if (devices_ != nullptr) devices_->forget(running_.change->id);
    sets_.erase(running_.change->id);
    started_.erase(Position{.stream = Position::Stream::Proposals,
                            .number = proposed_number(running_.change->generation, 0, 0)}
                       .order());
  }
  changed_ = running_.change;
  for (auto& entry : running_.entries) {
    if (!entry) continue;
    if (running_.value) entry->work->value = running_.value;
    completed_.push_back(std::move(entry));
  }
  running_ = {};
}

Result<Step> Dispatcher::step(TimePoint now) {
  if (!operation_) {
    if (queue_.empty()) return Step::Blocked;
    if (auto started = start(now); !started) return where(std::move(started).error());
    if (!operation_) {
      complete();
      return Step::Done;
    }
  }
  auto step = operation_->step();
  if (!step) return where(std::move(step).error());
  switch (*step) {
    case Step::Advanced:
      last_progress_ = now;
      return Step::Advanced;
    case Step::Done:
      last_progress_ = now;
      complete();
      return Step::Done;
    case Step::Blocked:
      break;
  }
  return Step::Blocked;
}

std::string Dispatcher::under_way(Rank rank) const {
  if (!operation_ || !std::ranges::binary_search(backend_->members().ranks, rank)) return {};
  return where({}).tensor;
}

std::optional<TimePoint> Dispatcher::deadline() const {
  if (!operation_ || timeout_ <= Duration::zero()) return std::nullopt;
  return std::max(last_progress_ + timeout_, patient_until_);
}

bool Dispatcher::stalled(TimePoint now) const {
  return operation_ && timeout_ > Duration::zero() && now - last_progress_ >= timeout_;
}

bool Dispatcher::overdue(TimePoint now) const { return stalled(now) && now >= patient_until_; }

std::vector<Rank> Dispatcher::awaited() const {
  if (!operation_) return {};
  std::vector<Rank> ranks = operation_->waiting_for();
  std::erase(ranks, self());
  if (ranks.empty()) {  // somebody must be
    ranks = backend_->members().ranks;
    std::erase(ranks, self());
  }
  return ranks;
}

Standing Dispatcher::standing(const Position& position, TimePoint now) const {
  Standing standing;
  standing.quiet = now - last_progress_;
  if (operation_) standing.waits_for = awaited();
  const auto started = started_.find(position.order());
  if (started == started_.end() || started->second < position.number) return standing;
  const bool inside = operation_ && running_.position == position;
  standing.state = inside ? Standing::State::In : Standing::State::Past;
  return standing;
}

Error Dispatcher::stuck(TimePoint now) const {
  Error error{.code = Code::Timeout};
  const Entry* first = running_.entries.front().get();
  error.tensor = first != nullptr ? first->name : "";
  error.waited_s = std::chrono::duration<double>(now - last_progress_).count();
  error.message = "'" + error.tensor + "' was started by all ranks but has made no progress for " +
                  std::to_string(static_cast<int>(error.waited_s)) + " s";
  const std::string_view doing = on_devices_ ? devices_->doing() : std::string_view();
  if (!doing.empty()) {
    error.message += ", while " + std::string(doing);
  }
  return error;
}

std::vector<std::unique_ptr<Entry>> Dispatcher::take_all() {
  operation_.reset();  // before the memory it uses
  if (std::exchange(on_devices_, false)) devices_->end(running_.entries);
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

void Dispatcher::log_paths(Log& log) const {
  if (!log.on(LogLevel::Info)) return;
  for (const auto& [path, count] : paths()) {
    log.write(LogLevel::Info, "data path " + path + ": " + std::to_string(count.operations) +
                                  " batches, " + std::to_string(count.bytes) + " bytes");
  }
}

}  // namespace farandole
