/// Objects behind handles. They are never deleted, so a handle that was destroyed is always known
/// as such, and no new handle has its value.
#pragma once

#include <atomic>

namespace farandole::fakes {

/// What every object behind a handle has.
template <typename T>
class Slot {
 public:
  Slot() = default;
  Slot(const Slot&) = delete;
  Slot& operator=(const Slot&) = delete;

  [[nodiscard]] bool alive() const noexcept { return alive_.load(std::memory_order_relaxed); }
  /// False: it was dead already.
  bool bury() noexcept { return alive_.exchange(false, std::memory_order_relaxed); }

  /// Takes a new object for ever.
  static T* keep(T* object) noexcept {
    object->next_ = newest_.load(std::memory_order_relaxed);
    while (!newest_.compare_exchange_weak(object->next_, object, std::memory_order_release,
                                          std::memory_order_relaxed)) {
    }
    return object;
  }
  /// All that were ever made, with those that are dead.
  template <typename Visit>
  static void for_each(Visit visit) {
    for (T* object = newest_.load(std::memory_order_acquire); object != nullptr;
         object = object->next_) {
      visit(*object);
    }
  }

 private:
  static inline std::atomic<T*> newest_{nullptr};
  std::atomic<bool> alive_{true};
  T* next_ = nullptr;
};

}  // namespace farandole::fakes
