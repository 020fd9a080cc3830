/// Messages between negotiators, as bytes.
///
/// A message is a header and records. Numbers are little-endian; a text follows its length. The
/// parser trusts nothing: it checks every length against the bytes that are there, and every
/// enumeration against its values. At the first malformed byte it stops, and ok() is false.
///
///   header  version u8 · direction u8 · 0 u16 · capacity u32 · position u64
///   capacity: of the response cache, as the coordinator decides (0 on the way up)
///   up      position: all of the dispatch stream that every rank of the sender's subtree has seen
///   down    position: number of this message in the dispatch stream, from 1, without gaps
///
/// A report of an operation whose key and signature have cache ids takes 16 bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/signature.h"
#include "transport/little_endian.h"
#include "types.h"

namespace farandole::wire {

inline constexpr std::uint8_t kVersion = 1;
inline constexpr std::size_t kHeaderBytes = 16;

enum class Direction : std::uint8_t { Up = 1, Down = 2 };

struct Header {
  Direction direction = Direction::Up;
  std::uint32_t capacity = 0;
  std::uint64_t position = 0;
};

/// A reference to a key: by cache id, or in full.
struct KeyRef {
  std::uint32_t id = 0;  ///< 0: in full
  std::int32_t process_set = 0;
  std::uint32_t generation = 0;
  Kind kind = Kind::Allreduce;  ///< of an unnamed key
  std::uint64_t number = 0;     ///< Key::number of an unnamed key
  std::string_view name = {};   ///< empty: unnamed
  std::string_view group = {};  ///< full name of the group it belongs to; empty: none
};

/// A reference to a signature: by cache id, or in full. The name of its group goes with the key.
struct SignatureRef {
  std::uint32_t id = 0;  ///< 0: in full
  Signature full;
};

enum class Record : std::uint8_t {
  // Up. Origin and Age apply to the records that follow.
  Origin = 1,        ///< rank: whose reports follow, if not the sender's whole subtree's
  Age = 2,           ///< age_ms: how long the sender has held them
  Ready = 3,         ///< key, signature, instance, size_class, whole
  ReadyUnnamed = 4,  ///< the same for an unnamed key of the world: 16 bytes too
  ReadyInFull = 5,   ///< the same, with what has no cache id in full
  Join = 6,          ///< rank
  Leave = 7,         ///< departure: asks for the shutdown
  Acknowledge = 8,   ///< the sender's whole subtree has finished before the shutdown
  Blocked = 9,     ///< rank, position, certain, text: the rank waits for `text` and submits nothing
                   ///< before that is done
  Unblocked = 10,  ///< rank: has submitted since it said Blocked
  // Down: the entries of the dispatch stream.
  DefineKey = 32,        ///< key (in full): gets the next cache id
  DefineSignature = 33,  ///< signature (in full): gets the next cache id
  Dispatch = 34,         ///< process_set, count: run these items as one batch
  Fail = 35,             ///< key, code, text, tensor, ranks concerned
  Joined = 36,           ///< rank: the last one to join
  Shutdown = 37,         ///< departure: who asked for it
  Closed = 38,
};

/// Which rank ends the world, and why. Operations that were dispatched before are finished on all
/// ranks.
struct Departure {
  enum class Reason : std::uint8_t {
    Asked = 0,       ///< by shutdown()
    ScriptOver = 1,  ///< its script came to its end
    Failed = 2,      ///< its script failed; `text` says how
  };
  Rank rank = 0;
  Reason reason = Reason::Asked;
  std::string text{};  ///< "raised ValueError: boom"
};

/// One record, as read. Views point into the message.
struct Entry {
  Record record = Record::Origin;
  KeyRef key;
  SignatureRef signature;
  std::uint32_t instance = 0;   ///< how often the key was used before under this id
  std::uint8_t size_class = 0;  ///< bit width of the size in bytes, where rows may differ
  bool whole = false;           ///< reported by every member of the set in the sender's subtree
  Rank rank = 0;
  Departure::Reason reason = Departure::Reason::Asked;
  std::uint32_t age_ms = 0;
  std::uint64_t position = 0;
  bool certain = false;
  std::int32_t process_set = 0;
  std::uint32_t count = 0;
  std::uint8_t code = 0;
  std::string_view text;
  std::string_view tensor;
  std::vector<Rank> ranks;
};

/// Appends to a buffer.
class Writer {
 public:
  explicit Writer(std::vector<std::byte>& out) : out_(out) {}

  void header(const Header& header);
  void origin(Rank rank) { with_number(Record::Origin, static_cast<std::uint32_t>(rank)); }
  void age(std::uint32_t milliseconds) { with_number(Record::Age, milliseconds); }
  /// `signature_id` 0: `signature` goes in full.
  void ready(const KeyRef& key, std::uint32_t signature_id, const Signature& signature,
             std::uint32_t instance, std::uint8_t size_class, bool whole);
  void join(Rank rank) { with_number(Record::Join, static_cast<std::uint32_t>(rank)); }
  void leave(const Departure& who) { with_departure(Record::Leave, who); }
  void acknowledge() { with_number(Record::Acknowledge, 0); }
  void blocked(Rank rank, std::uint64_t position, bool certain, std::string_view name);
  void unblocked(Rank rank) { with_number(Record::Unblocked, static_cast<std::uint32_t>(rank)); }

  void define(const KeyRef& key);
  void define(const Signature& signature);
  void dispatch(std::int32_t process_set, std::uint32_t count);
  void item(const KeyRef& key, std::uint32_t signature_id, const Signature& signature);
  void fail(const KeyRef& key, std::uint8_t code, std::string_view text, std::string_view tensor,
            std::span<const Rank> ranks);
  void joined(Rank last) { with_number(Record::Joined, static_cast<std::uint32_t>(last)); }
  void shutdown(const Departure& by) { with_departure(Record::Shutdown, by); }
  void closed() { with_number(Record::Closed, 0); }

 private:
  template <std::unsigned_integral T>
  void put(T value) {
    const std::size_t at = out_.size();
    out_.resize(at + sizeof(T));
    store_little_endian(out_.data() + at, value);
  }
  void put(double value);
  void put(std::string_view text);
  void put(std::span<const Rank> ranks);
  void put(const KeyRef& key);
  void put(std::uint32_t signature_id, const Signature& signature);
  void with_number(Record record, std::uint32_t number);
  void with_departure(Record record, const Departure& who);

  std::vector<std::byte>& out_;
};

/// Reads a message record by record.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> message) : rest_(message) {}

  [[nodiscard]] bool header(Header& header);
  /// The next record; false at the end and at the first malformed byte (see ok()).
  [[nodiscard]] bool next(Entry& entry);
  /// One item of a Dispatch: fills key and signature.
  [[nodiscard]] bool item(Entry& entry);
  [[nodiscard]] bool ok() const noexcept { return ok_; }

 private:
  template <std::unsigned_integral T>
  [[nodiscard]] T take() {
    if (rest_.size() < sizeof(T)) {
      ok_ = false;
      rest_ = {};
      return 0;
    }
    const T value = load_little_endian<T>(rest_.data());
    rest_ = rest_.subspan(sizeof(T));
    return value;
  }
  template <typename E>
  [[nodiscard]] E take_enum(std::uint8_t values);
  [[nodiscard]] double take_double();
  [[nodiscard]] std::string_view take_text();
  [[nodiscard]] std::uint32_t take_number();
  [[nodiscard]] Kind take_ready_head(Entry& entry);
  void take_ranks(std::vector<Rank>& ranks);
  void take(KeyRef& key);
  void take(SignatureRef& signature);

  std::span<const std::byte> rest_;
  bool ok_ = true;
};

}  // namespace farandole::wire
