/// A stream: a thread that runs commands in order, late on purpose.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

#include "cuda/slots.h"
#include "cuda/ticket.h"

namespace farandole::fakes {

class Context;

/// Pushing a command orders the stream's thread after the host. Nothing that a host does with a
/// stream orders it after the stream's thread, but waiting for a ticket and idle(). So the queue is
/// a list that hosts release into and the thread acquires from, and never the other way round.
class Stream : public Slot<Stream> {
 public:
  enum class Pace { Late, AtOnce };

  /// `blocking`: it and the null stream wait for each other.
  Stream(Context& context, bool blocking);

  /// `then` is completed when the command is done; the stream may be idle by then.
  void push(std::function<void()> work, Pace pace = Pace::Late, Ticket then = {});
  /// Done when all that was pushed so far is.
  [[nodiscard]] Ticket mark();
  /// Waits for all that was pushed so far, also if the stream is closed meanwhile.
  void finish();
  /// The stream goes on once that is done.
  void wait_for(Ticket ticket);
  /// Whether all that was pushed is done; if so the caller is ordered after it.
  [[nodiscard]] bool idle() const noexcept;
  /// Its thread ends after what was pushed.
  void close();

  void hold() noexcept;
  void let_go() noexcept;
  void capture(bool capturing) noexcept {
    const bool before = capturing_.exchange(capturing, std::memory_order_relaxed);
    captures().fetch_add(static_cast<int>(capturing) - static_cast<int>(before));
  }
  /// How many streams capture.
  static std::atomic<int>& captures() {
    static std::atomic<int> count{0};
    return count;
  }

  [[nodiscard]] bool capturing() const noexcept {
    return capturing_.load(std::memory_order_relaxed);
  }
  [[nodiscard]] bool blocking() const noexcept { return blocking_; }
  [[nodiscard]] Context& context() const noexcept { return context_; }

  /// The longest delay of all streams.
  static void set_delay_us(unsigned delay_us) noexcept;

 private:
  struct Command;

  void run();
  /// All commands that were pushed, oldest first; waits until there is one.
  Command* take();
  void delay();

  Context& context_;
  const bool blocking_;
  std::uint64_t random_;
  std::atomic<Command*> newest_{nullptr};
  std::atomic<std::uint64_t> pending_{0};
  std::uint32_t pushes_ = 0;  ///< wakes the thread; by atomic_ref only
  std::uint32_t held_ = 0;    ///< by atomic_ref only
  std::atomic<bool> capturing_{false};
  bool closed_ = false;            ///< of the stream's thread
  std::atomic<bool> over_{false};  ///< the thread does nothing more
};

}  // namespace farandole::fakes
