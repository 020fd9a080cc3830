#include "transport/note_exchange.h"

#include <algorithm>
#include <utility>

namespace farandole {
namespace {

/// A member that only declines looks at its links each so many times.
constexpr unsigned kLooks = 16;

}  // namespace

void NoteExchange::add(std::uint64_t subject, Proposals& proposals) {
  ends_[subject] = &proposals;
  proposals.add_links(links_, false);
  for (PeerLink* const link : links_) link->deliver_notes_to(this);
}

bool NoteExchange::stirs() const noexcept {
  return sending_ || std::ranges::any_of(ends_, [](const auto& end) {
           const Proposals& proposals = *end.second;
           return proposals.listens() || proposals.must_tell_links() || proposals.unsent() ||
                  proposals.heard();
         });
}

bool NoteExchange::sending() const noexcept { return sending_ || unsent(); }

bool NoteExchange::unsent() const noexcept {
  return std::ranges::any_of(ends_, [](const auto& end) { return end.second->unsent(); });
}

void NoteExchange::send_notes() {
  for (const auto& [subject, proposals] : ends_) {
    if (proposals->unsent()) proposals->send_notes();
  }
}

Result<bool> NoteExchange::move() {
  bool listens = false;
  looked_at_.clear();
  for (const auto& [subject, proposals] : ends_) {
    proposals->tell_links();
    listens = listens || proposals->listens();
    if (proposals->in_a_hurry()) proposals->add_links(looked_at_, true);
  }
  if (listens && ++looks_ % kLooks == 0) {
    for (const auto& [subject, proposals] : ends_) {
      if (proposals->listens()) proposals->add_links(looked_at_, false);
    }
  }
  Result<bool> moved = false;
  const auto add = [&moved](Result<bool> more) {
    if (moved && (!more || *more)) moved = std::move(more);
  };
  sending_ = false;
  for (PeerLink* const link : links_) {
    if (link->connected()) add(link->pump_out());
    if (!link->sending()) continue;
    sending_ = sending_ || link->connected();
    // A slot may be written again before a slow member has its note: others may have refused that
    // round without it.
    link->keep_notes();
  }
  for (PeerLink* const link : looked_at_) {
    if (link->connected()) add(link->pump_in());
  }
  return moved;
}

bool NoteExchange::heard() const noexcept {
  return std::ranges::any_of(ends_, [](const auto& end) { return end.second->heard(); });
}

void NoteExchange::refuse() noexcept {
  for (const auto& [subject, proposals] : ends_) {
    if (proposals->heard()) proposals->refuse();
  }
}

/// What comes for a set that was removed was sent before all members had left it.
Result<void> NoteExchange::note(Rank from, std::uint64_t subject, std::span<const std::byte> body) {
  const auto found = ends_.find(subject);
  return found == ends_.end() ? Result<void>() : found->second->note(from, body);
}

}  // namespace farandole
