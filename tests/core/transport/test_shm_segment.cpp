// Mappings, the layout of a segment, and the cause that a failing rank leaves in it.
#include "transport/shm_segment.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "engine/execution/shared_memory.h"
#include "shm_world.h"
#include "transport/shm_layout.h"

namespace farandole {
namespace {

using testing::ShmWorld;

Fd memfd_of(std::size_t bytes) {
  Fd fd(::memfd_create("farandole-test", MFD_CLOEXEC));
  EXPECT_EQ(::ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  return fd;
}

TEST(ShmSegment, TwoMappingsOfOneFileShowTheSameBytes) {
  const std::size_t bytes = segment_bytes(2);
  const Fd file = memfd_of(bytes);
  auto one = ShmSegment::map(Fd(::dup(file.get())), bytes);
  auto other = ShmSegment::map(Fd(::dup(file.get())), bytes);
  ASSERT_TRUE(one && other);
  ASSERT_EQ(one->bytes().size(), bytes);
  EXPECT_EQ(other->bytes()[bytes - 1], std::byte{0});
  one->bytes()[bytes - 1] = std::byte{42};
  EXPECT_EQ(other->bytes()[bytes - 1], std::byte{42});
}

TEST(ShmSegment, WhatIsNotReservedTakesNoMemoryUntilItIs) {
  const std::size_t bytes = segment_bytes(2);
  const Fd file = memfd_of(bytes);
  const auto taken = [&] {
    struct stat info{};
    EXPECT_EQ(::fstat(file.get(), &info), 0);
    return static_cast<std::size_t>(info.st_blocks) * 512;
  };
  const auto one = ShmSegment::map(Fd(::dup(file.get())), bytes, segment_base_bytes(2));
  auto other = ShmSegment::map(Fd(::dup(file.get())), bytes, segment_base_bytes(2));
  ASSERT_TRUE(one && other);
  EXPECT_EQ(taken(), segment_base_bytes(2));
  const ShmExtent extent = channel_extent(2, 7);
  ASSERT_TRUE(static_cast<bool>(other->reserve(extent.offset, extent.bytes)));
  EXPECT_EQ(taken(), segment_base_bytes(2) + extent.bytes);
  other->bytes()[extent.offset] = std::byte{7};
  ASSERT_TRUE(static_cast<bool>(other->reserve(extent.offset, extent.bytes)));  // once more
  EXPECT_EQ(one->bytes()[extent.offset], std::byte{7});
  EXPECT_FALSE(static_cast<bool>(other->reserve(bytes, 1)));
  static_cast<void>(other->take_file());
  EXPECT_FALSE(static_cast<bool>(other->reserve(extent.offset, extent.bytes)));
}

TEST(ShmSegment, AFileThatIsTooSmallIsAnError) {
  EXPECT_FALSE(static_cast<bool>(ShmSegment::map(memfd_of(4096), 4097)));
}

TEST(ShmSegment, ADescriptorThatIsNoFileIsAnError) {
  EXPECT_FALSE(static_cast<bool>(ShmSegment::map(Fd(), 4096)));
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const Fd other(ends[1]);
  EXPECT_FALSE(static_cast<bool>(ShmSegment::map(Fd(ends[0]), 4096)));
}

TEST(ShmSegment, AForkedChildDoesNotHaveTheMapping) {
  auto segment = ShmSegment::map(memfd_of(4096), 4096);
  ASSERT_TRUE(static_cast<bool>(segment));
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::alarm(30);
    // mincore() asks without touching: no mapping, no memory.
    unsigned char resident = 0;
    const bool gone = ::mincore(segment->bytes().data(), 4096, &resident) != 0 && errno == ENOMEM;
    ::_exit(gone ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(ShmSegment, MovingHandsTheMappingOver) {
  auto mapped = ShmSegment::map(memfd_of(4096), 4096);
  ASSERT_TRUE(static_cast<bool>(mapped));
  ShmSegment first = *std::move(mapped);
  first.bytes()[0] = std::byte{1};
  ShmSegment second = std::move(first);
  EXPECT_TRUE(first.bytes().empty());  // NOLINT: a moved-from segment is empty
  EXPECT_EQ(second.bytes()[0], std::byte{1});
  second = ShmSegment();
  EXPECT_TRUE(second.bytes().empty());
}

TEST(ShmLayout, PartsOfASegmentDoNotOverlapAndLieInside) {
  for (const int size : {1, 2, 3, 8, 64, 512}) {
    const std::size_t bytes = segment_bytes(size);
    const std::unique_ptr<std::byte, void (*)(std::byte*)> memory(
        static_cast<std::byte*>(std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096)),
        [](std::byte* p) { std::free(p); });
    const ShmView view({memory.get(), bytes}, size);
    std::vector<std::pair<std::uintptr_t, std::size_t>> parts;
    const auto add = [&](const void* at, std::size_t length) {
      parts.emplace_back(reinterpret_cast<std::uintptr_t>(at), length);
    };
    add(&view.bell(), sizeof(BellWord));
    add(&view.cause(), sizeof(CauseRecord));
    for (int reader = 0; reader < size; ++reader) {
      for (const RingMemory& ring : {view.messages_to(reader), view.pipe_to(reader)}) {
        add(ring.head, sizeof(RingHead));
        add(ring.data.data(), ring.data.size());
        EXPECT_EQ(ring.data.size() & (ring.data.size() - 1), 0U);
      }
    }
    for (const int channel : {0, 1, kNarrowShmChannels - 1, kNarrowShmChannels, kShmChannels - 1}) {
      EXPECT_EQ(view.slots(channel), channel < kNarrowShmChannels ? view.slots(0) : 3U);
      add(&view.flags(channel), sizeof(ShmFlags));
      const ShmExtent extent = channel_extent(size, channel);
      EXPECT_EQ(reinterpret_cast<std::byte*>(&view.flags(channel)), memory.get() + extent.offset);
      for (std::uint32_t i = 0; i < kShmSmallSlots; ++i) {
        add(view.small_slot(channel, i), kShmSmallBytes);
      }
      for (std::uint32_t i = 0; i < view.slots(channel); ++i) {
        add(view.slot(channel, i), kShmSlotBytes);
      }
      add(&view.places(channel, 0), view.slots(channel) * sizeof(ShmPlaces));
      EXPECT_EQ(view.slot(channel, view.slots(channel) - 1) + kShmSlotBytes,
                memory.get() + extent.offset + extent.bytes);
    }
    EXPECT_EQ(channel_extent(size, 1).offset, segment_base_bytes(size));
    std::sort(parts.begin(), parts.end());
    auto end = reinterpret_cast<std::uintptr_t>(memory.get());
    for (const auto& [at, length] : parts) {
      EXPECT_GE(at, end);
      EXPECT_EQ(at % 128, 0U);
      end = at + length;
    }
    EXPECT_LE(end, reinterpret_cast<std::uintptr_t>(memory.get()) + bytes);
  }
}

TEST(ShmLayout, ARankTakesAFewMiBWhateverTheSizeOfTensors) {
  EXPECT_LE(segment_base_bytes(2), std::size_t{8} << 20);
  EXPECT_LE(segment_base_bytes(8), std::size_t{16} << 20);
  EXPECT_LE(segment_base_bytes(64), std::size_t{32} << 20);
}

TEST(ShmLayout, AFileThatIsCutOffHasSoMuchLessHeap) {
  for (const int size : {2, 8, 512}) {
    const std::size_t all = segment_file_bytes(size);
    EXPECT_EQ(heap_extent(size).offset + heap_extent(size).bytes, all);
    EXPECT_EQ(heap_extent(size, all - 1).bytes, heap_extent(size).bytes - 4096);
    EXPECT_EQ(heap_extent(size, all + 4096).bytes, heap_extent(size).bytes);
    for (const std::size_t less : {segment_bytes(size), segment_base_bytes(size), std::size_t{0}}) {
      EXPECT_EQ(heap_extent(size, less).bytes, 0U);
    }
  }
}

TEST(ShmCause, TheFirstCauseIsReadWithAllItSays) {
  const ShmWorld world({.size = 2});
  EXPECT_FALSE(read_cause(world.view(0)));
  Error error;
  error.code = Code::Timeout;
  error.message = "Rank 1 did not come.";
  error.peer = 1;
  error.tensor = "allreduce.gradient";
  error.missing = {1, 3};
  error.waited_s = 2.5;
  publish_cause(world.view(0), Error::wrap(error, "Step 3"));
  publish_cause(world.view(0), Error{.code = Code::Shutdown, .message = "later"});
  const auto cause = read_cause(world.view(0));
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->code, Code::Timeout);
  EXPECT_EQ(cause->message, "Step 3: Rank 1 did not come.");
  EXPECT_EQ(cause->peer, 1);
  EXPECT_EQ(cause->tensor, "allreduce.gradient");
  EXPECT_EQ(cause->missing, (std::vector<Rank>{1, 3}));
  EXPECT_EQ(cause->waited_s, 2.5);
}

TEST(ShmCause, LongTextsAreCutBetweenCharacters) {
  const ShmWorld world({.size = 1});
  Error error;
  error.message = "x";
  while (error.message.size() < 3000) error.message += "\xC3\xA9";  // é
  error.tensor = std::string(1000, 't');
  error.missing.assign(100, 5);
  publish_cause(world.view(0), error);
  const auto cause = read_cause(world.view(0));
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->message, error.message.substr(0, CauseRecord::kTextBytes - 1));
  EXPECT_EQ(cause->tensor.size(), CauseRecord::kTensorBytes);
  EXPECT_EQ(cause->missing.size(), CauseRecord::kMissing);
}

TEST(ShmCause, GarbageInARecordIsReadWithinItsBounds) {
  const ShmWorld world({.size = 1});
  CauseRecord& record = world.view(0).cause();
  std::memset(static_cast<void*>(&record), 0xFF, sizeof record);
  EXPECT_FALSE(read_cause(world.view(0)));
  record.state.store(2);
  const auto cause = read_cause(world.view(0));
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->code, Code::Internal);
  EXPECT_EQ(cause->message.size(), CauseRecord::kTextBytes);
}

TEST(ShmHeap, OwnersAndOthersSeeTheSameMemory) {
  const Fd file(::memfd_create("farandole-test", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(file.get(), static_cast<off_t>(segment_file_bytes(2))), 0);
  ShmHeap own(Fd(::dup(file.get())), heap_extent(2));
  ShmHeap others(Fd(::dup(file.get())), heap_extent(2));
  const auto first = own.extend(100);
  const auto second = own.extend(std::size_t{9} << 20);
  ASSERT_TRUE(first && second);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(*second) % 64, 0U);
  (*second)[12345] = std::byte{7};
  const auto place = own.find(*second + 12345, 1);
  ASSERT_TRUE(place.has_value());
  const auto seen = others.at(*place, 1);
  ASSERT_TRUE(static_cast<bool>(seen));
  EXPECT_EQ(**seen, std::byte{7});
  EXPECT_FALSE(own.find(reinterpret_cast<const std::byte*>(&place), 1).has_value());
  EXPECT_FALSE(static_cast<bool>(others.at(heap_extent(2).bytes, 1)));
  EXPECT_FALSE(static_cast<bool>(own.extend(heap_extent(2).bytes)));
}

/// Neither the own heap nor that of a peer: whatever the parent writes later, no child can take it
/// for what was there, and none can write where ranks compute.
TEST(ShmHeap, AForkedChildHasNone) {
  const Fd file(::memfd_create("farandole-test", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(file.get(), static_cast<off_t>(segment_file_bytes(1))), 0);
  auto heap = std::make_shared<ShmHeap>(Fd(::dup(file.get())), heap_extent(1));
  ShmHeap of_peer(Fd(::dup(file.get())), heap_extent(1));
  auto pool =
      std::make_shared<HostPool>(std::size_t{1} << 30, std::make_unique<SharedMemory>(heap));
  std::optional<HostBuffer> buffer(pool->take(5000));
  std::byte* const data = buffer->data();
  ASSERT_NE(data, nullptr);
  data[4999] = std::byte{1};
  const auto seen = of_peer.at(0, 5000);
  ASSERT_TRUE(static_cast<bool>(seen));
  const auto page = [](const std::byte* at) {
    const auto address = reinterpret_cast<std::uintptr_t>(at);
    return reinterpret_cast<void*>(address -
                                   address % static_cast<std::uintptr_t>(::getpagesize()));
  };
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::alarm(30);
    // mincore() asks without touching: no mapping, no memory.
    unsigned char resident = 0;
    for (const std::byte* at :
         {static_cast<const std::byte*>(data), static_cast<const std::byte*>(*seen)}) {
      if (::mincore(page(at), 1, &resident) == 0 || errno != ENOMEM) ::_exit(1);
    }
    // The end of the heap here takes nothing away that lies in its place by then.
    void* const other =
        ::mmap(page(data), static_cast<std::size_t>(::getpagesize()), PROT_READ | PROT_WRITE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (other != page(data)) ::_exit(2);
    buffer.reset();
    pool.reset();
    heap.reset();
    ::_exit(::mincore(other, 1, &resident) == 0 ? 0 : 3);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
  EXPECT_EQ(data[4999], std::byte{1});
}

TEST(ShmHeap, WithoutAFileThereIsNoMemory) {
  ShmHeap of_nothing(memfd_of(segment_bytes(2)), heap_extent(2, segment_bytes(2)));
  EXPECT_FALSE(static_cast<bool>(of_nothing.at(0, 0)));
  ShmHeap heap(Fd(), heap_extent(2));
  EXPECT_FALSE(static_cast<bool>(heap.extend(1)));
  EXPECT_FALSE(static_cast<bool>(heap.at(0, 1)));
  EXPECT_FALSE(heap.find(nullptr, 0).has_value());
}

}  // namespace
}  // namespace farandole
