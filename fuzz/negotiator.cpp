/// A world of four negotiators of which some receive what nobody has sent.

#include "engine/control/negotiator.h"

#include <array>
#include <deque>

#include "target.h"

namespace farandole::fuzz {
namespace {

constexpr Rank kSize = 4;  // two groups of two: 0 is the coordinator, 2 a node with a child
// Every edge of the control tree, in both directions.
constexpr std::array<std::pair<Rank, Rank>, 6> kEdges{
    {{0, 1}, {1, 0}, {0, 2}, {2, 0}, {2, 3}, {3, 2}}};

enum Step : std::uint8_t {
  kSubmit,
  kDeliver,
  kForge,
  kAlter,
  kPass,
  kWant,
  kAddSet,
  kRemoveSet,
  kBarrier,
  kJoin,
  kShutdown,
  kSteps
};

class World {
 public:
  World() {
    NegotiatorOptions options;
    options.key_capacity = 3;  // numbers are given up and used again
    options.stall_warning = std::chrono::milliseconds(20);
    for (Rank rank = 0; rank < kSize; ++rank) {
      members_[at(rank)].negotiator.emplace(std::vector<std::vector<Rank>>{{0, 1}, {2, 3}},
                                            std::vector<std::string>{"a", "a", "b", "b"}, rank,
                                            options);
    }
  }

  void step(Script& script) {
    const auto what = script.byte() % kSteps;
    const auto who = static_cast<Rank>(script.byte());
    const auto& edge = kEdges[static_cast<std::size_t>(who) % kEdges.size()];
    const Rank rank = who % kSize;
    Negotiator& negotiator = *members_[at(rank)].negotiator;
    switch (what) {
      case kDeliver:
        return deliver(edge, {});
      case kAlter: {
        const std::size_t offset = script.byte();
        return deliver(edge, std::pair(offset, static_cast<std::byte>(script.byte())));
      }
      case kForge: {
        const std::size_t bytes = script.byte();
        return receive(edge.first, edge.second, script.piece(bytes));
      }
      default:
        break;
    }
    if (members_[at(rank)].ended) return;
    switch (what) {
      case kSubmit: {
        const auto name = script.byte();
        submit(rank, {.name = "n" + std::to_string(name % 8)}, signature(script.byte()));
        break;
      }
      case kPass:
        now_ += std::chrono::milliseconds(script.byte());
        negotiator.tick(now_, effects_);
        break;
      case kWant:
        negotiator.mark_all_waited(now_, effects_);
        break;
      case kAddSet: {
        Signature add = of_kind(Kind::AddProcessSet);
        const auto members = script.byte();
        for (Rank one = 0; one < kSize; ++one) {
          if ((members >> one & 1) != 0) add.ranks.push_back(one);
        }
        count(rank, add, 0);
        break;
      }
      case kRemoveSet: {
        Signature remove = of_kind(Kind::RemoveProcessSet);
        remove.root = script.byte() % 4;
        count(rank, remove, 0);
        break;
      }
      case kBarrier:
        count(rank, of_kind(Kind::Barrier), script.byte() % 4);
        break;
      case kJoin:
        (void)static_cast<bool>(negotiator.join(++ticket_, now_, effects_));
        break;
      case kShutdown:
        negotiator.shutdown(now_, effects_);
        break;
      default:
        break;
    }
    drain(rank);
  }

  /// What has been sent and not delivered.
  [[nodiscard]] std::vector<Bytes> sent() const {
    std::vector<Bytes> all;
    for (const auto& queue : queues_) all.insert(all.end(), queue.begin(), queue.end());
    return all;
  }

 private:
  struct Member {
    std::optional<Negotiator> negotiator;
    bool ended = false;  ///< after an error a rank leaves the world
  };

  static std::size_t at(Rank rank) { return static_cast<std::size_t>(rank); }
  static std::size_t queue_of(Rank from, Rank to) {
    for (std::size_t i = 0; i < kEdges.size(); ++i) {
      if (kEdges[i] == std::pair(from, to)) return i;
    }
    require(false, "ranks talk along the edges of the tree");
    return 0;
  }
  static Signature of_kind(Kind kind) {
    Signature made;
    made.kind = kind;
    return made;
  }
  static Signature signature(std::uint8_t variant) {
    Signature made;
    made.dtype = static_cast<DType>(variant % kReducedDTypes);
    made.shape = {variant % 5, 3};
    if (variant % 3 == 0) made.kind = Kind::Allgather;
    if (variant % 7 == 0) made.group = {.name = "g", .size = 2};
    return made;
  }
  void submit(Rank rank, const Key& key, const Signature& signature) {
    ++ticket_;
    (void)static_cast<bool>(members_[at(rank)].negotiator->submit_group(
        {&key, 1}, {&signature, 1}, {&ticket_, 1}, true, now_, effects_));
  }
  void count(Rank rank, const Signature& signature, std::int32_t set) {
    Negotiator& negotiator = *members_[at(rank)].negotiator;
    const ProcessSet* live = negotiator.process_set(set);
    if (live == nullptr) return;
    submit(rank, negotiator.counted_key(signature.kind, *live), signature);
  }
  void deliver(const std::pair<Rank, Rank>& edge,
               std::optional<std::pair<std::size_t, std::byte>> change) {
    auto& queue = queues_[queue_of(edge.first, edge.second)];
    if (queue.empty()) return;
    Bytes message = std::move(queue.front());
    queue.pop_front();
    if (change) message[change->first % message.size()] = change->second;
    receive(edge.first, edge.second, message);
  }
  void receive(Rank from, Rank to, std::span<const std::byte> message) {
    Member& member = members_[at(to)];
    if (member.ended || message.empty()) return;
    const Bytes exact(message.begin(), message.end());
    member.ended = !member.negotiator->take(from, exact, now_, effects_);
    // Sometimes the next message comes before the answer: which ones, the script decides.
    if (!member.ended && exact.back() != std::byte{3}) member.negotiator->answer(now_, effects_);
    drain(to);
  }
  void drain(Rank rank) {
    for (const Effects::Send& send : effects_.sends) {
      const auto begin = effects_.bytes.begin();
      queues_[queue_of(rank, send.to)].emplace_back(begin + static_cast<std::ptrdiff_t>(send.begin),
                                                    begin + static_cast<std::ptrdiff_t>(send.end));
    }
    Member& member = members_[at(rank)];
    const bool stopped = effects_.shutdown_by.has_value();
    member.ended = member.ended || effects_.fatal || effects_.closed;
    effects_.clear();
    if (!stopped || member.ended) return;
    member.negotiator->acknowledge_shutdown(now_, effects_);
    drain(rank);
  }

  std::array<Member, kSize> members_;
  std::array<std::deque<Bytes>, kEdges.size()> queues_;
  Effects effects_;
  std::uint64_t ticket_ = 0;
  TimePoint now_{std::chrono::seconds(1000)};
};

void run(std::span<const std::byte> input) {
  Script script(input);
  World world;
  while (!script.empty()) world.step(script);
}

std::vector<Bytes> seeds() {
  const auto script = [](std::initializer_list<int> numbers) {
    Bytes bytes;
    for (const int number : numbers) bytes.push_back(static_cast<std::byte>(number));
    return bytes;
  };
  Bytes one_step;
  for (int rank = 0; rank < kSize; ++rank) {
    for (const int byte : {int{kSubmit}, rank, 1, 2}) one_step.push_back(std::byte(byte));
  }
  // Twice around: reports up, the stream down.
  for (int around = 0; around < 2; ++around) {
    for (const int edge : {1, 5, 3, 0, 2, 4}) {
      for (const int byte : {int{kDeliver}, edge}) one_step.push_back(std::byte(byte));
    }
  }
  Bytes forged = one_step;
  World world;
  Script real(one_step);
  for (int i = 0; i < kSize; ++i) world.step(real);
  for (const Bytes& message : world.sent()) {  // a real message, said by somebody else
    forged.push_back(std::byte{kForge});
    forged.push_back(std::byte{2});
    forged.push_back(static_cast<std::byte>(message.size()));
    forged.insert(forged.end(), message.begin(), message.end());
  }
  return {one_step, forged,
          script({kAddSet,  0, 3,        kAddSet,  1,        3, kAddSet,  2, 3,        kAddSet,
                  3,        3, kDeliver, 1,        kDeliver, 5, kDeliver, 3, kDeliver, 0,
                  kBarrier, 0, 1,        kBarrier, 1,        1, kAlter,   1, 17,       5}),
          script({kJoin,    0, kJoin,     1, kJoin,    2, kJoin,    3, kDeliver, 1, kDeliver, 5,
                  kDeliver, 3, kShutdown, 0, kDeliver, 0, kDeliver, 2, kPass,    0, 255})};
}

}  // namespace

const Target kNegotiator{"negotiator", run, seeds};

}  // namespace farandole::fuzz
