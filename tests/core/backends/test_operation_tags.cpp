// Ranks that run different operations of equal size at one moment: whatever carries the data, who
// reads has an error that names both operations and the rank, never a result.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hosts_world.h"

namespace farandole {
namespace {

using testing::each_alone;
using testing::Hosts;
using testing::ShmWorld;
using testing::ShmWorldOptions;
using testing::succeeded;
using testing::TcpWorld;
using Bytes = std::vector<std::byte>;

constexpr std::byte kUntouched{0x5A};
constexpr OperationTag kDispatch = OperationTag{1} << kTagShift | 7;
constexpr OperationTag kProposal = OperationTag{2} << kTagShift | (OperationTag{3} << 16) | 2;

/// The operation of a member.
OperationTag tag_of(int member) { return member == 0 ? kDispatch : kProposal; }

/// What a member says that found data of the other one.
void expect_mixed(const Error& error, int member, Rank other) {
  EXPECT_EQ(error.code, Code::Internal);
  EXPECT_EQ(error.peer, other);
  const std::string dispatch = "dispatch 7";
  const std::string proposal = "part 2 of what was agreed in round 3";
  const std::string expected = "rank " + std::to_string(other) + " brings data of " +
                               (member == 0 ? proposal : dispatch) + ", while this rank runs " +
                               (member == 0 ? dispatch : proposal) + ":";
  EXPECT_TRUE(error.what().starts_with(expected)) << error.what();
}

/// Steps members in turns until nothing moves any more. Who has not come to an end has none.
std::vector<std::optional<Result<void>>> in_turns(
    const std::vector<std::unique_ptr<Operation>>& operations) {
  constexpr int kIdleTurns = 100;  // what is in a socket is there at once
  std::vector<std::optional<Result<void>>> ends(operations.size());
  for (int idle = 0; idle < kIdleTurns; ++idle) {
    for (std::size_t i = 0; i < operations.size(); ++i) {
      if (ends[i]) continue;
      auto step = operations[i]->step();
      if (step && *step == Step::Blocked) continue;
      idle = 0;
      if (!step) ends[i] = Result<void>(std::move(step).error());
      if (step && *step == Step::Done) ends[i] = Result<void>();
    }
  }
  return ends;
}

/// Who only writes may come to an end, or wait for readers.
bool only_writes(Kind kind, int member) { return kind == Kind::Broadcast && member == 0; }

std::string case_of(Kind kind, std::size_t bytes) {
  return "kind " + std::to_string(static_cast<int>(kind)) + ", " + std::to_string(bytes) + " bytes";
}

/// A member's tensors of an operation, all of one size.
struct Call {
  explicit Call(std::size_t bytes, ShmHeap* heap = nullptr)
      : in(bytes, std::byte{1}), out(bytes, kUntouched), many(2, in), filled(2, out) {
    if (heap == nullptr) return;
    shared = *heap->extend(bytes);
    std::fill_n(shared, bytes, std::byte{1});
  }

  std::unique_ptr<Operation> start(Kind kind, Backend& backend) {
    const auto members = static_cast<std::size_t>(backend.members().size());
    switch (kind) {
      case Kind::Allreduce: {
        const Piece apart{in.data(), out.data(), in.size() / 4};
        const Piece piece = shared == nullptr ? apart : Piece{shared, shared, in.size() / 4};
        return backend.start(Allreduce{{&piece, 1}, {}});
      }
      case Kind::Reducescatter: {
        ScatterPiece piece{in.data(), out.data(), {0}};
        for (std::size_t m = 1; m <= members; ++m) {
          piece.begins.push_back(in.size() / 4 * m / members);
        }
        return backend.start(Reducescatter{{&piece, 1}, {}});
      }
      case Kind::Allgather: {
        GatherPlan plan;
        plan.in = {in};
        filled.resize(members, out);
        for (Bytes& part : filled) plan.out.push_back({part});
        return backend.start(std::move(plan));
      }
      case Kind::Alltoall: {
        AlltoallPlan plan;
        many.resize(members, in);
        filled.resize(members, out);
        for (const Bytes& part : many) plan.in.emplace_back(part);
        for (Bytes& part : filled) plan.out.emplace_back(part);
        plan.longest = in.size() * members;
        return backend.start(std::move(plan));
      }
      case Kind::Broadcast:
        return backend.start(Broadcast{in, out, 0});
      default:
        return backend.start(Barrier{});
    }
  }

  /// Nothing of the other members' bytes has come here: those of member `self` may have.
  [[nodiscard]] bool untouched(int self) const {
    const auto clean = [](const Bytes& bytes) {
      return std::ranges::all_of(bytes, [](std::byte b) { return b == kUntouched; });
    };
    if (shared != nullptr &&
        !std::all_of(shared, shared + in.size(), [](std::byte b) { return b == std::byte{1}; })) {
      return false;
    }
    for (std::size_t m = 0; m < filled.size(); ++m) {
      if (static_cast<int>(m) != self && !clean(filled[m])) return false;
    }
    return clean(out);
  }

  Bytes in, out;
  std::vector<Bytes> many, filled;
  std::byte* shared = nullptr;  // in the heap
};

constexpr Kind kKinds[] = {Kind::Allreduce, Kind::Reducescatter, Kind::Allgather,
                           Kind::Alltoall,  Kind::Broadcast,     Kind::Barrier};

/// Two members run a kind of operation, first of one mind, then each of its own number.
void expect_mismatch(const std::vector<Backend*>& backends, Kind kind, std::size_t bytes,
                     const std::vector<ShmHeap*>& heaps = {nullptr, nullptr}) {
  SCOPED_TRACE(case_of(kind, bytes));
  for (const bool of_one_mind : {true, false}) {
    std::vector<Call> calls;
    std::vector<std::unique_ptr<Operation>> operations;
    for (std::size_t m = 0; m < 2; ++m) calls.emplace_back(bytes, heaps[m]);
    for (std::size_t m = 0; m < 2; ++m) {
      backends[m]->begin(of_one_mind ? kDispatch - 1 : tag_of(static_cast<int>(m)));
      operations.push_back(calls[m].start(kind, *backends[m]));
    }
    const auto ends = in_turns(operations);
    for (int m = 0; m < 2; ++m) {
      SCOPED_TRACE("member " + std::to_string(m));
      const auto& end = ends[static_cast<std::size_t>(m)];
      if (!of_one_mind && only_writes(kind, m)) continue;
      ASSERT_TRUE(end.has_value());
      if (of_one_mind) {
        ASSERT_TRUE(succeeded(*end));
        continue;
      }
      ASSERT_FALSE(*end);
      const Members& members = backends[static_cast<std::size_t>(m)]->members();
      expect_mixed((*end).error(), m, members.ranks[static_cast<std::size_t>(1 - m)]);
      EXPECT_TRUE(calls[static_cast<std::size_t>(m)].untouched(m));
    }
  }
}

void mismatch_in_shared_memory(const ShmWorldOptions& options, Kind kind, std::size_t bytes,
                               bool in_heap = false) {
  ShmWorld world(options);
  if (in_heap) world.make_heaps(std::size_t{1} << 20);
  const auto one = world.backend(0);
  const auto other = world.backend(1);
  const std::vector<ShmHeap*> heaps =
      in_heap ? std::vector{&world.heap(0), &world.heap(1)} : std::vector<ShmHeap*>(2);
  expect_mismatch({one.get(), other.get()}, kind, bytes, heaps);
}

constexpr ShmTuning kTiny{.small_bytes = 256, .chunk_bytes = 192};

TEST(OperationTags, OfSmallSlots) {
  for (const Kind kind : kKinds) mismatch_in_shared_memory({.tuning = kTiny}, kind, 64);
}

TEST(OperationTags, OfTheChunksOfLargeOperations) {
  for (const Kind kind : kKinds) {
    if (kind == Kind::Barrier) continue;
    for (const std::size_t bytes : {400u, 4000u}) {
      mismatch_in_shared_memory({.tuning = kTiny}, kind, bytes);
    }
  }
}

TEST(OperationTags, OfPlacesInSharedMemory) {
  for (const std::size_t bytes : {400u, 4000u}) {
    mismatch_in_shared_memory({.tuning = kTiny}, Kind::Allreduce, bytes, true);
  }
}

TEST(OperationTags, OfNoticesWhereMembersReadEachOther) {
  ShmTuning tuning = kTiny;
  tuning.cross_memory_bytes = 1;
  tuning.cross_memory_most_bytes = tuning.cross_memory_broadcast_bytes = 1 << 20;
  for (const Kind kind : {Kind::Allgather, Kind::Alltoall, Kind::Broadcast}) {
    mismatch_in_shared_memory({.tuning = tuning, .cross_memory = true}, kind, 4000);
  }
}

TEST(OperationTags, OfTheLastChunksAndCountersThatWrapAround) {
  for (const std::uint32_t before_wrap : {1U, 2U, 3U, 5U, 8U}) {
    for (const std::size_t bytes : {64u, 1000u}) {
      mismatch_in_shared_memory({.tuning = kTiny, .first_sequence = 0U - before_wrap},
                                Kind::Allreduce, bytes);
    }
  }
}

/// Transfers through a ring, of a member that is one operation ahead.
TEST(OperationTags, OfBytePipes) {
  for (const std::size_t bytes : {1u, 8u, 300000u}) {
    const ShmWorld world({.size = 2});
    const auto one = world.backend(0);
    const auto other = world.backend(1);
    const Bytes data(bytes, std::byte{1});
    Bytes out(bytes, kUntouched);
    one->begin(kDispatch);
    other->begin(kDispatch);
    std::vector<std::unique_ptr<Operation>> fine;
    fine.push_back(one->send(1, data));
    fine.push_back(other->recv(0, out));
    for (const auto& end : in_turns(fine)) {
      ASSERT_TRUE(end.has_value());
      ASSERT_TRUE(succeeded(*end));
    }
    EXPECT_EQ(out, data);

    std::ranges::fill(out, kUntouched);
    other->begin(kProposal);
    const auto ahead = one->send(1, data);
    ASSERT_TRUE(static_cast<bool>(ahead->step()));
    const auto reading = other->recv(0, out);
    const auto step = reading->step();
    ASSERT_FALSE(static_cast<bool>(step));
    expect_mixed(step.error(), 1, ShmWorld::global(0));
    EXPECT_TRUE(std::ranges::all_of(out, [](std::byte b) { return b == kUntouched; }));
  }
}

TEST(OperationTags, OfBytePipesThatAreFullInTheMiddleOfATag) {
  const ShmWorld world({.size = 2});
  const auto one = world.backend(0);
  const auto other = world.backend(1);
  const std::size_t capacity = world.view(0).pipe_to(1).data.size();
  for (std::size_t left = 0; left <= sizeof(OperationTag); ++left) {
    // The first transfer leaves so much room; the second one begins in it.
    const Bytes first(capacity - sizeof(OperationTag) - left, std::byte{1});
    const Bytes second(100, std::byte{2});
    Bytes got(first.size());
    Bytes also(second.size());
    one->begin(left + 1);
    other->begin(left + 1);
    std::vector<std::unique_ptr<Operation>> operations;
    operations.push_back(one->send(1, first));
    operations.push_back(one->send(1, second));
    operations.push_back(other->recv(0, got));
    operations.push_back(other->recv(0, also));
    for (const auto& end : in_turns(operations)) {
      ASSERT_TRUE(end.has_value());
      ASSERT_TRUE(succeeded(*end));
    }
    EXPECT_EQ(got, first);
    EXPECT_EQ(also, second);
  }
}

TEST(OperationTags, OfMessagesOfEqualLengthBetweenHosts) {
  for (const int streams : {1, 2}) {
    for (const std::size_t bytes : {8u, 100000u, 300000u}) {
      for (const Kind kind : kKinds) {
        const TcpWorld world({.groups = each_alone(2), .streams = streams});
        TcpBackend one(world.members(0), world.mesh(0));
        TcpBackend other(world.members(1), world.mesh(1));
        expect_mismatch({&one, &other}, kind, bytes);
      }
    }
  }
}

/// Somebody has found it, and nobody has a result of what rank 3 brought to something else.
TEST(OperationTags, ReachEverythingThatAHostAndTheNetworkCarry) {
  for (const Kind kind : kKinds) {
    for (const std::size_t bytes : {64u, 200000u}) {
      SCOPED_TRACE(case_of(kind, bytes));
      Hosts hosts({{0, 1}, {2, 3}});
      std::vector<std::unique_ptr<Backend>> backends;
      std::vector<Call> calls(4, Call(bytes));
      std::vector<std::unique_ptr<Operation>> operations;
      for (int rank = 0; rank < 4; ++rank) {
        backends.push_back(hosts.hierarchical(rank, {}, kTiny));
        backends.back()->begin(rank == 3 ? kProposal : kDispatch);
        operations.push_back(calls[static_cast<std::size_t>(rank)].start(kind, *backends.back()));
      }
      int mixed = 0;
      const auto ends = in_turns(operations);
      for (std::size_t rank = 0; rank < ends.size(); ++rank) {
        if (!ends[rank]) continue;
        const bool needs_not_rank_3 = kind == Kind::Broadcast && rank != 3;
        EXPECT_TRUE(!*ends[rank] || needs_not_rank_3) << rank;
        if (*ends[rank]) continue;
        EXPECT_NE((*ends[rank]).error().message.find("brings data of"), std::string::npos)
            << (*ends[rank]).error().message;
        ++mixed;
      }
      EXPECT_GT(mixed, 0);
    }
  }
}

}  // namespace
}  // namespace farandole
