#include "transport/offers.h"

#include <bit>
#include <cstddef>
#include <cstring>
#include <string>
#include <utility>

namespace rueda {
namespace {

/// What a note says before the contribution: the head of a slot as it lies in memory.
constexpr std::size_t kNoteHead = offsetof(OfferSlot, data);

constexpr unsigned kLooks = 16;

static_assert(std::endian::native == std::endian::little);
static_assert(kNoteHead == 32 && sizeof(OfferSlot) <= kMaxNote);

}  // namespace

Offers::Offers(std::vector<Member> members, int self)
    : members_(std::move(members)), self_(static_cast<std::size_t>(self)) {
  last_.resize(members_.size());
  for (std::size_t q = 0; q < members_.size(); ++q) {
    Member& member = members_[q];
    if (member.link != nullptr) {
      remote_.push_back(q);
      member.link->deliver_notes_to(this);
    }
    if (member.board != nullptr) continue;
    private_boards_.push_back(std::make_unique<OfferBoard>());
    member.board = private_boards_.back().get();
  }
}

Offers::~Offers() {
  for (const std::size_t q : remote_) members_[q].link->deliver_notes_to(nullptr);
}

std::unique_ptr<Offers> Offers::alone() {
  return std::make_unique<Offers>(std::vector<Member>(1), 0);
}

/// seq_cst here and where it is stored: see doorbell.h, and offer() beside close().
bool Offers::published(std::size_t member, std::uint32_t round) const noexcept {
  return slot(member, round).round.load(std::memory_order_seq_cst) == round;
}

/// That member has begun another operation with this one, which has not: so whatever it publishes
/// in this round comes at a later position. Its note is behind the data of that operation, which
/// this rank does not take before its offer is settled.
bool Offers::ahead(std::size_t member) const noexcept {
  return members_[member].link != nullptr && members_[member].link->ahead();
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
      may = may && published(q, round_) && !ahead(q) &&
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

void Offers::publish(const Tag& tag, std::size_t used) noexcept {
  OfferSlot& mine = slot(self_, round_ + 1);
  mine.count = tag.count;
  mine.key = tag.key;
  mine.signature = tag.signature;
  mine.call = tag.call;
  mine.position = tag.position;
  used_[(round_ + 1) % 2] = used;
  mine.round.store(++round_, std::memory_order_seq_cst);
  for (std::size_t q = 0; q < members_.size(); ++q) {
    if (q != self_ && members_[q].link == nullptr) members_[q].bell.ring();
  }
  if (remote()) unsent_.store(true, std::memory_order_release);
}

void Offers::offer(const Tag& tag, std::size_t said, std::size_t used) noexcept {
  open_ = true;
  equal_ = 0;
  said_ = said;
  publish(tag, used);
  listen();
  for (std::size_t q = 0; q < members_.size(); ++q) {
    // Either it sees this offer when it closes, or this rank sees here that it has closed. (The
    // boards of members elsewhere are copies, in which nobody closes.)
    if (members_[q].board->closed.load(std::memory_order_seq_cst) != 0 && q != self_ &&
        !published(q, round_)) {
      ask_one(q);
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
          theirs.position != mine.position ||
          (said_ != 0 && std::memcmp(theirs.data.data(), mine.data.data(), said_) != 0)) {
        return Verdict::Refused;
      }
      if (q == equal_) ++equal_;
    } else if (ahead(q)) {
      return Verdict::Refused;
    } else {
      all = false;
    }
  }
  return all ? Verdict::Agreed : Verdict::Open;
}

void Offers::settle() noexcept {
  open_ = false;
  if (closed_ && awaited()) decline();
  listen();
}

void Offers::close() noexcept {
  if (closed_) return;
  closed_ = true;
  members_[self_].board->closed.store(1, std::memory_order_seq_cst);
  // While an own offer is open its round cannot have ended for the others.
  if (!open_ && awaited()) decline();
  listen();
}

void Offers::reopen() noexcept {
  if (!closed_) return;
  closed_ = false;
  members_[self_].board->closed.store(0, std::memory_order_seq_cst);
  listen();
}

void Offers::ask() noexcept {
  if (remote()) return;  // the round is told to everybody
  for (std::size_t q = 0; q < members_.size(); ++q) {
    if (q != self_ && !published(q, round_)) ask_one(q);
  }
}

/// A member of this host.
void Offers::ask_one(std::size_t member) noexcept {
  members_[member].board->asked.store(1, std::memory_order_seq_cst);
  members_[member].bell.ring();
}

void Offers::called(std::uint32_t round) noexcept {
  called_ = round;
  if (round != round_ + 1) return;  // of one that is over here
  members_[self_].board->asked.store(1, std::memory_order_seq_cst);
  listen();
}

bool Offers::asked() const noexcept {
  return members_[self_].board->asked.load(std::memory_order_seq_cst) != 0;
}

void Offers::answer() noexcept {
  if (open_) return;  // it may be about the next round: the call stays until this one is settled
  if (remote() && called_ == round_ + 1 && !awaited())
    return;  // the call was faster than the offer
  members_[self_].board->asked.store(0, std::memory_order_seq_cst);
  if (awaited()) decline();
  listen();
}

/// Notes matter while an own offer is open, and while others are to be refused.
void Offers::listen() noexcept {
  if (remote()) listening_.store(open_ || closed_ || asked(), std::memory_order_relaxed);
}

void Offers::hand_over() {
  unsent_.store(false, std::memory_order_relaxed);
  while (handed_over_ != round_) {
    const std::uint32_t round = ++handed_over_;
    // It stays as it is until all others have published in the next round, having read it.
    const OfferSlot& mine = slot(self_, round);
    const std::span<const std::byte> body(reinterpret_cast<const std::byte*>(&mine),
                                          kNoteHead + used_[round % 2]);
    for (const std::size_t q : remote_) members_[q].link->post_note(body);
  }
}

void Offers::refuse() noexcept {
  heard_ = false;
  if (closed_ && !open_ && awaited()) decline();
}

Result<bool> Offers::move() {
  bool moved = false;
  const bool listens = listening_.load(std::memory_order_relaxed);
  // Whoever only has to refuse may let the others wait a little: looking costs a system call each.
  links_listen_ = listens;
  sending_ = false;
  const bool looks = listens && (open_ || asked() || ++looks_ % kLooks == 0);
  for (const std::size_t q : remote_) {
    PeerLink& link = *members_[q].link;
    link.listen(listens);
    auto out = link.pump_out();
    if (!out) return out;
    moved = moved || *out;
    sending_ = sending_ || link.sending();
  }
  for (const std::size_t q : remote_) {
    if (!looks) break;
    // Everybody says one thing in a round.
    if (open_ && published(q, round_)) continue;
    auto in = members_[q].link->pump_in();
    if (!in) return in;
    moved = moved || *in;
  }
  return moved;
}

Result<void> Offers::note(Rank from, std::span<const std::byte> body) {
  const auto q = static_cast<std::size_t>(from);
  std::uint32_t round = 0;
  if (body.size() >= kNoteHead) std::memcpy(&round, body.data(), sizeof round);
  OfferBoard& board = *members_[q].board;
  if (body.size() < kNoteHead || body.size() > sizeof(OfferSlot) || round != last_[q] + 1) {
    Error error;
    error.peer = from;
    error.message = "rank " + std::to_string(from) + " made an offer that makes no sense";
    return error;
  }
  OfferSlot& theirs = board.slots[round % 2];
  constexpr std::size_t kRound = sizeof round;  // stored last
  std::memcpy(reinterpret_cast<std::byte*>(&theirs) + kRound, body.data() + kRound,
              body.size() - kRound);
  theirs.round.store(round, std::memory_order_seq_cst);
  last_[q] = round;
  heard_ = true;
  return {};
}

}  // namespace rueda
