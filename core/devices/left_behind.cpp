#include "devices/left_behind.h"

#include <mutex>
#include <vector>

namespace farandole {

void leave_behind(std::shared_ptr<void> what) {
  static auto& lock = *new std::mutex;
  static auto& kept =
      *new std::vector<std::shared_ptr<void>>;  // never freed: drivers are gone by then
  const std::lock_guard guard(lock);
  kept.push_back(std::move(what));
}

}  // namespace farandole
