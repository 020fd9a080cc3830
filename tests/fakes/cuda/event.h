/// An event: the place of its last record.
#pragma once

#include <atomic>

#include "cuda/slots.h"
#include "cuda/ticket.h"

namespace farandole::fakes {

class Context;

class Event : public Slot<Event> {
 public:
  explicit Event(Context& context) : context_(context) {}

  void recorded(Ticket ticket) noexcept { place_.store(ticket.word(), std::memory_order_relaxed); }
  /// Of the last record; done, if there was none.
  [[nodiscard]] Ticket place() const noexcept {
    return Ticket(place_.load(std::memory_order_relaxed));
  }
  [[nodiscard]] Context& context() const noexcept { return context_; }

 private:
  Context& context_;
  std::atomic<std::uint32_t*> place_{nullptr};
};

}  // namespace farandole::fakes
