/// What the timeline records: small events, noted while operations run and made into text later.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>

#include "collectives/signature.h"
#include "types.h"

namespace rueda {

/// The row on which the uses of one name in one process set are drawn. 0: not recorded.
using Track = std::uint32_t;

struct TimelineEvent {
  enum class Mark : std::uint8_t {
    Begin,
    End,
    Tick,   ///< a member has reported
    Fail,   ///< the negotiation ended in an error
    Cycle,  ///< of no track: the engine begins to work on something new
    Abort,  ///< of no track: everything that is open fails
  };
  enum class Span : std::uint8_t {
    Negotiation,
    Operation,  ///< the rest is nested inside of this one
    Transfer,
    AllocateOutput,
  };

  TimePoint time{};
  std::shared_ptr<const Signature> signature = {};  ///< at the end of an operation that succeeded
  Track track = 0;
  std::int32_t member = -1;  ///< of a tick: position of the rank in its process set
  Mark mark = Mark::Begin;
  Span span = Span::Negotiation;
  Kind kind = Kind::Allreduce;
  bool last = false;  ///< ends this use of the name
};

/// What the tracks are called.
class TrackNames {
 public:
  /// `once`: the name is made up for one operation and does not come again.
  void add(Track track, std::string name, bool once) {
    names_.emplace(track, Name{std::move(name), once});
  }
  /// The name was used: forgets it if it does not come again.
  void used(Track track) {
    const auto found = names_.find(track);
    if (found != names_.end() && found->second.once) names_.erase(found);
  }
  /// Full name of the tensor; null: of an earlier recording.
  [[nodiscard]] const std::string* find(Track track) const {
    const auto found = names_.find(track);
    return found == names_.end() ? nullptr : &found->second.text;
  }
  [[nodiscard]] bool once(Track track) const {
    const auto found = names_.find(track);
    return found != names_.end() && found->second.once;
  }
  [[nodiscard]] std::size_t size() const noexcept { return names_.size(); }
  void clear() { names_.clear(); }

 private:
  struct Name {
    std::string text;
    bool once;
  };
  std::unordered_map<Track, Name> names_;
};

/// Who gets to see what was recorded: in order, some at a time, never on a thread that drives.
class TimelineSink {
 public:
  virtual ~TimelineSink() = default;
  virtual void take(std::span<const TimelineEvent> events, const TrackNames& names) = 0;
};

}  // namespace rueda
