/// How ranks of one host agree on their next operation without asking anybody: each says what it
/// has, together with its contribution, and looks at what the others say.
///
/// Offers come in rounds. In a round every member publishes one thing, once, which then stays: an
/// operation, or that it declines. All look at the same words, so all come to the same verdict:
/// *agreed* if all have published the same operation, *refused* as soon as two differ or one has
/// declined. A member publishes in the next round only when all have published in this one, so two
/// slots that alternate are enough.
///
/// Nobody may be kept waiting by a member that does something else. Who is about to do so says that
/// it is *closed* and declines a round that others have begun; who makes an offer looks for that
/// once more afterwards. Whoever does not want to wait any longer *asks*: then those that have not
/// published decline.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "transport/doorbell.h"
#include "transport/shm_layout.h"

namespace rueda {

/// One member's end. Calls that change it are serialised by its owner.
class Offers {
 public:
  struct Member {
    OfferBoard* board = nullptr;
    Doorbell bell;
  };
  /// All boards are zero at first. `members` in the order of ranks.
  Offers(std::vector<Member> members, int self);
  /// Nobody else: everything is agreed at once.
  [[nodiscard]] static std::unique_ptr<Offers> alone();

  [[nodiscard]] int size() const noexcept { return static_cast<int>(members_.size()); }

  /// What is offered. Equal tags mean equal operations.
  struct Tag {
    std::uint32_t count = 1;  ///< not 0
    std::uint32_t key = 0;
    std::uint32_t signature = 0;
    std::uint64_t call = 0;
  };

  /// Whether a new offer has a chance. If the round is refused already, this member declines, too.
  [[nodiscard]] bool may_offer() noexcept;
  /// Where the contribution to the next offer goes: kOfferBytes. After may_offer().
  [[nodiscard]] std::byte* room() const noexcept;
  /// The first `said` bytes of the room must be equal, too.
  void offer(const Tag& tag, std::size_t said) noexcept;
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
  /// Calls on those who have not published.
  void ask() noexcept;
  /// Somebody has called. Any thread.
  [[nodiscard]] bool asked() const noexcept;
  void answer() noexcept;

 private:
  [[nodiscard]] OfferSlot& slot(std::size_t member, std::uint32_t round) const noexcept {
    return members_[member].board->slots[round % 2];
  }
  [[nodiscard]] bool published(std::size_t member, std::uint32_t round) const noexcept;
  [[nodiscard]] bool awaited() const noexcept;
  void publish(const Tag& tag) noexcept;
  void decline() noexcept { publish({.count = 0}); }

  std::vector<Member> members_;
  std::size_t self_;
  std::unique_ptr<OfferBoard> private_board_;  // of a member without others
  std::uint32_t round_ = 0;                    // that this member has published in last
  std::size_t said_ = 0;
  std::size_t equal_ = 0;  // members that are known to have offered the same
  bool open_ = false;
  bool closed_ = false;
};

}  // namespace rueda
