#include "transport/proposals.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "transport/note_exchange.h"

namespace farandole {
namespace {

/// The head of a note: that of a slot as it lies in memory.
constexpr std::size_t kNoteHead = offsetof(ProposalSlot, data);

static_assert(std::endian::native == std::endian::little);
static_assert(kNoteHead == 32 && sizeof(ProposalSlot) <= kMaxNote);

/// Zero, and without pages until they are written: a process may have many sets.
ProposalBoard* map_boards(std::size_t bytes) {
  void* const memory =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  return static_cast<ProposalBoard*>(memory);
}

}  // namespace

void UnmapBoards::operator()(ProposalBoard* boards) const noexcept {
  ::munmap(static_cast<void*>(boards), bytes);
}

Proposals::Proposals(std::vector<Member> members, int self, const Setting& setting)
    : members_(std::move(members)), self_(static_cast<std::size_t>(self)), setting_(setting) {
  last_.resize(members_.size());
  std::size_t without = 0;
  for (std::size_t q = 0; q < members_.size(); ++q) {
    if (members_[q].link != nullptr) remote_.push_back(q);
    if (members_[q].board == nullptr) ++without;
  }
  if (without != 0) {
    const std::size_t bytes = without * sizeof(ProposalBoard);
    private_boards_ = {map_boards(bytes), UnmapBoards{bytes}};
  }
  for (Member& member : members_) {
    if (member.board == nullptr) member.board = &private_boards_[--without];
  }
  if (remote()) setting_.notes->add(setting_.subject, *this);
  if (!setting_.reused) return;
  ProposalBoard& own = *members_[self_].board;
  for (ProposalSlot& slot : own.slots) slot.round.store(0, std::memory_order_relaxed);
  own.asked.store(0, std::memory_order_relaxed);
  own.closed.store(1, std::memory_order_seq_cst);
  closed_ = true;
  listen();
}

Proposals::~Proposals() {
  if (!remote()) return;
  setting_.notes->remove(setting_.subject);
  if (!links_listen_) return;
  for (const std::size_t q : remote_) members_[q].link->listen(false);
}

std::unique_ptr<Proposals> Proposals::alone() {
  return std::make_unique<Proposals>(std::vector<Member>(1), 0, Setting{});
}

/// seq_cst here and where it is stored: see doorbell.h, and propose() beside close().
bool Proposals::published(std::size_t member, std::uint32_t round) const noexcept {
  return slot(member, round).round.load(std::memory_order_seq_cst) == round;
}

/// True if that member has begun a later operation with this one, so its proposal in this round has
/// a later position. Its note is queued behind data of that operation, which this rank does not
/// read before its own proposal is settled.
bool Proposals::ahead(std::size_t member) const noexcept {
  return members_[member].link != nullptr && members_[member].link->ahead();
}

bool Proposals::awaited() const noexcept {
  for (std::size_t q = 0; q < members_.size(); ++q) {
    if (q != self_ && published(q, round_ + 1)) return true;
  }
  return false;
}

bool Proposals::may_propose() noexcept {
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
  // A member that has begun the next round has seen that all have published in this one.
  if (refused) decline();
  return may && !refused;
}

std::byte* Proposals::room() const noexcept { return slot(self_, round_ + 1).data.data(); }

const std::byte* Proposals::room_of(int member) const noexcept {
  return slot(static_cast<std::size_t>(member), round_).data.data();
}

void Proposals::publish(const Tag& tag, std::size_t used) noexcept {
  ProposalSlot& mine = slot(self_, round_ + 1);
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

void Proposals::propose(const Tag& tag, std::size_t said, std::size_t used) noexcept {
  open_ = true;
  equal_ = 0;
  said_ = said;
  publish(tag, used);
  listen();
  for (std::size_t q = 0; q < members_.size(); ++q) {
    // Either that member sees this proposal when it closes, or this one sees here that it has
    // closed. (Boards of other hosts are copies, in which that mark is never set.)
    if (members_[q].board->closed.load(std::memory_order_seq_cst) != 0 && q != self_ &&
        !published(q, round_)) {
      ask_one(q);
    }
  }
}

Proposals::Outcome Proposals::outcome() noexcept {
  const ProposalSlot& mine = slot(self_, round_);
  bool all = true;
  for (std::size_t q = equal_; q < members_.size(); ++q) {
    if (q == self_ || published(q, round_)) {
      const ProposalSlot& theirs = slot(q, round_);
      if (theirs.count != mine.count || theirs.key != mine.key ||
          theirs.signature != mine.signature || theirs.call != mine.call ||
          theirs.position != mine.position ||
          (said_ != 0 && std::memcmp(theirs.data.data(), mine.data.data(), said_) != 0)) {
        return Outcome::Refused;
      }
      if (q == equal_) ++equal_;
    } else if (ahead(q)) {
      return Outcome::Refused;
    } else {
      all = false;
    }
  }
  return all ? Outcome::Agreed : Outcome::Open;
}

void Proposals::settle() noexcept {
  open_ = false;
  if (closed_ && awaited()) decline();
  listen();
}

void Proposals::close() noexcept {
  if (closed_) return;
  closed_ = true;
  members_[self_].board->closed.store(1, std::memory_order_seq_cst);
  // While this member's proposal is open, its round has not ended for the others.
  if (!open_ && awaited()) decline();
  listen();
}

void Proposals::reopen() noexcept {
  if (!closed_) return;
  closed_ = false;
  members_[self_].board->closed.store(0, std::memory_order_seq_cst);
  listen();
}

void Proposals::ask() noexcept {
  if (remote()) return;  // the owner sends the round to all ranks
  for (std::size_t q = 0; q < members_.size(); ++q) {
    if (q != self_ && !published(q, round_)) ask_one(q);
  }
}

/// A member of this host.
void Proposals::ask_one(std::size_t member) noexcept {
  members_[member].board->asked.store(1, std::memory_order_seq_cst);
  members_[member].bell.ring();
}

void Proposals::called(std::uint32_t round) noexcept {
  if (round != round_ + 1) return;  // about a round that is over here
  called_ = round;
  members_[self_].board->asked.store(1, std::memory_order_seq_cst);
  listen();
}

bool Proposals::asked() const noexcept {
  return members_[self_].board->asked.load(std::memory_order_seq_cst) != 0;
}

void Proposals::answer() noexcept {
  if (open_) return;  // it may be about the next round, so it is kept until this one is settled
  if (remote() && called_ == round_ + 1 && !awaited())
    return;  // the question has arrived before the proposal
  members_[self_].board->asked.store(0, std::memory_order_seq_cst);
  if (awaited()) decline();
  listen();
}

void Proposals::listen() noexcept {
  if (remote()) listening_.store(open_ || closed_ || asked(), std::memory_order_relaxed);
}

void Proposals::send_notes() {
  unsent_.store(false, std::memory_order_relaxed);
  while (sent_notes_ != round_) {
    const std::uint32_t round = ++sent_notes_;
    // The slot does not change before this rank has published twice more.
    const ProposalSlot& mine = slot(self_, round);
    const std::span<const std::byte> body(reinterpret_cast<const std::byte*>(&mine),
                                          kNoteHead + used_[round % 2]);
    for (const std::size_t q : remote_) members_[q].link->post_note(setting_.subject, body);
  }
}

void Proposals::refuse() noexcept {
  heard_ = false;
  if (closed_ && !open_ && awaited()) decline();
}

void Proposals::tell_links() noexcept {
  const bool now = listens();  // others may change it at any moment
  if (std::exchange(links_listen_, now) == now) return;
  for (const std::size_t q : remote_) members_[q].link->listen(links_listen_);
}

bool Proposals::linked() const noexcept {
  return std::ranges::all_of(remote_,
                             [this](std::size_t q) { return members_[q].link->connected(); });
}

void Proposals::add_links(std::vector<PeerLink*>& links, bool awaited_only) const {
  for (const std::size_t q : remote_) {
    // A member publishes once in a round.
    if (awaited_only && open_ && published(q, round_)) continue;
    PeerLink* const link = members_[q].link;
    if (std::ranges::find(links, link) == links.end()) links.push_back(link);
  }
}

Result<void> Proposals::note(Rank from, std::span<const std::byte> body) {
  const auto found =
      std::ranges::find(remote_, from, [this](std::size_t q) { return members_[q].link->peer(); });
  const std::size_t q = found == remote_.end() ? self_ : *found;
  std::uint32_t round = 0;
  if (body.size() >= kNoteHead) std::memcpy(&round, body.data(), sizeof round);
  ProposalBoard& board = *members_[q].board;
  if (q == self_ || body.size() < kNoteHead || body.size() > sizeof(ProposalSlot) ||
      round != last_[q] + 1) {
    Error error;
    error.peer = from;
    error.message = "rank " + std::to_string(from) + " sent a malformed proposal";
    return error;
  }
  ProposalSlot& theirs = board.slots[round % 2];
  constexpr std::size_t kRound = sizeof round;  // stored last
  std::memcpy(reinterpret_cast<std::byte*>(&theirs) + kRound, body.data() + kRound,
              body.size() - kRound);
  theirs.round.store(round, std::memory_order_seq_cst);
  last_[q] = round;
  heard_ = true;
  return {};
}

}  // namespace farandole
