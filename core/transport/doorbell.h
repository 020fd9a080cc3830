/// Doorbells: how a rank wakes a sleeping rank of the same host.
///
/// Every rank has one bell word in its shared segment. The word says which thread of that rank must
/// be woken: none (a thread is polling right now), its engine thread, or a user thread that waits
/// and drives the engine. A peer that publishes something for that rank (a flag, a message) stores
/// it with seq_cst order and then calls ring(): one load if nobody sleeps, else one write to an
/// eventfd. A thread that is about to sleep stores its name in the word (seq_cst), then checks once
/// more everything that it waits for, and only then sleeps. So no wake-up is lost.
#pragma once

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>

namespace farandole {

enum class Sleeper : std::uint32_t { Nobody = 0, EngineThread = 1, Waiter = 2 };

/// Lies in shared memory. Its initial state is all zero.
struct alignas(128) BellWord {
  std::atomic<std::uint32_t> sleeper;
};

/// Rings one rank. Owns neither the descriptors nor the word.
class Doorbell {
 public:
  Doorbell() = default;
  Doorbell(BellWord* word, int engine_fd, int waiter_fd) noexcept
      : word_(word), engine_fd_(engine_fd), waiter_fd_(waiter_fd) {}

  /// Wakes the rank if it sleeps. Call after a seq_cst store of what it should see. Any thread.
  void ring() const noexcept {
    if (word_ != nullptr && word_->sleeper.load(std::memory_order_seq_cst) != 0) ring_slow();
  }

 private:
  void ring_slow() const noexcept {
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

  BellWord* word_ = nullptr;
  int engine_fd_ = -1;
  int waiter_fd_ = -1;
};

}  // namespace farandole
