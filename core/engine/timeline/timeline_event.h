/// The events of the timeline: small records, made while operations run and written as text later.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>

#include "collectives/signature.h"
#include "types.h"

namespace farandole {

/// The row on which the uses of one name in one process set are drawn. 0: not recorded.
using Track = std::uint32_t;

struct TimelineEvent {
  enum class Mark : std::uint8_t {
    Begin,
    End,
    Tick,   ///< a member has reported
    Fail,   ///< the negotiation ended in an error
    Cycle,  ///< without a track: the engine begins to work on something new
    Abort,  ///< without a track: all open operations fail
  };
  enum class Span : std::uint8_t {
    Negotiation,
    Operation,  ///< the other spans are nested inside this one
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

/// The names of the tracks.
class TrackNames {
 public:
  /// `once`: the name was generated for one operation and is not used again.
  void add(Track track, std::string name, bool once) {
    names_.emplace(track, Name{std::move(name), once});
  }
  /// The name was used: forgets it if it was added with `once`.
  void used(Track track) {
    const auto found = names_.find(track);
    if (found != names_.end() && found->second.once) names_.erase(found);
  }
  /// Full name of the tensor; null: the track belongs to an earlier recording.
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

/// Receives recorded events, in order and in batches, never on a thread that drives.
class TimelineSink {
 public:
  virtual ~TimelineSink() = default;
  virtual void take(std::span<const TimelineEvent> events, const TrackNames& names) = 0;
};

}  // namespace farandole
