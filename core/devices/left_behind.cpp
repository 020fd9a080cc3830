#include "devices/left_behind.h"

#include <vector>

#include "mutex.h"

namespace farandole {

void leave_behind(std::shared_ptr<void> what) {
  static auto& mutex = *new Mutex;
  static auto& kept =
      *new std::vector<std::shared_ptr<void>>;  // never freed: drivers are gone by then
  const Lock lock(mutex);
  kept.push_back(std::move(what));
}

}  // namespace farandole
