#include "cuda/ticket.h"

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>

namespace farandole::fakes {
namespace {

constexpr std::size_t kPageWords = 4096;

/// Zeroed pages that nobody has written: the thread sanitizer knows of no one who made the word.
std::uint32_t* new_page() {
  void* page = ::mmap(nullptr, kPageWords * sizeof(std::uint32_t), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) {
    std::perror("fakes: tickets");
    std::abort();
  }
  return static_cast<std::uint32_t*>(page);
}

}  // namespace

void futex_wait(std::uint32_t& word, std::uint32_t while_value) noexcept {
  ::syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, while_value, nullptr, nullptr, 0);
}

void futex_wake_all(std::uint32_t& word) noexcept {
  ::syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0);
}

Ticket Ticket::make() {
  // Each thread takes words of its own, so that taking one orders nothing.
  thread_local std::uint32_t* page = nullptr;
  thread_local std::size_t taken = kPageWords;
  if (taken == kPageWords) {
    page = new_page();
    taken = 0;
  }
  return Ticket(page + taken++);
}

void Ticket::complete() const noexcept {
  std::atomic_ref(*word_).store(1, std::memory_order_release);
  futex_wake_all(*word_);
}

bool Ticket::done() const noexcept {
  return word_ == nullptr || std::atomic_ref(*word_).load(std::memory_order_acquire) != 0;
}

void Ticket::wait() const noexcept {
  while (!done()) futex_wait(*word_, 0);
}

}  // namespace farandole::fakes
