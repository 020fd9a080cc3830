/// How a rank that sleeps is woken by another one on the same host.
///
/// Every rank has one bell word in its shared segment. It says who of that rank must be rung:
/// nobody (some thread of it is polling right now), its engine thread, or a thread of the user that
/// waits and drives the engine. Whoever publishes something for that rank (a flag, a message)
/// stores it with seq_cst order and then calls ring(): one load when nobody sleeps, one write to an
/// eventfd when somebody does. Whoever is about to sleep stores its name in the word (seq_cst),
/// then looks once more at everything it waits for, and only then sleeps: so no wake-up is ever
/// lost.
#pragma once

#include <atomic>
#include <cstdint>

namespace rueda {

enum class Sleeper : std::uint32_t { Nobody = 0, EngineThread = 1, Waiter = 2 };

/// Lies in shared memory; all zero is its initial state.
struct alignas(128) BellWord {
  std::atomic<std::uint32_t> sleeper;
};

/// Rings one rank. Does not own the descriptors nor the word.
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
  void ring_slow() const noexcept;  // claims the word by exchange, so that one ringer writes

  BellWord* word_ = nullptr;
  int engine_fd_ = -1;
  int waiter_fd_ = -1;
};

}  // namespace rueda
