/// What ranks say to each other about their proposals, as a relay between them hears it.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "cluster.h"
#include "engine/failure/heartbeat.h"
#include "engine/fast_path/fast_path.h"
#include "relay.h"

namespace farandole::testing {

/// Of a world without a cipher. Called by one relay's thread; read when that is gone.
class Overheard {
 public:
  struct Counts {
    int agreed = 0;   ///< rounds in which all have proposed the same
    int refused = 0;  ///< the others in which somebody has proposed
    /// Messages of the coordinator while a proposal of its, or of who gets them, is open.
    int overtaken = 0;
  };

  explicit Overheard(int size) : size_(size) {}

  /// `weather`, listened to, of a direction of a connection.
  [[nodiscard]] Relay::Weather listen(Relay::Weather weather, bool control, Rank from, Rank to) {
    return [this, weather = std::move(weather), control, reader = Reader(), from,
            to](std::span<std::byte> waiting) mutable {
      Relay::Turn turn = weather(waiting);
      turn.bytes = std::min(turn.bytes, waiting.size());  // no more than has been listened to
      const TimePoint at = Clock::now() + turn.wait;
      reader.read(waiting.first(turn.bytes), control, [&](std::span<const std::byte> head) {
        control ? decided(from, to, head, at) : noted(from, to, head, at);
      });
      return turn;
    };
  }

  [[nodiscard]] Counts counts() const {
    Counts counts{.overtaken = overtaken_};
    for (const auto& [round, said] : rounds_) {
      const auto proposals = [](const auto& one) { return one.second.proposals(); };
      if (std::ranges::none_of(said, proposals)) continue;
      const auto& first = said.begin()->second.tag;
      const auto equal = [&first](const auto& one) { return one.second.tag == first; };
      const bool same = static_cast<int>(said.size()) == size_ && std::ranges::all_of(said, equal);
      ++(same ? counts.agreed : counts.refused);
    }
    return counts;
  }

 private:
  static constexpr std::size_t kControlHeader = 4;
  static constexpr std::size_t kDataHeader = 24;

  /// Takes a stream to pieces; keeps the first bytes of each message.
  class Reader {
   public:
    template <typename Found>
    void read(std::span<const std::byte> bytes, bool control, const Found& found) {
      const std::size_t header = control ? kControlHeader : kDataHeader;
      while (!bytes.empty()) {
        const std::size_t wanted = head_.size() < header ? header : std::min(end_, header + kKept);
        const std::size_t some = head_.size() < wanted
                                     ? std::min(wanted - head_.size(), bytes.size())
                                     : std::min(end_ - seen_, bytes.size());
        if (head_.size() < wanted) {
          head_.insert(head_.end(), bytes.begin(), bytes.begin() + static_cast<long>(some));
        }
        seen_ += some;
        bytes = bytes.subspan(some);
        if (seen_ == header) end_ = header + length(control);
        if (seen_ < header || seen_ < end_) continue;
        found(std::span<const std::byte>(head_));
        head_.clear();
        seen_ = end_ = 0;
      }
    }

   private:
    static constexpr std::size_t kKept = 32;
    [[nodiscard]] std::size_t length(bool control) const {
      std::uint64_t bytes = 0;
      std::memcpy(&bytes, head_.data() + (control ? 0 : 8), control ? 4 : 8);
      return bytes;
    }
    std::vector<std::byte> head_;
    std::size_t seen_ = 0;
    std::size_t end_ = 0;
  };

  /// What a member has published in a round.
  struct Said {
    std::array<std::byte, 20> tag{};         // count, key, signature, call
    std::map<Rank, TimePoint> arrives = {};  // at whom, and when
    [[nodiscard]] bool proposals() const {
      std::uint32_t count = 0;
      std::memcpy(&count, tag.data(), sizeof count);
      return count != 0;
    }
  };

  void noted(Rank from, Rank to, std::span<const std::byte> head, TimePoint at) {
    constexpr std::uint32_t kNote = 0x6e647552;
    std::uint32_t magic = 0;
    std::memcpy(&magic, head.data(), sizeof magic);
    if (magic != kNote || head.size() < kDataHeader + 4 + sizeof Said::tag) return;
    std::uint32_t round = 0;
    std::memcpy(&round, head.data() + kDataHeader, sizeof round);
    Said& said = rounds_[round][from];
    std::memcpy(said.tag.data(), head.data() + kDataHeader + 4, said.tag.size());
    said.arrives[to] = at;
    last_[from] = round;
  }

  /// The coordinator's messages are what the ranks have decided: for itself, and for whoever gets
  /// them.
  void decided(Rank from, Rank to, std::span<const std::byte> head, TimePoint at) {
    if (from != 0 || head.size() < 5 || head[4] == kAskFrame || head[4] == kBeatFrame) return;
    if (undecided(0, Clock::now()) || undecided(to, at)) ++overtaken_;
  }

  /// That rank has proposed something, and does not know what all others have.
  [[nodiscard]] bool undecided(Rank rank, TimePoint at) {
    const auto& said = rounds_[last_[rank]];
    const auto own = said.find(rank);
    if (own == said.end() || !own->second.proposals()) return false;
    bool missing = static_cast<int>(said.size()) < size_;
    for (const auto& [other, one] : said) {
      const auto arrives = one.arrives.find(rank);  // none: of the same host
      const bool there = arrives == one.arrives.end() || arrives->second <= at;
      if (there && one.tag != own->second.tag) return false;
      missing |= !there;
    }
    return missing;
  }

  int size_;
  int overtaken_ = 0;
  std::map<Rank, std::uint32_t> last_;  // round that a member has published in last
  std::map<std::uint32_t, std::map<Rank, Said>> rounds_;
};

}  // namespace farandole::testing
