/// What a peer leaves in shared memory: counters and bytes of a message ring, the record of a
/// cause, the card that tells where its memory is. It can change any of it at any time: between two
/// calls, and within one.

#include <sys/mman.h>

#include <array>
#include <cstddef>
#include <cstring>

#include "meddler.h"
#include "target.h"
#include "transport/control_channel.h"
#include "transport/peer_memory.h"
#include "transport/shm_layout.h"

namespace farandole::fuzz {
namespace {

constexpr int kRanks = 2;

/// The segment of one rank of two. Mapped once, as it is mostly address space.
class Segment {
 public:
  Segment() {
    memory_ = ::mmap(nullptr, segment_bytes(kRanks), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    require(memory_ != MAP_FAILED, "there is address space for a segment");
  }
  ~Segment() { ::munmap(memory_, segment_bytes(kRanks)); }
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;
  [[nodiscard]] ShmView fresh() const {
    for (const auto& pages : used()) std::memset(pages.data(), 0, pages.size());
    return view();
  }
  /// Whole pages around the cause, and around card and messages.
  [[nodiscard]] std::array<std::span<std::byte>, 2> used() const {
    const std::byte* const start = static_cast<std::byte*>(memory_);
    const auto until = [&](const void* end) {
      return static_cast<std::size_t>(static_cast<const std::byte*>(end) - start);
    };
    const std::size_t cause = until(&view().cause() + 1);
    const std::size_t card = until(&view().card()) / kPage * kPage;
    const std::size_t messages = until(view().pipe_to(0).head);
    return {piece(0, cause), piece(card, messages - card)};
  }

 private:
  static constexpr std::size_t kPage = 4096;
  [[nodiscard]] ShmView view() const {
    return {{static_cast<std::byte*>(memory_), segment_bytes(kRanks)}, kRanks};
  }
  [[nodiscard]] std::span<std::byte> piece(std::size_t start, std::size_t bytes) const {
    return {static_cast<std::byte*>(memory_) + start, (bytes + kPage - 1) / kPage * kPage};
  }

  void* memory_;
};

enum Step : std::uint8_t {
  kSend,
  kFlush,
  kReceive,
  kPeerSend,
  kPeerReceive,
  kCounter,
  kRead,
  kBytes,
  kCause,
  kCard,
  kSteps
};

void add_words(Shared& shared, void* object, std::size_t bytes) {
  for (std::size_t at = 0; at + sizeof(std::uint32_t) <= bytes; at += sizeof(std::uint32_t)) {
    shared.words.push_back(static_cast<std::byte*>(object) + at);
  }
}

/// What code decides by, of all that lies in the two segments.
Shared words_of(const ShmView& own, const ShmView& peer) {
  Shared shared;
  for (const RingMemory& ring : {peer.messages_to(0), own.messages_to(1)}) {
    shared.words.push_back(reinterpret_cast<std::byte*>(&ring.head->written));
    shared.words.push_back(reinterpret_cast<std::byte*>(&ring.head->closed));
    shared.words.push_back(reinterpret_cast<std::byte*>(&ring.head->wants_room));
    shared.words.push_back(reinterpret_cast<std::byte*>(&ring.head->read));
    add_words(shared, ring.data.data(), 64);  // lengths of the first messages
  }
  add_words(shared, &peer.cause(), offsetof(CauseRecord, missing) + 16);
  add_words(shared, &peer.card(), sizeof(MemoryCard::state) + 3 * sizeof(std::uint64_t));
  return shared;
}

void run(std::span<const std::byte> input) {
  static const Segment first;
  static const Segment second;
  const ShmView own = first.fresh();
  const ShmView peer = second.fresh();
  Script script(input);
  Shared shared = words_of(own, peer);
  for (const Segment* segment : {&first, &second}) {
    for (const auto& pages : segment->used()) shared.pages.push_back(pages);
  }
  const Meddler meddler(shared, script);
  ShmChannel channel(
      {.own = own, .own_index = 0, .peer = peer, .peer_index = 1, .peer_rank = 1, .bell = {}});
  ShmChannel other(
      {.own = peer, .own_index = 1, .peer = own, .peer_index = 0, .peer_rank = 0, .bell = {}});
  const RingMemory in = peer.messages_to(0);
  const RingMemory out = own.messages_to(1);
  std::size_t queued = 0;
  while (!script.empty()) {
    switch (script.byte() % kSteps) {
      case kSend: {
        const Bytes message(1 + 64 * std::size_t{script.byte()}, std::byte{1});
        queued += message.size();
        if (queued > (std::size_t{1} << 20)) return;  // what finds no room is kept
        if (!channel.send(message)) return;
        break;
      }
      case kFlush:
        if (!channel.flush()) return;
        break;
      case kReceive:
        (void)channel.ready();
        if (!channel.receive()) return;
        break;
      case kPeerSend: {
        const Bytes message(1 + 64 * std::size_t{script.byte()}, std::byte{2});
        queued += message.size();
        if (queued > (std::size_t{1} << 20)) return;
        if (!other.send(message) || !other.flush()) return;
        break;
      }
      case kPeerReceive:
        if (!other.receive()) return;
        break;
      case kCounter:  // by the peer, as writer of its ring
        in.head->written = script.number();
        in.head->closed = script.byte() & 1;
        in.head->wants_room = script.byte() & 1;
        break;
      case kRead:  // by the peer, as reader of ours
        out.head->read = script.number();
        break;
      case kBytes: {
        const std::size_t at = script.number() % in.data.size();
        const auto bytes = script.piece(std::min<std::size_t>(script.byte(), in.data.size() - at));
        std::copy(bytes.begin(), bytes.end(), in.data.begin() + static_cast<std::ptrdiff_t>(at));
        break;
      }
      case kCause: {
        const std::size_t at = script.number() % sizeof(CauseRecord);
        const auto bytes =
            script.piece(std::min<std::size_t>(script.byte(), sizeof(CauseRecord) - at));
        std::memcpy(reinterpret_cast<std::byte*>(&peer.cause()) + at, bytes.data(), bytes.size());
        const auto cause = read_cause(peer);
        require(!cause || cause->message.size() <= CauseRecord::kTextBytes, "texts are bounded");
        break;
      }
      case kCard: {
        MemoryCard& card = peer.card();
        card.address = std::uint64_t{script.number()} << 32 | script.number();
        card.number = {script.number(), script.number()};
        card.state = script.byte() & 1;
        (void)proven(PeerMemory::own(), card);
        break;
      }
      default:
        break;
    }
  }
}

Bytes bytes_of(std::initializer_list<int> numbers) {
  Bytes bytes;
  for (const int number : numbers) bytes.push_back(static_cast<std::byte>(number));
  return bytes;
}

/// Nothing changes during calls.
Bytes script(std::initializer_list<int> numbers) {
  Bytes bytes = bytes_of(numbers);
  bytes.insert(bytes.begin(), std::byte{0});
  return bytes;
}

/// A word of the record changes after each access to it, to `value` and back.
Bytes meddled_cause(int word, int value, const Bytes& record) {
  constexpr int kCauseWords = 40;  // behind two rings of 20
  constexpr int kChanges = 16;
  Bytes bytes = bytes_of({kChanges});
  for (int i = 0; i < kChanges; ++i) {
    const Bytes change =
        bytes_of({0, kCauseWords + word, i % 2 == 0 ? value : 3, i % 2 == 0 ? value : 0, 0, 0});
    bytes.insert(bytes.end(), change.begin(), change.end());
  }
  const Bytes step = bytes_of({kCause, 0, 0, 0, 0, 255});
  bytes.insert(bytes.end(), step.begin(), step.end());
  bytes.insert(bytes.end(), record.begin(), record.end());
  return bytes;
}

std::vector<Bytes> seeds() {
  static const Segment segment;
  const ShmView view = segment.fresh();
  publish_cause(view, Error{.code = Code::PeerLost, .message = "why", .peer = 1, .tensor = "x"});
  const auto* first = reinterpret_cast<const std::byte*>(&view.cause());
  const Bytes record(first, first + 255);
  Bytes cause = script({kCause, 0, 0, 0, 0, 255});
  cause.insert(cause.end(), record.begin(), record.end());
  std::vector<Bytes> all{
      script({kSend, 3, kFlush, kPeerReceive, kPeerSend, 0, kReceive, kPeerSend, 255, kReceive,
              kReceive}),
      script({kPeerSend, 9, kCounter, 255, 255, 0, 0, 0, 1, kReceive}),
      script({kSend, 255, kRead, 4, 0, 0, 0, kSend, 255, kFlush}),
      script({kBytes, 0, 0, 0, 0, 4, 8, 0, 0, 0, kCounter, 12, 0, 0, 0, 0, 0, kReceive}),
      script({kCard, 0, 0, 0, 0, 0, 16, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 1}), cause,
      // The counter of a ring, and the length of a message, change while a message is taken.
      bytes_of({2, 40, 0, 255, 255, 255, 255, 3, 4, 255, 255, 255, 255, kPeerSend, 1, kReceive,
                kReceive})};
  for (int word = 0; word < 6; ++word) all.push_back(meddled_cause(word, 255, record));
  return all;
}

}  // namespace

const Target kSharedMemory{"shared_memory", run, seeds, 4};

}  // namespace farandole::fuzz
