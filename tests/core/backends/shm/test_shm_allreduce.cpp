// Allreduce through shared memory gives the bits of the association: whatever the path, the chunk
// size, the batch, the element type and the number of ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <functional>
#include <random>

#include "association_reference.h"
#include "kernels/copy.h"
#include "shm_world.h"
#include "transport/shm_layout.h"

namespace farandole {
namespace {

using reference::Bytes;
using testing::ShmWorld;
using testing::succeeded;

struct Batch {
  Reduction reduction;
  std::vector<std::size_t> counts;  ///< elements of each piece
  bool in_place = true;
  std::size_t misaligned_bytes = 0;  ///< every tensor starts that far off a cache line
};

std::size_t elements_of(const Batch& batch) {
  std::size_t total = 0;
  for (const std::size_t count : batch.counts) total += count;
  return total;
}

std::vector<Bytes> inputs_of(const Batch& batch, int ranks, unsigned seed) {
  std::vector<Bytes> inputs;
  for (int rank = 0; rank < ranks; ++rank) {
    std::mt19937 random(seed * 100 + static_cast<unsigned>(rank));
    inputs.push_back(reference::mixed(batch.reduction.dtype, elements_of(batch), random));
  }
  return inputs;
}

Bytes expected_of(const Batch& batch, const std::vector<Bytes>& inputs) {
  std::vector<int> host(inputs.size());
  for (std::size_t i = 0; i < host.size(); ++i) host[i] = static_cast<int>(i);
  return reference::associate({host}, inputs, batch.reduction);
}

/// Which pieces of which rank lie in the rank's heap.
using InHeap = std::function<bool(int rank, std::size_t piece)>;

/// One rank's tensors of a batch: pieces apart from each other, guarded by bytes that must stay.
class Tensors {
 public:
  Tensors(const Batch& batch, const Bytes& input, const std::function<ShmHeap*(std::size_t)>& heap)
      : batch_(batch) {
    const std::size_t element = size_of(batch.reduction.dtype);
    std::size_t at = 0;
    for (std::size_t i = 0; i < batch.counts.size(); ++i) {
      const std::size_t bytes = batch.counts[i] * element;
      const auto in = memory(bytes + 2 * kGuard, heap(i));
      std::memcpy(in.data() + start(), input.data() + at, bytes);
      out_.push_back(batch.in_place ? in : memory(in.size(), heap(i)));
      at += bytes;
      pieces_.push_back({in.data() + start(), out_.back().data() + start(), batch.counts[i]});
    }
  }
  [[nodiscard]] const std::vector<Piece>& pieces() const { return pieces_; }

  /// All outputs as one array; fails if anything beside them was touched.
  [[nodiscard]] Bytes result() const {
    Bytes all;
    for (std::size_t i = 0; i < out_.size(); ++i) {
      const std::size_t bytes = batch_.counts[i] * size_of(batch_.reduction.dtype);
      const auto first = out_[i].begin() + static_cast<std::ptrdiff_t>(start());
      const auto last = first + static_cast<std::ptrdiff_t>(bytes);
      all.insert(all.end(), first, last);
      EXPECT_TRUE(std::all_of(out_[i].begin(), first, [](std::byte b) { return b == kMark; }));
      EXPECT_TRUE(std::all_of(last, out_[i].end(), [](std::byte b) { return b == kMark; }));
    }
    return all;
  }

 private:
  static constexpr std::size_t kGuard = 64;
  static constexpr std::byte kMark{0xA5};
  [[nodiscard]] std::size_t start() const { return 16 + batch_.misaligned_bytes; }

  std::span<std::byte> memory(std::size_t bytes, ShmHeap* heap) {
    std::byte* data = nullptr;
    if (heap != nullptr) {
      data = *heap->extend(bytes);
    } else {
      data = private_.emplace_back(bytes).data();
    }
    std::fill_n(data, bytes, kMark);
    return {data, bytes};
  }

  const Batch& batch_;
  std::deque<Bytes> private_;
  std::vector<std::span<std::byte>> out_;
  std::vector<Piece> pieces_;
};

void check(const ShmWorld& world, const std::vector<Batch>& batches, const InHeap& in_heap = {}) {
  std::vector<std::vector<Bytes>> inputs;
  std::vector<Bytes> expected;
  for (std::size_t i = 0; i < batches.size(); ++i) {
    inputs.push_back(inputs_of(batches[i], world.size(), static_cast<unsigned>(i)));
    expected.push_back(expected_of(batches[i], inputs.back()));
  }
  world.run([&](int rank, ShmBackend& backend) {
    for (std::size_t i = 0; i < batches.size(); ++i) {
      const Batch& batch = batches[i];
      const auto heap = [&](std::size_t piece) {
        return in_heap && in_heap(rank, piece) ? &world.heap(rank) : nullptr;
      };
      Tensors tensors(batch, inputs[i][static_cast<std::size_t>(rank)], heap);
      auto operation = backend.start(Allreduce{tensors.pieces(), batch.reduction});
      if (in_heap) {
        bool all = batch.in_place && batch.reduction.prescale == 1.0;
        for (std::size_t piece = 0; piece < batch.counts.size(); ++piece) {
          all = all && (batch.counts[piece] == 0 || in_heap(rank, piece));
        }
        const bool small = backend.path(Kind::Allreduce, inputs[i].front().size()) == "shm.small";
        ASSERT_EQ(operation->path(), all && !small ? "shm.heap" : "");
      }
      ASSERT_TRUE(succeeded(world.drive(rank, std::move(operation))));
      ASSERT_TRUE(tensors.result() == expected[i])
          << "batch " << i << " rank " << rank << " " << name_of(batch.reduction.dtype) << " "
          << name_of(batch.reduction.op) << " " << elements_of(batch) << " elements";
    }
  });
}

/// Everything is small with the first, everything is cut into many chunks with the others.
constexpr std::array kTunings{ShmTuning{.small_bytes = 65536, .chunk_bytes = 65536},
                              ShmTuning{.small_bytes = 1, .chunk_bytes = 64},
                              ShmTuning{.small_bytes = 1, .chunk_bytes = 448},
                              ShmTuning{.small_bytes = 1, .chunk_bytes = 4096}};

constexpr std::array kAllTypes{DType::UInt8,   DType::Int8,    DType::UInt16,  DType::Int16,
                               DType::Int32,   DType::Int64,   DType::Float16, DType::BFloat16,
                               DType::Float32, DType::Float64, DType::Bool};

TEST(ShmAllreduce, EveryTypeAndOperationHasTheBitsOfTheAssociationOnEveryPath) {
  std::vector<Batch> batches;
  for (const DType dtype : kAllTypes) {
    for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Min, ReduceOp::Max, ReduceOp::Product}) {
      batches.push_back({{dtype, op, 1.0, 1.0}, {1001}});
      batches.push_back({{dtype, op, 0.3, 1.7}, {3, 0, 500, 1, 77}, false});
    }
  }
  batches.push_back({{DType::Bool, ReduceOp::Average, 1.0, 1.0}, {1001}});
  for (const ShmTuning& tuning : kTunings) {
    check(ShmWorld({.size = 3, .tuning = tuning}), batches);
  }
}

TEST(ShmAllreduce, BitsDoNotDependOnTheNumberOfPiecesNorOnWhereTheyLie) {
  for (int size = 1; size <= 8; ++size) {
    std::vector<Batch> batches;
    for (const DType dtype : {DType::Float32, DType::BFloat16, DType::UInt8}) {
      for (const double prescale : {1.0, 0.7}) {
        const Reduction sum{dtype, ReduceOp::Sum, prescale, 0.5};
        batches.push_back({sum, {1}});
        batches.push_back({sum, {static_cast<std::size_t>(size)}, false});
        batches.push_back({sum, {700}, true, 1});
        batches.push_back({sum, {1, 1, 1, 0, 1, 62, 1, 1, 64, 65, 0}, false, 3});
        batches.push_back({sum, {0, 0, 555, 5}, true, 2});
      }
    }
    for (const ShmTuning& tuning : kTunings) {
      check(ShmWorld({.size = size, .tuning = tuning}), batches);
    }
  }
}

TEST(ShmAllreduce, ChunksOfRealSizeHaveTheSameBits) {
  const std::vector<Batch> batches{
      {{DType::Float32, ReduceOp::Sum, 1.0, 1.0}, {400001}},
      {{DType::Float16, ReduceOp::Sum, 1.0, 0.25}, {300000, 7, 250001}, false},
      {{DType::Float32, ReduceOp::Sum, 1.0, 1.0}, {16384}},
      {{DType::Float32, ReduceOp::Sum, 1.0, 1.0}, {16385}},
  };
  for (const int size : {2, 5}) check(ShmWorld({.size = size}), batches);
}

/// Results that no cache would keep go past it, unless they lie where the input is.
TEST(ShmAllreduce, ResultsThatGoPastTheCacheHaveTheSameBits) {
  const std::size_t count = streaming_bytes() / sizeof(double);
  check(ShmWorld({.size = 2}),
        {{{DType::Float64, ReduceOp::Sum, 0.5, 3.0}, {count / 2, 1, count / 2 + 31}, false, 1}});
  check(ShmWorld({.size = 3}), {{{DType::Float64, ReduceOp::Sum, 1.0, 1.0}, {count + 1}, false}});
}

TEST(ShmAllreduce, TensorsInTheHeapHaveTheSameBitsWhoeverElseHasHisThere) {
  const std::vector<InHeap> ways{
      [](int, std::size_t) { return true; },
      [](int rank, std::size_t) { return rank % 2 == 1; },
      [](int, std::size_t piece) { return piece % 3 != 1; },
      [](int rank, std::size_t piece) { return (static_cast<std::size_t>(rank) + piece) % 4 != 0; },
  };
  std::vector<Batch> batches;
  for (const DType dtype : {DType::Float32, DType::BFloat16, DType::UInt8, DType::Int64}) {
    for (const double prescale : {1.0, 0.7}) {
      const Reduction sum{dtype, ReduceOp::Sum, prescale, 0.5};
      batches.push_back({sum, {700}, true, 1});
      batches.push_back({sum, {3, 0, 500, 1, 77}});
      batches.push_back({sum, {3, 0, 500, 1, 77}, false});
      // More pieces in a chunk than there are places for.
      batches.push_back({sum, std::vector<std::size_t>(3 * ShmPlaces::kMost, 2)});
    }
  }
  batches.push_back({{DType::Float32, ReduceOp::Max, 1.0, 1.0}, {100001, 7, 65536, 1}});
  const std::vector<int> sizes = testing::kSanitized ? std::vector{3} : std::vector{2, 3, 5};
  for (const int size : sizes) {
    for (const ShmTuning& tuning : kTunings) {
      for (const InHeap& way : ways) {
        ShmWorld world({.size = size, .tuning = tuning});
        world.make_heaps(std::size_t{8} << 20);
        check(world, batches, way);
      }
    }
  }
}

TEST(ShmAllreduce, APlaceOutsideOfTheHeapIsAnError) {
  ShmWorld world({.size = 2, .tuning = {.small_bytes = 1, .chunk_bytes = 4096}});
  world.make_heaps(std::size_t{1} << 16);
  const auto one = world.backend(0);
  const auto other = world.backend(1);
  std::byte* const data = *world.heap(1).extend(4096);
  std::vector<std::byte> own(4096);
  const auto first = one->start(Allreduce{std::vector<Piece>{{own.data(), own.data(), 1024}}, {}});
  const auto second = other->start(Allreduce{std::vector<Piece>{{data, data, 1024}}, {}});
  ASSERT_TRUE(static_cast<bool>(second->step()));  // says where it is
  world.view(1).places(0, 0).offsets[0] = (std::size_t{1} << 16) - 8;
  Result<Step> step = first->step();
  for (int i = 0; i < 10 && step && *step != Step::Blocked; ++i) step = first->step();
  ASSERT_FALSE(static_cast<bool>(step));
  EXPECT_NE(step.error().what().find("not in its shared memory"), std::string::npos);
}

TEST(ShmAllreduce, WhatLiesInAHeapWhoseOwnerGivesUpComesToNoEnd) {
  ShmWorld world({.size = 3, .tuning = {.small_bytes = 1, .chunk_bytes = 4096}});
  world.make_heaps(std::size_t{1} << 16);
  std::vector<std::unique_ptr<Backend>> backends;
  std::vector<std::unique_ptr<Operation>> operations;
  std::byte* const lent = *world.heap(1).extend(4096);
  std::vector<std::vector<std::byte>> own(3, std::vector<std::byte>(4096));
  for (int rank = 0; rank < 3; ++rank) {
    std::byte* const data = rank == 1 ? lent : own[static_cast<std::size_t>(rank)].data();
    backends.push_back(world.backend(rank));
    operations.push_back(
        backends.back()->start(Allreduce{std::vector<Piece>{{data, data, 1024}}, {}}));
  }
  const auto step_on = [&](std::size_t rank) {
    Step last = Step::Advanced;
    for (int i = 0; i < 20; ++i) {
      const auto step = operations[rank]->step();
      EXPECT_TRUE(static_cast<bool>(step));
      if (!step || *step == Step::Done) return Step::Done;
      last = *step;
    }
    return last;
  };
  ASSERT_EQ(*operations[0]->step(), Step::Advanced);  // fills
  for (const std::size_t rank : {2U, 1U, 2U}) ASSERT_EQ(step_on(rank), Step::Blocked);
  publish_cause(world.view(1), Error{.message = "something else broke"});
  operations[1].reset();
  std::fill_n(lent, 4096, std::byte{0xFF});  // used for something else
  EXPECT_EQ(step_on(0), Step::Blocked);      // has reduced what is there now
  EXPECT_EQ(step_on(2), Step::Blocked);      // has got that
  for (const std::size_t rank : {0U, 2U}) {
    EXPECT_EQ(operations[rank]->waiting_for(), std::vector<Rank>{ShmWorld::global(1)});
  }
}

TEST(ShmAllreduce, NothingToReduceIsDoneAtOnceWithoutAnybodyElse) {
  const ShmWorld world({.size = 2});
  const auto backend = world.backend(0);
  const std::vector<Piece> empty{{nullptr, nullptr, 0}, {nullptr, nullptr, 0}};
  EXPECT_EQ(*backend->start(Allreduce{{}, {}})->step(), Step::Done);
  EXPECT_EQ(*backend->start(Allreduce{empty, {}})->step(), Step::Done);
}

TEST(ShmAllreduce, ABlockedOperationNamesTheRanksThatAreBehind) {
  for (const ShmTuning& tuning : kTunings) {
    const ShmWorld world({.size = 3, .tuning = tuning});
    const auto first = world.backend(0);
    const auto third = world.backend(2);
    std::vector<float> a(300), b(300);
    const auto piece = [](std::vector<float>& x) {
      auto* bytes = reinterpret_cast<std::byte*>(x.data());
      return std::vector<Piece>{{bytes, bytes, x.size()}};
    };
    const auto one = first->start(Allreduce{piece(a), {}});
    const auto two = third->start(Allreduce{piece(b), {}});
    for (int i = 0; i < 100; ++i) {
      ASSERT_TRUE(static_cast<bool>(one->step()));
      ASSERT_TRUE(static_cast<bool>(two->step()));
    }
    EXPECT_EQ(*one->step(), Step::Blocked);
    EXPECT_EQ(one->waiting_for(), std::vector<Rank>{ShmWorld::global(1)});
    EXPECT_EQ(two->waiting_for(), std::vector<Rank>{ShmWorld::global(1)});
  }
}

TEST(ShmAllreduce, AdasumIsRefused) {
  const ShmWorld world({.size = 2});
  const auto step =
      world.backend(0)->start(Allreduce{{}, {DType::Float32, ReduceOp::Adasum}})->step();
  ASSERT_FALSE(static_cast<bool>(step));
  EXPECT_EQ(step.error().code, Code::Unsupported);
}

}  // namespace
}  // namespace farandole
