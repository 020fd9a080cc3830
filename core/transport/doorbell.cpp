#include "transport/doorbell.h"

#include <unistd.h>

#include <cerrno>

namespace farandole {

void Doorbell::ring_slow() const noexcept {
  // Several ranks may ring at once: the one that takes the name out of the word writes.
  const auto sleeper = static_cast<Sleeper>(word_->sleeper.exchange(
      static_cast<std::uint32_t>(Sleeper::Nobody), std::memory_order_seq_cst));
  int fd = -1;
  if (sleeper == Sleeper::EngineThread) fd = engine_fd_;
  if (sleeper == Sleeper::Waiter) fd = waiter_fd_;
  if (fd < 0) return;
  const std::uint64_t one = 1;
  // A full counter (EAGAIN) means that the bell was rung already; a closed one, that there is
  // nobody to wake.
  while (::write(fd, &one, sizeof one) < 0 && errno == EINTR) {
  }
}

}  // namespace farandole
