/// How ranks agree on their next operation without asking anybody: each says what it has, together
/// with its contribution, and looks at what the others say.
///
/// Ranks of one host look at each other's boards in shared memory. A rank of another host has a
/// copy of this rank's board, which notes on the link between them keep up to date.
///
/// Offers come in rounds. In a round every member publishes one thing, once, which then stays: an
/// operation, or that it declines. All look at the same words, so all come to the same verdict:
/// *agreed* if all have published the same operation, *refused* as soon as two differ or one has
/// declined. A member publishes in the next round only when all have published in this one, so two
/// slots that alternate are enough.
///
/// An offer says at which *position* among all other operations its member makes it, and equal
/// offers have equal positions: what is agreed has one place in one order, the same on all ranks.
///
/// Nobody may be kept waiting by a member that does something else. Who is about to do so says that
/// it is *closed* and declines a round that others have begun; who makes an offer looks for that
/// once more afterwards. (Between hosts, who is closed listens and declines what arrives.) Whoever
/// does not want to wait any longer *asks*: then those that have not published decline.
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

namespace rueda {

/// One member's end. Calls that change it are serialised by its owner.
class Offers final : public NoteSink {
 public:
  struct Member {
    OfferBoard* board = nullptr;  ///< null: of a rank elsewhere, or of this rank if it is alone
    Doorbell bell;
    PeerLink* link = nullptr;  ///< to a rank elsewhere
  };
  /// All boards are zero at first. `members` in the order of ranks, which are theirs in the world
  /// if there are links; those outlive this.
  Offers(std::vector<Member> members, int self);
  /// Nobody else: everything is agreed at once.
  [[nodiscard]] static std::unique_ptr<Offers> alone();

  ~Offers() override;
  Offers(const Offers&) = delete;
  Offers& operator=(const Offers&) = delete;

  [[nodiscard]] int size() const noexcept { return static_cast<int>(members_.size()); }
  /// Whether some members are elsewhere.
  [[nodiscard]] bool remote() const noexcept { return !remote_.empty(); }

  /// What is offered. Equal tags mean equal operations.
  struct Tag {
    std::uint32_t count = 1;  ///< not 0
    std::uint32_t key = 0;
    std::uint32_t signature = 0;
    std::uint64_t call = 0;
    std::uint64_t position = 0;  ///< among what is decided elsewhere
  };

  /// Whether a new offer has a chance. If the round is refused already, this member declines, too.
  [[nodiscard]] bool may_offer() noexcept;
  /// Where the contribution to the next offer goes: kOfferBytes. After may_offer().
  [[nodiscard]] std::byte* room() const noexcept;
  /// Of the room `used` bytes are; the first `said` of them must be equal, too.
  void offer(const Tag& tag, std::size_t said, std::size_t used) noexcept;
  /// An own offer has not been settled.
  [[nodiscard]] bool open() const noexcept { return open_; }

  enum class Verdict : std::uint8_t { Open, Agreed, Refused };
  /// Of the open offer. One thread at a time, beside others that close() and answer().
  [[nodiscard]] Verdict verdict() noexcept;
  /// The room of that member, once agreed.
  [[nodiscard]] const std::byte* room_of(int member) const noexcept;
  /// Nothing of this round is read any more.
  void settle() noexcept;

  /// This member will not offer for some time.
  void close() noexcept;
  void reopen() noexcept;
  /// Calls on those of this host who have not published. Those elsewhere are to be told the round:
  /// see called().
  void ask() noexcept;
  [[nodiscard]] std::uint32_t round() const noexcept { return round_; }
  /// Somebody has called, in that round.
  void called(std::uint32_t round) noexcept;
  /// Somebody has called, and this member has not published yet. Any thread.
  [[nodiscard]] bool asked() const noexcept;
  void answer() noexcept;

  /// Whether move() has anything to do. The thread that moves bytes.
  [[nodiscard]] bool stirs() const noexcept {
    const bool listens = listening_.load(std::memory_order_relaxed);
    return listens || listens != links_listen_ || sending_ || unsent();
  }
  /// Something published has found no room yet. That thread.
  [[nodiscard]] bool sending() const noexcept { return sending_ || unsent(); }
  /// Something published has not been handed to the links. Any thread.
  [[nodiscard]] bool unsent() const noexcept { return unsent_.load(std::memory_order_acquire); }
  /// Hands it to them: by the thread that moves bytes.
  void hand_over();
  /// Moves what can be moved. True: something came or went. That thread; others may call the rest
  /// meanwhile. An error names the rank.
  [[nodiscard]] Result<bool> move();
  /// Whether notes have arrived since refuse(). That thread.
  [[nodiscard]] bool heard() const noexcept { return heard_; }
  /// Declines what others have begun, if this member has said that it will not take part soon.
  void refuse() noexcept;

  /// By move(), or by whoever else reads from a link.
  Result<void> note(Rank from, std::span<const std::byte> body) override;

 private:
  [[nodiscard]] OfferSlot& slot(std::size_t member, std::uint32_t round) const noexcept {
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
  std::vector<std::unique_ptr<OfferBoard>> private_boards_;
  std::vector<std::size_t> remote_;  // members elsewhere
  std::atomic<bool> unsent_{false};
  std::atomic<bool> listening_{false};
  bool links_listen_ = false;
  bool sending_ = false;
  std::vector<std::uint32_t> last_;  // round that each member elsewhere has published in last
  bool heard_ = false;
  unsigned looks_ = 0;
  std::uint32_t called_ = 0;           // round that others have called in last
  std::uint32_t handed_over_ = 0;      // rounds that the links know of
  std::array<std::size_t, 2> used_{};  // bytes of the own room, by round modulo 2
  std::uint32_t round_ = 0;            // that this member has published in last
  std::size_t said_ = 0;
  std::size_t equal_ = 0;  // members that are known to have offered the same
  bool open_ = false;
  bool closed_ = false;
};

}  // namespace rueda
