#include "transport/note_exchange.h"

#include <algorithm>

namespace rueda {
namespace {

/// A member that only declines looks at its links each so many times.
constexpr unsigned kLooks = 16;

}  // namespace

void NoteExchange::add(std::uint64_t subject, Proposals& proposals) {
  ends_[subject] = &proposals;
  for (PeerLink* const link : proposals.links()) {
    if (std::ranges::find(links_, link) != links_.end()) continue;
    links_.push_back(link);
    link->deliver_notes_to(this);
  }
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
  awaited_.clear();
  for (const auto& [subject, proposals] : ends_) {
    proposals->tell_links();
    listens = listens || proposals->listens();
    if (proposals->in_a_hurry()) proposals->add_awaited(awaited_);
  }
  if (listens && ++looks_ % kLooks == 0) {
    for (const auto& [subject, proposals] : ends_) {
      if (proposals->listens()) proposals->add_awaited(awaited_);
    }
  }
  bool moved = false;
  sending_ = false;
  for (PeerLink* const link : links_) {
    auto out = link->pump_out();
    if (!out) return out;
    moved = moved || *out;
    sending_ = sending_ || link->sending();
  }
  for (PeerLink* const link : awaited_) {
    auto in = link->pump_in();
    if (!in) return in;
    moved = moved || *in;
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

}  // namespace rueda
