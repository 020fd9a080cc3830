/// A moment that comes once: when a stream has reached a place in its commands.
///
/// Whoever finds a ticket done is ordered after what was done before it, and after nothing else.
/// That is why tickets are never given back: a count of who still holds one would order the host
/// after streams that it never waited for, and hide its races from the thread sanitizer.
#pragma once

#include <cstdint>

namespace farandole::fakes {

class Ticket {
 public:
  Ticket() = default;  ///< of nothing: always done
  [[nodiscard]] static Ticket make();
  explicit Ticket(std::uint32_t* word) noexcept : word_(word) {}

  void complete() const noexcept;
  [[nodiscard]] bool done() const noexcept;
  /// Returns once it is done.
  void wait() const noexcept;
  [[nodiscard]] std::uint32_t* word() const noexcept { return word_; }

 private:
  std::uint32_t* word_ = nullptr;
};

/// The kernel's wait on a word, which, unlike std::atomic::wait, orders nothing by itself. Both
/// waits may return early.
void futex_wait(std::uint32_t& word, std::uint32_t while_value) noexcept;
void futex_wake_all(std::uint32_t& word) noexcept;

}  // namespace farandole::fakes
