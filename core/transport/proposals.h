/// The rounds of the fast path: ranks agree on their next operation without the coordinator. Each
/// rank publishes a proposal, together with its contribution, and reads the proposals of the
/// others.
///
/// Every process set has rounds of its own. Ranks of one host read each other's boards in shared
/// memory. A rank of another host has a copy of this rank's board, which notes on the link between
/// them keep up to date.
///
/// In each round every member publishes once: an operation, or that it declines. What it has
/// published does not change within the round. So all members see the same words and find the same
/// outcome: *agreed* if all have published the same operation, *refused* if two differ or one has
/// declined. A member publishes in the next round only when all have published in this one, so two
/// alternating slots are enough.
///
/// A proposal carries the *position* in the dispatch stream at which its member made it, and equal
/// proposals have equal positions. So an agreed operation has the same place in the order of all
/// operations on every rank. A rank has one open proposal at a time, in whatever set.
///
/// A member that does something else must not keep others waiting. Before it does, it marks itself
/// *closed*, and it declines a round that others have begun. A member that makes a proposal checks
/// that mark once more afterwards. (Between hosts, a closed member listens for proposals and
/// declines them.) A member that has waited too long *asks*: then members that have not published
/// decline.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "transport/doorbell.h"
#include "transport/peer_link.h"
#include "transport/shm_layout.h"

namespace farandole {

class NoteExchange;

/// Frees boards of ranks that share no memory with this one.
struct UnmapBoards {
  std::size_t bytes = 0;
  void operator()(ProposalBoard* boards) const noexcept;
};

/// One member's end. Its owner serialises calls that change it.
class Proposals final {
 public:
  struct Member {
    ProposalBoard* board =
        nullptr;  ///< null for a rank of another host, and for this rank if it is alone
    Doorbell bell;
    PeerLink* link = nullptr;  ///< to a rank elsewhere
  };
  struct Setting {
    NoteExchange* notes = nullptr;  ///< needed with links; it outlives this object, as they do
    std::uint64_t subject = 0;      ///< of the notes: the same on all members
    /// An older set may have used this member's board: it is set to zero, and closed at first. No
    /// other member may look at it before. Else all boards are zero.
    bool reused = false;
  };
  /// `members` are in the order of ranks.
  Proposals(std::vector<Member> members, int self, const Setting& setting);
  /// For a world of one: everything is agreed at once.
  [[nodiscard]] static std::unique_ptr<Proposals> alone();

  ~Proposals();
  Proposals(const Proposals&) = delete;
  Proposals& operator=(const Proposals&) = delete;

  [[nodiscard]] int size() const noexcept { return static_cast<int>(members_.size()); }
  /// True if some members are on other hosts.
  [[nodiscard]] bool remote() const noexcept { return !remote_.empty(); }

  /// Identifies a proposed operation. Equal tags mean equal operations.
  struct Tag {
    std::uint32_t count = 1;  ///< not 0
    std::uint32_t key = 0;
    std::uint32_t signature = 0;
    std::uint64_t call = 0;
    std::uint64_t position = 0;  ///< in the dispatch stream
  };

  /// False if a new proposal would be refused. If the next round is refused already, this member
  /// declines in it.
  [[nodiscard]] bool may_propose() noexcept;
  /// Memory for the next proposal's contribution: kProposalBytes. After may_propose().
  [[nodiscard]] std::byte* room() const noexcept;
  /// Publishes a proposal. `used` bytes of the room are in use; the first `said` of them must be
  /// equal on all members.
  void propose(const Tag& tag, std::size_t said, std::size_t used) noexcept;
  /// True while this member has a proposal that is not settled.
  [[nodiscard]] bool open() const noexcept { return open_; }

  enum class Outcome : std::uint8_t { Open, Agreed, Refused };
  /// The outcome of the open proposal so far. One thread at a time; other threads may call close()
  /// and answer() meanwhile.
  [[nodiscard]] Outcome outcome() noexcept;
  /// The room of that member, once the round is agreed.
  [[nodiscard]] const std::byte* room_of(int member) const noexcept;
  /// Ends the round for this member, which reads nothing of it any more.
  void settle() noexcept;

  /// This member will make no proposals until reopen().
  void close() noexcept;
  void reopen() noexcept;
  [[nodiscard]] bool closed() const noexcept { return closed_; }
  /// Asks members of this host that have not published. To members of other hosts, the owner sends
  /// the round; see called().
  void ask() noexcept;
  [[nodiscard]] std::uint32_t round() const noexcept { return round_; }
  /// A member of another host has asked, in that round.
  void called(std::uint32_t round) noexcept;
  /// True if a member has asked and this one has not answered. Any thread.
  [[nodiscard]] bool asked() const noexcept;
  void answer() noexcept;

  // Between hosts: for the thread that moves bytes, which is that of the NoteExchange.

  /// Adds the links to other members that are not in the list; perhaps only those on which a note
  /// of this round may come.
  void add_links(std::vector<PeerLink*>& links, bool awaited_only) const;
  /// True if the links to all other members are connected.
  [[nodiscard]] bool linked() const noexcept;
  /// True while notes are read: an own proposal is open, or this member declines those of others.
  /// Any thread.
  [[nodiscard]] bool listens() const noexcept { return listening_.load(std::memory_order_relaxed); }
  /// True if tell_links() has anything to do.
  [[nodiscard]] bool must_tell_links() const noexcept { return listens() != links_listen_; }
  /// Tells the links whether this end listens.
  void tell_links() noexcept;
  /// True if somebody waits for what comes: each look at a link is a system call, and a member that
  /// only declines may let others wait a little.
  [[nodiscard]] bool in_a_hurry() const noexcept { return listens() && (open_ || asked()); }
  /// True while a published proposal was not given to the links. Any thread.
  [[nodiscard]] bool unsent() const noexcept { return unsent_.load(std::memory_order_acquire); }
  /// Gives it to the links, which read it in its slot until PeerLink::keep_notes().
  void send_notes();
  /// A note has arrived.
  Result<void> note(Rank from, std::span<const std::byte> body);
  /// True if notes have arrived since refuse().
  [[nodiscard]] bool heard() const noexcept { return heard_; }
  /// Declines a round that others have begun, if this member is closed.
  void refuse() noexcept;

 private:
  [[nodiscard]] ProposalSlot& slot(std::size_t member, std::uint32_t round) const noexcept {
    return members_[member].board->slots[round % 2];
  }
  [[nodiscard]] bool published(std::size_t member, std::uint32_t round) const noexcept;
  [[nodiscard]] bool ahead(std::size_t member) const noexcept;
  [[nodiscard]] bool awaited() const noexcept;
  void publish(const Tag& tag, std::size_t used) noexcept;
  void decline() noexcept { publish({.count = 0}, 0); }
  void ask_one(std::size_t member) noexcept;
  void listen() noexcept;

  std::vector<Member> members_;
  std::size_t self_;
  Setting setting_;
  std::unique_ptr<ProposalBoard[], UnmapBoards>
      private_boards_;               // of those that share no memory with it
  std::vector<std::size_t> remote_;  // members elsewhere
  std::atomic<bool> unsent_{false};
  std::atomic<bool> listening_{false};
  bool links_listen_ = false;
  std::vector<std::uint32_t>
      last_;  // last round in which each member of another host has published
  bool heard_ = false;
  std::uint32_t called_ = 0;           // last round in which a member of another host has asked
  std::uint32_t sent_notes_ = 0;       // rounds that were given to the links
  std::array<std::size_t, 2> used_{};  // used bytes of this member's room, by round modulo 2
  std::uint32_t round_ = 0;            // last round in which this member has published
  std::size_t said_ = 0;
  std::size_t equal_ = 0;  // the first members that are known to have published the same
  bool open_ = false;
  bool closed_ = false;
};

}  // namespace farandole
