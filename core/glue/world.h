/// The engine that the glue's kernels submit to: Python says when one begins and ends.
#pragma once

#include <atomic>
#include <cstdint>

#include "bindings/capi.h"

namespace farandole::glue {

struct World {
  const FarandoleApi* api;
  void* engine;
  std::int32_t rank;
  std::int32_t size;
  std::int32_t local_rank;
  std::int32_t local_size;
};

/// One world at a time, used by any number of threads. A thread that uses it may do so again.
class CurrentWorld {
 public:
  /// Keeps the world alive while somebody uses it; null if there is none.
  class Use {
   public:
    explicit Use(CurrentWorld& current) noexcept : current_(current) {
      // Counted first: leave() empties first and then looks at the count.
      current_.users_.fetch_add(1);
      world_ = current_.world_.load();
    }
    ~Use() {
      if (current_.users_.fetch_sub(1) == 1) current_.users_.notify_all();
    }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    explicit operator bool() const noexcept { return world_ != nullptr; }
    const World* operator->() const noexcept { return world_; }

   private:
    CurrentWorld& current_;
    const World* world_;
  };

  void enter(const World& world) {
    leave();
    world_.store(new World(world));
  }

  /// Returns when nobody uses it any more: the engine may end.
  void leave() {
    const World* world = world_.exchange(nullptr);
    for (int users = users_.load(); users != 0; users = users_.load()) users_.wait(users);
    delete world;
  }

 private:
  std::atomic<const World*> world_{nullptr};
  std::atomic<int> users_{0};
};

}  // namespace farandole::glue
