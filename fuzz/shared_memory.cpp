/// What a peer leaves in shared memory: counters and bytes of a message ring, the record of a
/// cause, the card that tells where its memory is. It can change any of it at any time.

#include <sys/mman.h>

#include <cstring>

#include "target.h"
#include "transport/peer_memory.h"
#include "transport/shm_cause.h"
#include "transport/shm_channel.h"

namespace rueda::fuzz {
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
    std::memset(memory_, 0, channel_extent(kRanks, 0).offset);
    return {{static_cast<std::byte*>(memory_), segment_bytes(kRanks)}, kRanks};
  }

 private:
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

void run(std::span<const std::byte> input) {
  static const Segment first;
  static const Segment second;
  const ShmView own = first.fresh();
  const ShmView peer = second.fresh();
  ShmChannel channel(
      {.own = own, .own_index = 0, .peer = peer, .peer_index = 1, .peer_rank = 1, .bell = {}});
  ShmChannel other(
      {.own = peer, .own_index = 1, .peer = own, .peer_index = 0, .peer_rank = 0, .bell = {}});
  const RingMemory in = peer.messages_to(0);
  const RingMemory out = own.messages_to(1);
  Script script(input);
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

std::vector<Bytes> seeds() {
  const auto script = [](std::initializer_list<int> numbers) {
    Bytes bytes;
    for (const int number : numbers) bytes.push_back(static_cast<std::byte>(number));
    return bytes;
  };
  Bytes cause = script({kCause, 0, 0, 0, 0, 255});
  static const Segment segment;
  const ShmView view = segment.fresh();
  publish_cause(view, Error{.code = Code::PeerLost, .message = "why", .peer = 1, .tensor = "x"});
  const auto* record = reinterpret_cast<const std::byte*>(&view.cause());
  cause.insert(cause.end(), record, record + 255);
  return {script({kSend, 3, kFlush, kPeerReceive, kPeerSend, 0, kReceive, kPeerSend, 255, kReceive,
                  kReceive}),
          script({kPeerSend, 9, kCounter, 255, 255, 0, 0, 0, 1, kReceive}),
          script({kSend, 255, kRead, 4, 0, 0, 0, kSend, 255, kFlush}),
          script({kBytes, 0, 0, 0, 0, 4, 8, 0, 0, 0, kCounter, 12, 0, 0, 0, 0, 0, kReceive}),
          script({kCard, 0, 0, 0, 0, 0, 16, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 1}),
          cause};
}

}  // namespace

const Target kSharedMemory{"shared_memory", run, seeds};

}  // namespace rueda::fuzz
