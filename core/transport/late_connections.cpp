#include "transport/late_connections.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

namespace farandole {

Result<std::unique_ptr<LateConnections>> LateConnections::open() {
  Fd bell(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!bell) return Error::system("eventfd", errno);
  return std::unique_ptr<LateConnections>(new LateConnections(std::move(bell)));
}

void LateConnections::ask(Rank rank) noexcept {
  {
    const Lock lock(mutex_);
    if (!known_.insert(rank).second) return;
    asked_.push_back(rank);
  }
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(bell_.get(), &one, sizeof one);
}

std::vector<Rank> LateConnections::asked() {
  std::uint64_t count;
  while (::read(bell_.get(), &count, sizeof count) < 0 && errno == EINTR) {
  }
  const Lock lock(mutex_);
  return std::exchange(asked_, {});
}

void LateConnections::bring(Arrival arrival) {
  const Lock lock(mutex_);
  arrivals_.push_back(std::move(arrival));
  arrived_.store(true, std::memory_order_seq_cst);
}

std::vector<LateConnections::Arrival> LateConnections::take() {
  const Lock lock(mutex_);
  arrived_.store(false, std::memory_order_seq_cst);
  return std::exchange(arrivals_, {});
}

}  // namespace farandole
