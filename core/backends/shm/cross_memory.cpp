#include "backends/shm/cross_memory.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "backends/buffers/spans.h"
#include "backends/shm/collectives.h"

namespace farandole {
namespace {

/// Bytes copied per step.
constexpr std::size_t kStepBytes = std::size_t{1} << 20;

constexpr Duration kLeastLinger = std::chrono::microseconds(20);
constexpr Duration kMostLinger = std::chrono::microseconds(1000);

/// What a member states in its small slot before and after the copying. The highest value of all
/// members applies to all.
enum class Word : std::uint32_t {
  Yes = 0,     ///< others may read this member; or: it has read all that it needed
  NotNow = 1,  ///< this operation has to go through the slots
  Never = 2,   ///< and so has every later one
};

/// Bytes in the memory of the member that says so.
struct Place {
  std::uint64_t address;
  std::uint64_t bytes;
};

struct Notice {
  Word word;
  std::uint32_t places;
};
constexpr std::size_t kMostPlaces = (kShmSmallBytes - sizeof(Notice)) / sizeof(Place);

using Places = std::vector<Place>;

template <typename Byte>
Places places_of(const std::vector<std::span<Byte>>& spans) {
  Places places;
  places.reserve(spans.size());
  for (const auto& span : spans) {
    places.push_back({reinterpret_cast<std::uintptr_t>(span.data()), span.size()});
  }
  return places;
}

std::uint64_t bytes_of(std::span<const Place> places) noexcept {
  std::uint64_t bytes = 0;
  for (const Place& place : places) bytes += place.bytes;
  return bytes;
}

/// An operation has two meetings, each with a small sequence number of its own:
///
///   notice   everybody says where its bytes are, and whether it can read everybody's
///   own      while others arrive, what stays in this process is copied
///   read     out of the others' memory, straight into the output
///   leave    everybody says that it has read; then owners may use their memory again
///
/// The first meeting is left out where it would say nothing new: members have told the addresses
/// with their proposals, and every one has read the others before.
///
/// If a word is not Yes, all members go through the slots instead: inputs are untouched, outputs
/// are written anew. That also covers what cannot be known ahead: memory that the kernel gives to
/// nobody (of devices), a permission that is withdrawn, a process that ends. Through the slots the
/// operation comes to a result, or to the error that it has there.
///
/// A member that has left may be stopped by a failure elsewhere and use its memory again while
/// another one still reads. It leaves the cause before; so whoever finds none, and the process
/// alive, after reading, has read what was named.
class CrossMemoryOperation : public Operation {
 public:
  Result<Step> step() final {
    switch (phase_) {
      case Phase::Notice:
        if (cross_memory_.agreed() && plan_known()) {
          (void)copy_own();
          phase_ = Phase::Read;
          return Step::Advanced;
        }
        give_notice();
        phase_ = Phase::Own;
        return Step::Advanced;
      case Phase::Own:
        phase_ = Phase::Agree;
        if (copy_own()) return Step::Advanced;
        [[fallthrough]];
      case Phase::Agree:
        if (!met()) return Step::Blocked;
        if (auto fine = arena_.check(ShmMark::Small, sequence_ + 1); !fine) {
          return std::move(fine).error();
        }
        if (auto agreed = agree(); !agreed) return std::move(agreed).error();
        if (phase_ != Phase::Read) return Step::Advanced;
        [[fallthrough]];
      case Phase::Read:
        if (next_ < parts_.size()) read();
        if (next_ < parts_.size()) return Step::Advanced;
        confirm();
        phase_ = Phase::Leave;
        return Step::Advanced;
      case Phase::Leave:
        if (!met()) return linger();
        if (auto fine = arena_.check(ShmMark::Small, sequence_ + 1); !fine) {
          return std::move(fine).error();
        }
        if (!everybody_says_yes()) {
          go_staged();
          return Step::Advanced;
        }
        return Step::Done;
      case Phase::Staged:
        break;
    }
    return staged_->step();
  }

  std::vector<Rank> waiting_for() const final {
    if (staged_) return staged_->waiting_for();
    return phase_ == Phase::Agree || phase_ == Phase::Leave
               ? arena_.behind(ShmMark::Small, sequence_ + 1)
               : std::vector<Rank>();
  }

  std::string_view path() const final { return staged_ ? "shm.large" : "shm.direct"; }

 protected:
  /// `longest`: bytes that the member reads which reads most.
  CrossMemoryOperation(ShmArena& arena, CrossMemory& memory, std::size_t longest) noexcept
      : arena_(arena),
        cross_memory_(memory),
        linger_(std::min<Duration>(kMostLinger,
                                   kLeastLinger + std::chrono::nanoseconds(longest / 4))) {}

  [[nodiscard]] ShmArena& arena() noexcept { return arena_; }
  [[nodiscard]] int self() const noexcept { return arena_.self(); }

  /// The other members are beside(1), beside(2), … In this order, not all members read from the
  /// same one at once.
  [[nodiscard]] int beside(int distance) const noexcept {
    return (self() + distance) % arena_.size();
  }
  /// In plan_known(): the bytes that lie there.
  void take(int member, std::uint64_t there, std::span<std::byte> to) {
    if (!to.empty()) parts_.push_back({member, {to.data(), there, to.size()}});
  }
  /// In plan(): the next bytes of what lies in `from`. False: there are fewer.
  bool take(int member, std::span<Place>& from, std::span<std::byte> to) {
    while (!to.empty()) {
      if (from.empty()) return false;
      Place& place = from.front();
      const std::size_t bytes = std::min<std::uint64_t>(place.bytes, to.size());
      if (bytes > 0) parts_.push_back({member, {to.data(), place.address, bytes}});
      place = {place.address + bytes, place.bytes - bytes};
      if (place.bytes == 0) from = from.subspan(1);
      to = to.subspan(bytes);
    }
    return true;
  }

 private:
  enum class Phase : std::uint8_t { Notice, Own, Agree, Read, Leave, Staged };
  struct Part {
    int member;
    PeerMemory::Part bytes;
  };

  /// What others may read; not needed by anybody else: nothing.
  virtual Places places() const = 0;
  /// True if there was anything.
  virtual bool copy_own() = 0;
  /// What to take from a member. False: what it names is not what it should be.
  virtual bool plan(int member, std::span<Place> named) = 0;
  /// Takes what it needs of all members by addresses that it knows already. False: it knows none.
  virtual bool plan_known() { return false; }
  /// The same operation through slots.
  virtual std::unique_ptr<Operation> staged() = 0;

  void say(Word word, const Places& places = {}) {
    sequence_ = arena_.next_small();
    std::byte* const slot = arena_.small_slot(self(), sequence_);
    const Notice notice{word, static_cast<std::uint32_t>(places.size())};
    std::memcpy(slot, &notice, sizeof notice);
    if (!places.empty()) {
      std::memcpy(slot + sizeof notice, places.data(), places.size() * sizeof(Place));
    }
    word_ = word;
    arena_.publish(ShmMark::Small, sequence_ + 1);
  }

  [[nodiscard]] bool met() { return arena_.all_reached(ShmMark::Small, sequence_ + 1); }

  [[nodiscard]] Notice heard(int member) const noexcept {
    Notice notice{};
    std::memcpy(&notice, arena_.small_slot(member, sequence_), sizeof notice);
    return notice;
  }

  /// After a meeting.
  [[nodiscard]] bool everybody_says_yes() {
    Word worst = word_;
    for (int m = 0; m < arena_.size(); ++m) {
      if (m != self()) worst = std::max(worst, heard(m).word);
    }
    if (worst == Word::Yes) return true;
    if (worst != Word::NotNow) cross_memory_.give_up();
    return false;
  }

  void give_notice() {
    if (!cross_memory_.reaches_all()) return say(Word::Never);
    const Places own = places();
    if (own.size() > kMostPlaces) return say(Word::NotNow);
    say(Word::Yes, own);
  }

  Result<void> agree() {
    if (!everybody_says_yes()) {
      go_staged();
      return {};
    }
    cross_memory_.agree();
    Places named;
    for (int d = 1; d < arena_.size(); ++d) {
      const int member = beside(d);
      named.resize(std::min<std::size_t>(heard(member).places, kMostPlaces));
      if (!named.empty()) {
        std::memcpy(named.data(), arena_.small_slot(member, sequence_) + sizeof(Notice),
                    named.size() * sizeof(Place));
      }
      if (!plan(member, named)) {
        return Error{.message = "names other bytes than this operation needs of it",
                     .peer = arena_.rank(member),
                     .by_peer = true};
      }
    }
    phase_ = Phase::Read;
    return {};
  }

  /// Some bytes of one member.
  void read() {
    std::array<PeerMemory::Part, PeerMemory::kParts> call;
    std::size_t count = 0;
    std::size_t left = kStepBytes;
    const int member = parts_[next_].member;
    while (next_ < parts_.size() && parts_[next_].member == member && count < call.size() &&
           left > 0) {
      PeerMemory::Part& part = parts_[next_].bytes;
      const std::size_t bytes = std::min(part.bytes, left);
      call[count++] = {part.here, part.there, bytes};
      left -= bytes;
      part = {part.here + bytes, part.there + bytes, part.bytes - bytes};
      if (part.bytes == 0) ++next_;
    }
    const int failure = cross_memory_.memory(member).read(std::span(call.data(), count));
    if (failure == 0) return;
    outcome_ =
        std::max(outcome_, failure == EPERM || failure == ENOSYS ? Word::Never : Word::NotNow);
    next_ = parts_.size();
  }

  void confirm() {
    int last = self();
    for (const Part& part : parts_) {
      if (std::exchange(last, part.member) == part.member) continue;
      if (!cross_memory_.stands(part.member)) outcome_ = std::max(outcome_, Word::NotNow);
    }
    say(outcome_);
  }

  /// The others are copying and will be done soon. To sleep and be woken would take longer, so this
  /// thread yields.
  Step linger() noexcept {
    const TimePoint now = Clock::now();
    if (lingering_until_ == TimePoint()) lingering_until_ = now + linger_;
    if (now >= lingering_until_) return Step::Blocked;
    ::sched_yield();
    return Step::Advanced;
  }

  void go_staged() {
    parts_ = {};
    staged_ = staged();
    phase_ = Phase::Staged;
  }

  ShmArena& arena_;
  CrossMemory& cross_memory_;
  Phase phase_ = Phase::Notice;
  std::uint32_t sequence_ = 0;  // of the meeting that is under way
  Word word_ = Word::Yes;       // said there
  Word outcome_ = Word::Yes;
  std::vector<Part> parts_;  // by member
  std::size_t next_ = 0;     // that is not complete
  const Duration linger_;
  TimePoint lingering_until_;
  std::unique_ptr<Operation> staged_;
};

void copy_spans(const SpanList<const std::byte>& from, const SpanList<std::byte>& to) {
  std::size_t at = 0;
  from.for_each(0, from.bytes(), [&](std::span<const std::byte> source, std::size_t) {
    to.for_each(at, source.size(), [&](std::span<std::byte> part, std::size_t before) {
      const std::byte* const own = source.data() + before;
      if (part.data() != own) std::memcpy(part.data(), own, part.size());
    });
    at += source.size();
  });
}

class CrossMemoryAllgather final : public CrossMemoryOperation {
 public:
  CrossMemoryAllgather(ShmArena& arena, CrossMemory& memory, GatherPlan plan, std::size_t result)
      : CrossMemoryOperation(arena, memory, result), plan_(std::move(plan)) {}

 private:
  Places places() const override { return places_of(plan_.in); }

  bool copy_own() override {
    const SpanList<const std::byte> in(plan_.in);
    if (in.bytes() == 0) return false;
    copy_spans(in, SpanList<std::byte>(plan_.out[static_cast<std::size_t>(self())]));
    return true;
  }

  bool plan(int member, std::span<Place> named) override {
    for (const auto& span : plan_.out[static_cast<std::size_t>(member)]) {
      if (!take(member, named, span)) return false;
    }
    return bytes_of(named) == 0;
  }

  bool plan_known() override {
    if (plan_.theirs.empty()) return false;
    for (int d = 1; d < arena().size(); ++d) {
      const auto member = static_cast<std::size_t>(beside(d));
      for (std::size_t i = 0; i < plan_.out[member].size(); ++i) {
        take(beside(d), plan_.theirs[member][i], plan_.out[member][i]);
      }
    }
    return true;
  }

  std::unique_ptr<Operation> staged() override {
    return stream_allgather(arena(), std::move(plan_));
  }

  GatherPlan plan_;
};

class CrossMemoryAlltoall final : public CrossMemoryOperation {
 public:
  CrossMemoryAlltoall(ShmArena& arena, CrossMemory& memory, AlltoallPlan plan)
      : CrossMemoryOperation(arena, memory, plan.longest), plan_(std::move(plan)) {}

 private:
  Places places() const override { return places_of(plan_.in); }

  bool copy_own() override {
    const auto own = static_cast<std::size_t>(self());
    if (plan_.in[own].empty()) return false;
    std::memcpy(plan_.out[own].data(), plan_.in[own].data(), plan_.in[own].size());
    return true;
  }

  bool plan(int member, std::span<Place> named) override {
    const std::span<std::byte> out = plan_.out[static_cast<std::size_t>(member)];
    if (named.size() != plan_.in.size()) return false;
    std::span<Place> mine = named.subspan(static_cast<std::size_t>(self()), 1);
    return take(member, mine, out) && bytes_of(mine) == 0;
  }

  bool plan_known() override {
    if (plan_.theirs.empty()) return false;
    for (int d = 1; d < arena().size(); ++d) {
      const auto member = static_cast<std::size_t>(beside(d));
      take(beside(d), plan_.theirs[member], plan_.out[member]);
    }
    return true;
  }

  std::unique_ptr<Operation> staged() override {
    return stream_alltoall(arena(), std::move(plan_));
  }

  AlltoallPlan plan_;
};

class CrossMemoryBroadcast final : public CrossMemoryOperation {
 public:
  CrossMemoryBroadcast(ShmArena& arena, CrossMemory& memory, std::span<const std::byte> in,
                       std::span<std::byte> out, int root)
      : CrossMemoryOperation(arena, memory, out.size()), in_(in), out_(out), root_(root) {}

 private:
  [[nodiscard]] bool is_root() const noexcept { return self() == root_; }

  Places places() const override {
    return is_root() ? places_of(std::vector<std::span<const std::byte>>{in_}) : Places();
  }

  bool copy_own() override {
    if (!is_root() || out_.data() == in_.data() || in_.empty()) return false;
    std::memcpy(out_.data(), in_.data(), in_.size());
    return true;
  }

  bool plan(int member, std::span<Place> named) override {
    if (member != root_) return named.empty();
    return take(member, named, out_) && bytes_of(named) == 0;
  }

  std::unique_ptr<Operation> staged() override {
    return stream_broadcast(arena(), in_, out_, root_);
  }

  const std::span<const std::byte> in_;
  const std::span<std::byte> out_;
  const int root_;
};

}  // namespace

CrossMemory::CrossMemory(const ShmArena& arena, const std::vector<ShmMember>& by_set_rank)
    : self_(arena.self()) {
  members_.reserve(by_set_rank.size());
  for (const ShmMember& member : by_set_rank) {
    members_.push_back({member.memory, &member.segment.card(), &member.segment.cause()});
  }
}

bool CrossMemory::reaches_all() {
  for (int m = 0; m < static_cast<int>(members_.size()) && !proven_; ++m) {
    if (m != self_ && !proven(at(m).memory, *at(m).card)) return false;
  }
  proven_ = true;
  return true;
}

bool CrossMemory::stands(int member) const noexcept {
  return at(member).cause->state.load(std::memory_order_seq_cst) == 0 && memory(member).alive();
}

std::unique_ptr<Operation> cross_memory_allgather(ShmArena& arena, CrossMemory& memory,
                                                  GatherPlan plan, std::size_t result) {
  return std::make_unique<CrossMemoryAllgather>(arena, memory, std::move(plan), result);
}

std::unique_ptr<Operation> cross_memory_alltoall(ShmArena& arena, CrossMemory& memory,
                                                 AlltoallPlan plan) {
  return std::make_unique<CrossMemoryAlltoall>(arena, memory, std::move(plan));
}

std::unique_ptr<Operation> cross_memory_broadcast(ShmArena& arena, CrossMemory& memory,
                                                  std::span<const std::byte> in,
                                                  std::span<std::byte> out, int root) {
  return std::make_unique<CrossMemoryBroadcast>(arena, memory, in, out, root);
}

}  // namespace farandole
