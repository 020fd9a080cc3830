#include "cuda/stream.h"

#include <chrono>
#include <thread>
#include <utility>

#include "faults.h"

namespace farandole::fakes {
namespace {

std::atomic<unsigned>& longest_delay_us() {
  static std::atomic<unsigned> delay_us{
      static_cast<unsigned>(number_of_environment("FAKE_CUDA_DELAY_US", 200))};
  return delay_us;
}

std::uint64_t next_seed() {
  static const auto seed = static_cast<std::uint64_t>(number_of_environment("FAKE_CUDA_SEED", 1));
  static std::atomic<std::uint64_t> streams{0};
  const std::uint64_t number = streams.fetch_add(1, std::memory_order_relaxed);
  return (seed * 0x9E3779B97F4A7C15U) ^ ((number + 1) * 0xBF58476D1CE4E5B9U);
}

}  // namespace

struct Stream::Command {
  std::function<void()> work;
  Pace pace;
  Ticket then;
  Command* next = nullptr;
};

Stream::Stream(Context& context, bool blocking)
    : context_(context), blocking_(blocking), random_(next_seed() | 1U) {
  // Nobody joins it: it may be held, or wait for an event, when the process ends.
  std::thread([this] { run(); }).detach();
}

void Stream::push(std::function<void()> work, Pace pace, Ticket then) {
  pending_.fetch_add(1, std::memory_order_relaxed);
  auto* command = new Command{std::move(work), pace, then};
  command->next = newest_.load(std::memory_order_relaxed);
  while (!newest_.compare_exchange_weak(command->next, command, std::memory_order_release,
                                        std::memory_order_relaxed)) {
  }
  std::atomic_ref(pushes_).fetch_add(1, std::memory_order_release);
  futex_wake_all(pushes_);
}

Ticket Stream::mark() {
  const Ticket ticket = Ticket::make();
  push([] {}, Pace::AtOnce, ticket);
  return ticket;
}

void Stream::finish() {
  const Ticket ticket = mark();
  while (!ticket.done() && !over_.load(std::memory_order_acquire)) {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

void Stream::wait_for(Ticket ticket) {
  push([ticket] { ticket.wait(); }, Pace::AtOnce);
}

bool Stream::idle() const noexcept { return pending_.load(std::memory_order_acquire) == 0; }

void Stream::close() {
  push([this] { closed_ = true; }, Pace::AtOnce);
}

void Stream::hold() noexcept { std::atomic_ref(held_).store(1, std::memory_order_relaxed); }

void Stream::let_go() noexcept {
  std::atomic_ref(held_).store(0, std::memory_order_release);
  futex_wake_all(held_);
}

void Stream::set_delay_us(unsigned delay_us) noexcept {
  longest_delay_us().store(delay_us, std::memory_order_relaxed);
}

Stream::Command* Stream::take() {
  for (;;) {
    const std::uint32_t seen = std::atomic_ref(pushes_).load(std::memory_order_relaxed);
    if (Command* newest = newest_.exchange(nullptr, std::memory_order_acquire)) {
      Command* oldest = nullptr;
      while (newest != nullptr) {
        Command* older = std::exchange(newest->next, oldest);
        oldest = std::exchange(newest, older);
      }
      return oldest;
    }
    futex_wait(pushes_, seen);
  }
}

void Stream::delay() {
  const unsigned longest_us = longest_delay_us().load(std::memory_order_relaxed);
  if (longest_us == 0) return;
  random_ ^= random_ << 13U;
  random_ ^= random_ >> 7U;
  random_ ^= random_ << 17U;
  const auto chosen_us = static_cast<unsigned>((random_ >> 20U) % (longest_us + 1));
  if (chosen_us != 0) std::this_thread::sleep_for(std::chrono::microseconds(chosen_us));
}

void Stream::run() {
  while (!closed_) {
    for (Command* command = take(); command != nullptr;) {
      if (command->pace == Pace::Late) delay();
      while (std::atomic_ref(held_).load(std::memory_order_acquire) != 0) futex_wait(held_, 1);
      command->work();
      const Ticket then = command->then;
      delete std::exchange(command, command->next);
      pending_.fetch_sub(1, std::memory_order_release);
      if (then.word() != nullptr) then.complete();
    }
  }
  over_.store(true, std::memory_order_release);
}

}  // namespace farandole::fakes
