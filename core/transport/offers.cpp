#include "transport/offers.h"

#include <cstring>
#include <utility>

namespace rueda {

Offers::Offers(std::vector<Member> members, int self)
    : members_(std::move(members)), self_(static_cast<std::size_t>(self)) {}

std::unique_ptr<Offers> Offers::alone() {
  auto board = std::make_unique<OfferBoard>();
  auto offers =
      std::make_unique<Offers>(std::vector<Member>{{.board = board.get(), .bell = {}}}, 0);
  offers->private_board_ = std::move(board);
  return offers;
}

/// seq_cst here and where it is stored: see doorbell.h, and offer() beside close().
bool Offers::published(std::size_t member, std::uint32_t round) const noexcept {
  return slot(member, round).round.load(std::memory_order_seq_cst) == round;
}

bool Offers::awaited() const noexcept {
  for (std::size_t q = 0; q < members_.size(); ++q) {
    if (q != self_ && published(q, round_ + 1)) return true;
  }
  return false;
}

bool Offers::may_offer() noexcept {
  if (open_) return false;
  bool may = true;
  bool refused = false;
  for (std::size_t q = 0; q < members_.size(); ++q) {
    if (q == self_) continue;
    if (published(q, round_ + 1)) {
      refused = refused || slot(q, round_ + 1).count == 0;
    } else {
      may = may && published(q, round_) &&
            members_[q].board->closed.load(std::memory_order_relaxed) == 0;
    }
  }
  // Whoever has begun the next round has seen that all have published in this one.
  if (refused) decline();
  return may && !refused;
}

std::byte* Offers::room() const noexcept { return slot(self_, round_ + 1).data.data(); }

const std::byte* Offers::room_of(int member) const noexcept {
  return slot(static_cast<std::size_t>(member), round_).data.data();
}

void Offers::publish(const Tag& tag) noexcept {
  OfferSlot& mine = slot(self_, round_ + 1);
  mine.count = tag.count;
  mine.key = tag.key;
  mine.signature = tag.signature;
  mine.call = tag.call;
  mine.round.store(++round_, std::memory_order_seq_cst);
  for (std::size_t q = 0; q < members_.size(); ++q) {
    if (q != self_) members_[q].bell.ring();
  }
}

void Offers::offer(const Tag& tag, std::size_t said) noexcept {
  open_ = true;
  equal_ = 0;
  said_ = said;
  publish(tag);
  for (std::size_t q = 0; q < members_.size(); ++q) {
    // Either it sees this offer when it closes, or this rank sees here that it has closed.
    if (members_[q].board->closed.load(std::memory_order_seq_cst) != 0 && q != self_ &&
        !published(q, round_)) {
      ask();
      return;
    }
  }
}

Offers::Verdict Offers::verdict() noexcept {
  const OfferSlot& mine = slot(self_, round_);
  bool all = true;
  for (std::size_t q = equal_; q < members_.size(); ++q) {
    if (q == self_ || published(q, round_)) {
      const OfferSlot& theirs = slot(q, round_);
      if (theirs.count != mine.count || theirs.key != mine.key ||
          theirs.signature != mine.signature || theirs.call != mine.call ||
          (said_ != 0 && std::memcmp(theirs.data.data(), mine.data.data(), said_) != 0)) {
        return Verdict::Refused;
      }
      if (q == equal_) ++equal_;
    } else {
      all = false;
    }
  }
  return all ? Verdict::Agreed : Verdict::Open;
}

void Offers::settle() noexcept {
  open_ = false;
  if (closed_ && awaited()) decline();
}

void Offers::close() noexcept {
  if (closed_) return;
  closed_ = true;
  members_[self_].board->closed.store(1, std::memory_order_seq_cst);
  // While an own offer is open its round cannot have ended for the others.
  if (!open_ && awaited()) decline();
}

void Offers::reopen() noexcept {
  if (!closed_) return;
  closed_ = false;
  members_[self_].board->closed.store(0, std::memory_order_seq_cst);
}

void Offers::ask() noexcept {
  for (std::size_t q = 0; q < members_.size(); ++q) {
    if (q == self_ || published(q, round_)) continue;
    members_[q].board->asked.store(1, std::memory_order_seq_cst);
    members_[q].bell.ring();
  }
}

bool Offers::asked() const noexcept {
  return members_[self_].board->asked.load(std::memory_order_seq_cst) != 0;
}

void Offers::answer() noexcept {
  if (open_) return;  // it may be about the next round: the call stays until this one is settled
  members_[self_].board->asked.store(0, std::memory_order_seq_cst);
  if (awaited()) decline();
}

}  // namespace rueda
