/// Operations of one rank whose neighbours on the host leave in their segments whatever they like,
/// and change it while it is read: flags, slots, places in a heap, notices of who reads whom,
/// rings.

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "backends/shm/shm.h"
#include "meddler.h"
#include "target.h"

namespace farandole::fuzz {
namespace {

constexpr int kMost = 3;
constexpr std::size_t kHeapBytes = 8192;
constexpr std::size_t kTensorBytes = 2048;
constexpr int kSteps = 60;

enum Call : std::uint8_t {
  kAllreduce,
  kInHeap,
  kReducescatter,
  kAllgather,
  kAlltoall,
  kBroadcast,
  kReceive,
  kSend,
  kBarrier,
  kCalls
};

/// What a neighbour does between two steps.
enum Deed : std::uint8_t { kFollow, kSay, kSlot, kNotice, kPlaces, kRing, kNothing, kDeeds };

/// The segments of one host, up to the end of the world's channel. Most of it is address space.
class Segments {
 public:
  Segments() : each_((segment_bytes(kMost) + 4095) / 4096 * 4096) {
    void* const memory = ::mmap(nullptr, kMost * each_, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    require(memory != MAP_FAILED, "there is address space for segments");
    memory_ = static_cast<std::byte*>(memory);
  }
  Segments(const Segments&) = delete;
  Segments& operator=(const Segments&) = delete;
  ~Segments() { ::munmap(memory_, kMost * each_); }

  [[nodiscard]] std::span<std::byte> pages(int rank, int size) const {
    return {at(rank), segment_base_bytes(size)};
  }
  /// Zero where an earlier run may have been.
  [[nodiscard]] ShmView fresh(int rank, int size) const {
    const ShmView view({at(rank), each_}, size);
    std::memset(at(rank), 0, channel_extent(size, 0).offset);
    std::memset(static_cast<void*>(&view.flags(0)), 0,
                sizeof(ShmFlags) + 128 + kShmSlots * sizeof(ShmPlaces));  // which follow them
    for (std::uint32_t s = 0; s < kShmSmallSlots; ++s) {
      std::memset(view.small_slot(0, s), 0, kTensorBytes + 64);
    }
    for (std::uint32_t s = 0; s < kShmSlots; ++s) {
      std::memset(view.slot(0, s), 0, kTensorBytes);
    }
    return view;
  }

 private:
  [[nodiscard]] std::byte* at(int rank) const {
    return memory_ + each_ * static_cast<std::size_t>(rank);
  }
  std::size_t each_;
  std::byte* memory_;
};

class World {
 public:
  World(const Segments& segments, Script& script) : size_(2 + script.byte() % (kMost - 1)) {
    const bool cross_memory = (script.byte() & 1) != 0;
    Members members;
    members.groups.emplace_back();
    std::vector<Rank> ranks;
    std::vector<ShmMember> all;
    for (int rank = 0; rank < size_; ++rank) {
      views_.push_back(segments.fresh(rank, size_));
      ranks.push_back(rank);
      members.groups[0].push_back(rank);
      heap_memory_.push_back(std::make_unique<std::byte[]>(kHeapBytes));
      heaps_.push_back(std::make_unique<ShmHeap>(std::span(heap_memory_.back().get(), kHeapBytes)));
      all.push_back({.segment = views_.back(),
                     .local_index = rank,
                     .bell = {},
                     .heap = heaps_.back().get(),
                     .memory = cross_memory ? PeerMemory::own() : PeerMemory()});
      if (cross_memory) token().publish(views_.back().card());
    }
    members.ranks = ranks;
    ShmTuning tuning;
    tuning.small_bytes = 256;
    tuning.chunk_bytes = 512;
    tuning.slots = kLeastShmSlots;  // an operation may have more chunks than slots
    tuning.cross_memory_bytes = 256;
    tuning.cross_memory_most_bytes = kTensorBytes * kMost;
    tuning.cross_memory_broadcast_bytes = kTensorBytes;
    backend_ = std::make_unique<ShmBackend>(members, all, std::make_shared<ShmPipes>(ranks, all, 0),
                                            ShmChannelUse{}, tuning);
  }

  [[nodiscard]] ShmBackend& backend() { return *backend_; }
  [[nodiscard]] int size() const noexcept { return size_; }
  [[nodiscard]] const ShmView& view(int rank) const {
    return views_[static_cast<std::size_t>(rank)];
  }
  [[nodiscard]] std::byte* tensor_in_heap() {
    auto found = heaps_.front()->extend(kTensorBytes);
    return found ? *found : nullptr;
  }
  /// What a neighbour's words decide.
  [[nodiscard]] Shared shared(const Segments& segments) const {
    Shared shared;
    for (int rank = 0; rank < size_; ++rank) shared.pages.push_back(segments.pages(rank, size_));
    const auto add = [&](void* at) { shared.words.push_back(static_cast<std::byte*>(at)); };
    for (int rank = 1; rank < size_; ++rank) {
      for (std::uint32_t s = 0; s < kShmSlots; ++s) {
        ShmPlaces& places = view(rank).places(0, s);
        add(&places.count);
        for (std::size_t i = 0; i < 4; ++i) add(&places.offsets[i]);
      }
      for (std::uint32_t s = 0; s < kShmSmallSlots; ++s) {
        for (int word = 0; word < 6; ++word) add(view(rank).small_slot(0, s) + 4 * word);
      }
      ShmFlags& flags = view(rank).flags(0);
      for (auto* value :
           {&flags.small.value, &flags.filled.value, &flags.reduced.value, &flags.drained.value}) {
        add(value);
      }
      add(&flags.small.operations[0]);
      add(&flags.filled.operations[0]);
      add(&view(rank).pipe_to(0).head->written);
      add(&view(0).pipe_to(rank).head->read);
      add(&view(rank).cause().state);
    }
    for (std::uint32_t s = 0; s < kShmSlots; ++s) add(&view(0).places(0, s).count);
    return shared;
  }

 private:
  static const MemoryToken& token() {
    static const auto made = MemoryToken::make();
    require(static_cast<bool>(made), "there are random numbers");
    return *made;
  }

  int size_;
  std::vector<ShmView> views_;
  std::vector<std::unique_ptr<std::byte[]>> heap_memory_;
  std::vector<std::unique_ptr<ShmHeap>> heaps_;
  std::unique_ptr<ShmBackend> backend_;
};

void do_deed(const World& world, Script& script) {
  const Deed deed = static_cast<Deed>(script.byte() % kDeeds);
  const int rank = 1 + script.byte() % (world.size() - 1);
  const ShmView& peer = world.view(rank);
  ShmFlags& flags = peer.flags(0);
  const std::uint32_t index = script.byte();
  switch (deed) {
    case kFollow: {  // as far as the first rank has come, in all
      const ShmFlags& first = world.view(0).flags(0);
      flags.small.value = first.small.value.load();
      flags.filled.value = first.filled.value.load();
      flags.reduced.value = first.reduced.value.load();
      flags.drained.value = first.drained.value.load() + (index & 1);
      break;
    }
    case kSay:
      flags.small.value = script.number();
      flags.filled.value = script.byte();
      flags.reduced.value = script.byte();
      flags.drained.value = script.byte();
      break;
    case kSlot: {
      const auto bytes = script.piece(script.byte());
      std::copy(bytes.begin(), bytes.end(), peer.slot(0, index % kShmSlots));
      break;
    }
    case kNotice: {
      const auto bytes = script.piece(script.byte());
      std::copy(bytes.begin(), bytes.end(), peer.small_slot(0, index % kShmSmallSlots));
      break;
    }
    case kPlaces: {
      ShmPlaces& places = peer.places(0, index % kShmSlots);
      places.count = script.byte();
      for (std::size_t i = 0; i < 4; ++i) {
        places.offsets[i] = std::uint64_t{script.byte()} << 8 * (script.byte() % 8);
      }
      break;
    }
    case kRing: {
      const RingMemory ring = peer.pipe_to(0);
      ring.head->written = script.number();
      world.view(0).pipe_to(rank).head->read = script.number();
      break;
    }
    default:
      break;
  }
}

/// Memory of the user: each tensor of its own, so that the sanitizer sees its ends.
struct Tensors {
  explicit Tensors(std::size_t bytes, int size) : in(bytes), out(bytes) {
    for (int rank = 0; rank < size; ++rank) {
      ins.emplace_back(bytes);
      outs.emplace_back(bytes);
    }
  }
  Bytes in, out;
  std::vector<Bytes> ins, outs;
};

std::unique_ptr<Operation> start(Call call, World& world, Tensors& tensors, DType dtype,
                                 ReduceOp op) {
  ShmBackend& backend = world.backend();
  const Reduction reduction{.dtype = dtype, .op = op};
  const std::size_t bytes = tensors.in.size();
  const std::size_t count = bytes / size_of(dtype);
  switch (call) {
    case kAllreduce: {
      const std::array pieces{Piece{tensors.in.data(), tensors.out.data(), count}};
      return backend.start(Allreduce{pieces, reduction});
    }
    case kInHeap: {
      std::byte* const data = world.tensor_in_heap();
      if (data == nullptr) return nullptr;
      // More of them in a chunk than places can be told of; or a few.
      const std::size_t each = bytes % 16 == 0 ? 1 : count / 3 + 1;
      std::vector<Piece> pieces;
      for (std::size_t at = 0; at < count; at += each) {
        std::byte* const piece = data + at * size_of(dtype);
        pieces.push_back({piece, piece, std::min(each, count - at)});
      }
      return backend.start(Allreduce{pieces, reduction});
    }
    case kReducescatter: {
      ScatterPiece piece{tensors.in.data(), tensors.out.data(), {0}};
      const auto size = static_cast<std::size_t>(world.size());
      for (std::size_t m = 1; m <= size; ++m) piece.begins.push_back(count * m / size);
      return backend.start(Reducescatter{std::span(&piece, 1), reduction});
    }
    case kAllgather: {
      GatherPlan plan;
      plan.in = {tensors.in};
      for (Bytes& out : tensors.outs) plan.out.push_back({out});
      return backend.start(std::move(plan));
    }
    case kAlltoall: {
      AlltoallPlan plan;
      for (const Bytes& in : tensors.ins) plan.in.emplace_back(in);
      for (Bytes& out : tensors.outs) plan.out.emplace_back(out);
      plan.longest = bytes * tensors.ins.size();
      return backend.start(std::move(plan));
    }
    case kBroadcast:
      return backend.start(Broadcast{tensors.in, tensors.out, 1});
    case kReceive:
      return backend.recv(1, tensors.out);
    case kSend:
      return backend.send(1, tensors.in);
    default:
      return backend.start(Barrier{});
  }
}

void run(std::span<const std::byte> input) {
  static const Segments segments;
  Script script(input);
  World world(segments, script);
  const Meddler meddler(world.shared(segments), script);
  for (int calls = 0; calls < 8 && !script.empty(); ++calls) {
    const auto call = static_cast<Call>(script.byte() % kCalls);
    const auto dtype = static_cast<DType>(script.byte() % kReducedDTypes);
    const auto op = script.byte() % 2 == 0 ? ReduceOp::Sum : ReduceOp::Max;
    const std::size_t bytes = 8 + std::size_t{script.byte()} * 8;
    Tensors tensors(bytes, world.size());
    const auto operation = start(call, world, tensors, dtype, op);
    if (operation == nullptr) return;
    bool done = false;
    for (int step = 0; step < kSteps && !done; ++step) {
      const auto moved = operation->step();
      if (!moved) return;  // the world ends
      done = *moved == Step::Done;
      if (*moved != Step::Blocked) continue;
      (void)operation->waiting_for();
      if (script.empty()) return;
      do_deed(world, script);
    }
    if (!done) return;
  }
}

std::vector<Bytes> seeds() {
  std::vector<Bytes> all;
  const auto add = [&](int size, int cross_memory, std::initializer_list<int> changes, int call,
                       int dtype, int length) {
    Bytes bytes;
    const auto put = [&](int value) { bytes.push_back(static_cast<std::byte>(value)); };
    put(size - 2);
    put(cross_memory);
    for (const int value : changes) put(value);
    for (int calls = 0; calls < 2; ++calls) {
      for (const int value : {call, dtype, 0, length}) put(value);
      for (int step = 0; step < 24; ++step) {
        for (const int value : {int{kFollow}, step, 1}) put(value);
      }
    }
    all.push_back(bytes);
  };
  for (int call = 0; call < kCalls; ++call) {
    for (const int length : {2, 200}) {
      add(2, 0, {0}, call, static_cast<int>(DType::Float32), length);
      add(3, 1, {0}, call, static_cast<int>(DType::Int32), length);
      // Places: as many as there may be, then more; a flag that runs ahead.
      add(2, 1, {3, 20, 0, 2, 0, 0, 0, 0, 0, 255, 0, 0, 0, 9, 27, 9, 0, 0, 0}, call,
          static_cast<int>(DType::Float32), length);
    }
  }
  // What is reduced lies in the heap of a neighbour that says so and takes it back.
  Bytes places;
  for (const int value : {0, 0, 12}) places.push_back(static_cast<std::byte>(value));
  for (int change = 0; change < 12; ++change) {
    const int slot = change % 3;
    for (const int value : {2, 5 * slot, change % 2 == 0 ? 1 : 255, 0, 0, 0}) {
      places.push_back(static_cast<std::byte>(value));
    }
  }
  for (const int value : {int{kInHeap}, static_cast<int>(DType::Float32), 0, 250}) {
    places.push_back(static_cast<std::byte>(value));
  }
  for (int step = 0; step < 30; ++step) {
    for (const int value : {int{kFollow}, 0, 1, int{kPlaces}, 0, step, 2, 0, 0, 1, 0, 2, 0, 3, 0}) {
      places.push_back(static_cast<std::byte>(value));
    }
  }
  all.push_back(places);
  return all;
}

}  // namespace

const Target kSharedOperations{"shared_operations", run, seeds, 4};

}  // namespace farandole::fuzz
