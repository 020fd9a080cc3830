/// The objects of Python that own memory which the engine may know.
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <new>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/execution/work.h"

namespace farandole::bindings {

/// Keeps them until the engine is done with the operation, whatever Python does meanwhile: an
/// exception (Ctrl-C) may come before any instruction of Python, so nothing that is written there
/// could. The engine itself lets go of nothing, as that takes the interpreter lock.
///
/// An operation enters under the interpreter lock, and in the call that submits it: until then that
/// call's arguments keep the objects. All members with the lock.
class KeptObjects {
 public:
  /// Until `work` is done. If there is no memory for that: for ever.
  void keep(std::shared_ptr<const Work> work, nanobind::handle owners) {
    if (owners.is_none()) return;
    if (kept_.size() >= sweep_at_) sweep();
    Kept kept{.work = std::move(work), .owners = nanobind::borrow(owners)};
    const Handle handle = kept.work->handle;
    try {
      kept_.insert_or_assign(handle, std::move(kept));
    } catch (const std::bad_alloc&) {
      static_cast<void>(nanobind::borrow(owners).release());
      throw;
    }
  }

  /// The operation is done. What may be in use nevertheless stays for ever.
  void release(Handle handle) {
    // What is released may run any code, which may come back here: taken out before.
    auto taken = kept_.extract(handle);
    if (taken && taken.mapped().work->in_use) static_cast<void>(taken.mapped().owners.release());
  }

  /// Nobody will wait for that one: it is let go when somebody calls after it is done.
  void abandon(Handle handle) { abandoned_.push_back(handle); }
  [[nodiscard]] bool abandoned() const noexcept { return !abandoned_.empty(); }
  /// The abandoned ones that are done; they leave the list.
  [[nodiscard]] std::vector<Handle> take_abandoned() {
    std::vector<Handle> over;
    std::erase_if(abandoned_, [&](Handle handle) {
      const auto found = kept_.find(handle);
      if (found != kept_.end() && !done(found->second)) return false;
      over.push_back(handle);
      return true;
    });
    return over;
  }

  /// Lets go of all that is done, also of what nobody has waited for yet.
  void sweep() {
    std::vector<nanobind::object> over;
    std::erase_if(kept_, [&](auto& entry) {
      if (!done(entry.second) || entry.second.work->in_use) return false;
      over.push_back(std::move(entry.second.owners));
      return true;
    });
    sweep_at_ = std::max(kSweepAt, 2 * kept_.size());
  }

  /// Something may work on them for ever.
  void give_up() noexcept {
    for (auto& [handle, kept] : kept_) static_cast<void>(kept.owners.release());
    kept_.clear();
  }

 private:
  struct Kept {
    std::shared_ptr<const Work> work;
    nanobind::object owners;
  };
  static bool done(const Kept& kept) noexcept {
    return kept.work->done.load(std::memory_order_acquire);
  }

  static constexpr std::size_t kSweepAt = 64;
  std::unordered_map<Handle, Kept> kept_;
  std::vector<Handle> abandoned_;
  std::size_t sweep_at_ = kSweepAt;
};

}  // namespace farandole::bindings
