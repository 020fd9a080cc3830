/// Moves proposals between hosts: the notes of all process sets of a rank, on the links that data
/// take. See proposals.h.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "transport/peer_link.h"
#include "transport/proposals.h"

namespace farandole {

/// For the thread that moves bytes.
class NoteExchange final : public NoteSink {
 public:
  /// `subject`: what the notes of that set are known by, on all members.
  void add(std::uint64_t subject, Proposals& proposals);
  /// Its notes are dropped from now on: all that others waited for in that set has ended.
  void remove(std::uint64_t subject) { ends_.erase(subject); }

  /// Connections have come: what waited for them goes out.
  void linked() noexcept { sending_ = true; }

  /// True if move() has anything to do, or something is unsent.
  [[nodiscard]] bool stirs() const noexcept;
  /// True while a published proposal waits for room in a link.
  [[nodiscard]] bool sending() const noexcept;
  /// True if send_notes() has anything to do.
  [[nodiscard]] bool unsent() const noexcept;
  /// Gives what was published to the links. With the lock of those who publish.
  void send_notes();
  /// Sends and receives notes as far as possible, on all links that are connected, also if one is
  /// broken. True if any moved. Others may publish meanwhile. The error of the first broken link
  /// names the rank.
  [[nodiscard]] Result<bool> move();
  /// True if refuse() has anything to do.
  [[nodiscard]] bool heard() const noexcept;
  /// Declines rounds that others have begun. With the lock of those who publish.
  void refuse() noexcept;

  /// Called within move(), or by an operation that reads from the link.
  Result<void> note(Rank from, std::uint64_t subject, std::span<const std::byte> body) override;

 private:
  std::map<std::uint64_t, Proposals*> ends_;
  std::vector<PeerLink*> links_;      // of all of them
  std::vector<PeerLink*> looked_at_;  // within move()
  bool sending_ = false;
  unsigned looks_ = 0;
};

}  // namespace farandole
