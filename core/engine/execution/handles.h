/// The handles of an engine: what each stands for until its caller takes it, and how many have come
/// to their end.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/base/engine_lock.h"
#include "engine/base/notifier.h"
#include "engine/execution/work.h"

namespace farandole {

class Handles {
 public:
  /// Handles are above `first`. Callbacks run on the notifier.
  Handles(Handle first, Notifier& notifier) noexcept : notifier_(notifier), last_(first) {}

  [[nodiscard]] Handle next() noexcept FARANDOLE_REQUIRES(engine_lock) { return ++last_; }
  /// Its handle is known from now on, and the engine has something to do.
  void add(std::shared_ptr<Work> work) FARANDOLE_REQUIRES(engine_lock) {
    const Handle handle = work->handle;
    works_.emplace(handle, std::move(work));
    unfinished_.fetch_add(1, std::memory_order_relaxed);
  }
  /// What a handle stands for; null if unknown.
  [[nodiscard]] std::shared_ptr<Work> find(Handle handle) const FARANDOLE_REQUIRES(engine_lock) {
    const auto found = works_.find(handle);
    return found == works_.end() ? nullptr : found->second;
  }
  /// The same, and forgets the handle.
  [[nodiscard]] std::shared_ptr<Work> take(Handle handle) FARANDOLE_REQUIRES(engine_lock) {
    auto found = works_.extract(handle);
    return found.empty() ? nullptr : std::move(found.mapped());
  }
  [[nodiscard]] std::vector<std::shared_ptr<Work>> take_all() FARANDOLE_REQUIRES(engine_lock) {
    std::vector<std::shared_ptr<Work>> works;
    works.reserve(works_.size());
    for (auto& [handle, work] : works_) works.push_back(std::move(work));
    works_.clear();
    return works;
  }

  /// All of it is over. Who waits for it has to be told: Progress::completed().
  void complete(const std::shared_ptr<Work>& work) FARANDOLE_REQUIRES(progress_lock) {
    unfinished_.fetch_sub(1, std::memory_order_relaxed);
    completions_.fetch_add(1);
    work->done.store(true, std::memory_order_seq_cst);  // before completed() looks who sleeps
    if (work->on_done) notifier_.post([work] { work->on_done(*work); });
  }

  // Any thread, without a lock.

  /// How many are not done.
  [[nodiscard]] std::size_t unfinished() const noexcept {
    return unfinished_.load(std::memory_order_relaxed);
  }
  /// How many have ended so far.
  [[nodiscard]] std::uint64_t completions() const noexcept { return completions_.load(); }
  /// All threads that could submit something have waited here since there were so many completions:
  /// as long as there are no more, nothing comes of this rank by itself. None: a thread is
  /// elsewhere.
  void stand_still(std::optional<std::uint64_t> since) noexcept {
    still_since_.store(since ? *since : kMoving);
  }
  [[nodiscard]] bool stands_still() const noexcept {
    return still_since_.load(std::memory_order_relaxed) == completions_.load();
  }

 private:
  static constexpr std::uint64_t kMoving = std::numeric_limits<std::uint64_t>::max();

  Notifier& notifier_;
  Handle last_ FARANDOLE_GUARDED_BY(engine_lock);
  std::unordered_map<Handle, std::shared_ptr<Work>> works_ FARANDOLE_GUARDED_BY(engine_lock);
  std::atomic<std::size_t> unfinished_{0};
  std::atomic<std::uint64_t> completions_{0};
  std::atomic<std::uint64_t> still_since_{kMoving};
};

}  // namespace farandole
