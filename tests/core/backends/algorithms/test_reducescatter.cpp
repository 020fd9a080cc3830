// Reducescatter gives every member the bits that allreduce gives there, whatever the backend, the
// chunks, the element type and the parts.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <random>

#include "association_reference.h"
#include "backends/algorithms/direct.h"
#include "backends/local/local.h"
#include "shm_world.h"
#include "tcp_world.h"

namespace farandole {
namespace {

using reference::Bytes;
using testing::drive_all;
using testing::ShmWorld;
using testing::succeeded;
using testing::TcpWorld;
using Groups = std::vector<std::vector<int>>;

constexpr std::array kAllTypes{DType::UInt8,   DType::Int8,    DType::UInt16,  DType::Int16,
                               DType::Int32,   DType::Int64,   DType::Float16, DType::BFloat16,
                               DType::Float32, DType::Float64, DType::Bool};

struct Batch {
  Reduction reduction;
  /// By piece, then by member: elements of its part.
  std::vector<std::vector<std::size_t>> parts;
  std::size_t misaligned_bytes = 0;
};

std::size_t elements_of(const Batch& batch) {
  std::size_t total = 0;
  for (const auto& parts : batch.parts) {
    for (const std::size_t part : parts) total += part;
  }
  return total;
}

/// One member's part of both operations on the same inputs: the outputs have to agree.
void check(Backend& backend, const Batch& batch, const std::vector<Bytes>& inputs,
           std::size_t window = 0) {
  const Reduction& reduction = batch.reduction;
  const std::size_t element = size_of(reduction.dtype);
  const auto self = static_cast<std::size_t>(backend.members().self);
  constexpr std::byte kMark{0xA5};

  // Every tensor lies apart, off its alignment; the bytes around outputs must stay.
  std::vector<Bytes> ins;
  std::vector<Bytes> outs;
  std::vector<Bytes> expected;
  std::vector<ScatterPiece> pieces;
  std::vector<Piece> whole;
  std::vector<Bytes> reduced;
  const std::size_t offset = 64 + batch.misaligned_bytes;
  std::size_t at = 0;
  for (const auto& parts : batch.parts) {
    ScatterPiece piece;
    piece.begins.push_back(0);
    for (const std::size_t part : parts) piece.begins.push_back(piece.begins.back() + part);
    const std::size_t bytes = piece.begins.back() * element;
    ins.emplace_back(offset + bytes);
    if (bytes != 0) std::memcpy(ins.back().data() + offset, inputs[self].data() + at, bytes);
    outs.emplace_back(2 * offset + parts[self] * element, kMark);
    reduced.emplace_back(bytes);
    piece.in = ins.back().data() + offset;
    piece.out = outs.back().data() + offset;
    whole.push_back({piece.in, reduced.back().data(), piece.begins.back()});
    pieces.push_back(std::move(piece));
    at += bytes;
  }
  Staging staging;
  const auto scatter = window == 0
                           ? backend.start(Reducescatter{pieces, reduction})
                           : direct_reducescatter(backend, staging, pieces, reduction, window);
  ASSERT_TRUE(succeeded(drive_all({scatter.get()})));
  const auto allreduce = backend.start(Allreduce{whole, reduction});
  ASSERT_TRUE(succeeded(drive_all({allreduce.get()})));
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    Bytes wanted(outs[i].size(), kMark);
    const std::size_t begin = pieces[i].begins[self] * element;
    const std::size_t end = pieces[i].begins[self + 1] * element;
    std::copy(reduced[i].begin() + static_cast<std::ptrdiff_t>(begin),
              reduced[i].begin() + static_cast<std::ptrdiff_t>(end),
              wanted.begin() + static_cast<std::ptrdiff_t>(offset));
    ASSERT_TRUE(outs[i] == wanted) << backend.name() << " " << name_of(reduction.dtype) << " "
                                   << name_of(reduction.op) << " piece " << i << " member " << self
                                   << " of " << backend.members().size() << " window " << window;
  }
}

std::vector<Bytes> inputs_of(const Batch& batch, int members, unsigned seed) {
  std::vector<Bytes> inputs;
  for (int member = 0; member < members; ++member) {
    std::mt19937 random(seed * 100 + static_cast<unsigned>(member));
    inputs.push_back(reference::mixed(batch.reduction.dtype, elements_of(batch), random));
  }
  return inputs;
}

/// Parts that differ, some empty, in several pieces; the same for every run.
std::vector<std::vector<std::size_t>> uneven(int members, std::size_t pieces, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::vector<std::size_t>> parts(pieces);
  for (auto& piece : parts) {
    for (int member = 0; member < members; ++member) {
      piece.push_back(random() % 3 == 0 ? 0 : random() % 120);
    }
  }
  return parts;
}

constexpr std::array kSomeTypes{DType::Float32, DType::BFloat16, DType::UInt8};

/// Without a sanitizer every type; what one finds does not depend on it.
constexpr std::span<const DType> kTypes =
    testing::kSanitized ? std::span<const DType>(kSomeTypes) : std::span<const DType>(kAllTypes);

std::vector<Batch> batches_for(int members, std::span<const DType> types = kTypes) {
  const auto size = static_cast<std::size_t>(members);
  std::vector<Batch> batches;
  for (const DType dtype : types) {
    for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Min, ReduceOp::Max, ReduceOp::Product}) {
      batches.push_back({{dtype, op, 1.0, 1.0}, {std::vector<std::size_t>(size, 101)}});
      batches.push_back({{dtype, op, 0.3, 1.7}, uneven(members, 4, 3), 1});
    }
  }
  batches.push_back({{DType::Float16, ReduceOp::Sum, 0.3, 0.05}, uneven(members, 4, 9)});
  batches.push_back({{DType::Bool, ReduceOp::Average, 1.0, 1.0}, uneven(members, 2, 5)});
  const Reduction sum{DType::Float32, ReduceOp::Sum, 1.0, 0.5};
  std::vector<std::size_t> all_to_last(size);
  all_to_last.back() = 700;
  batches.push_back({sum, {all_to_last}, 3});
  batches.push_back({sum, uneven(members, 30, 7)});
  batches.push_back({sum, {}});
  batches.push_back({sum, {std::vector<std::size_t>(size)}});
  return batches;
}

template <typename Backends>
void check_all(int members, const std::vector<Batch>& batches, Backends& world,
               std::size_t window = 0) {
  std::vector<std::vector<Bytes>> inputs;
  for (std::size_t i = 0; i < batches.size(); ++i) {
    inputs.push_back(inputs_of(batches[i], members, static_cast<unsigned>(i)));
  }
  world.run([&](int, Backend& backend) {
    for (std::size_t i = 0; i < batches.size() && !::testing::Test::HasFailure(); ++i) {
      check(backend, batches[i], inputs[i], window);
    }
  });
}

TEST(Reducescatter, SharedMemoryHasTheBitsOfAllreduceOnEveryPath) {
  constexpr std::array tunings{ShmTuning{.small_bytes = 65536, .chunk_bytes = 65536},
                               ShmTuning{.small_bytes = 1, .chunk_bytes = 192},
                               ShmTuning{.small_bytes = 1, .chunk_bytes = 4096}};
  for (int size = 1; size <= 6; ++size) {
    for (const ShmTuning& tuning : tunings) {
      const ShmWorld world({.size = size, .tuning = tuning});
      // All types with three members; the others are about the cut.
      check_all(size, size == 3 ? batches_for(size) : batches_for(size, kSomeTypes), world);
    }
  }
}

TEST(Reducescatter, ChunksOfRealSizeHaveTheSameBits) {
  for (const int size : {2, 5}) {
    const ShmWorld world({.size = size});
    const Reduction sum{DType::Float32, ReduceOp::Sum, 1.0, 0.25};
    const auto each = static_cast<std::size_t>(size);
    std::vector<std::size_t> skewed(each, 17);
    skewed.front() = 200001;
    const std::vector<Batch> batches{{sum, {std::vector<std::size_t>(each, 100001)}},
                                     {sum, {skewed, std::vector<std::size_t>(each, 50000)}}};
    check_all(size, batches, world);
  }
}

TEST(Reducescatter, TheDefaultHasTheBitsOfAllreduceWhateverTheWindow) {
  for (const Groups& groups : {Groups{{0}}, Groups{{0}, {1}}, Groups{{0, 2}, {1}},
                               Groups{{0}, {1}, {2}, {3}, {4}}, Groups{{0, 1}, {2, 3}, {4, 5}}}) {
    TcpWorld world({.groups = groups, .buffer_bytes = 1});
    for (const std::size_t window : {0, 1, 37, 1000000}) {
      // One element at a time takes long: a few batches have to do.
      std::vector<Batch> batches = batches_for(world.size());
      if (window == 1) batches.erase(batches.begin(), batches.end() - 8);
      check_all(world.size(), batches, world, window);
    }
  }
}

TEST(Reducescatter, TheDefaultCutsLargeBatchesByItselfInBoundedMemory) {
  TcpWorld world({.groups = {{0, 1}, {2}}, .buffer_bytes = 65536});
  const Reduction sum{DType::BFloat16, ReduceOp::Sum, 0.5, 1.0};
  check_all(3, {{sum, {{300001, 5, 100000}, {0, 70001, 1}}}}, world);
  TcpBackend backend(world.members(0), world.mesh(0));
  Staging staging;
  constexpr std::size_t kMany = std::size_t{1} << 30;
  // Addresses without memory, as nothing of it is touched.
  constexpr std::size_t kBytes = 3 * kMany * size_of(DType::BFloat16);
  void* const room =
      ::mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(room, MAP_FAILED);
  auto* const data = static_cast<std::byte*>(room);
  const ScatterPiece piece{data, data, {0, kMany, 2 * kMany, 3 * kMany}};
  (void)direct_reducescatter(backend, staging, {&piece, 1}, sum, direct_slice(2, 3));
  EXPECT_LE(staging.bytes(), std::size_t{8} << 20);
  ::munmap(room, kBytes);
}

TEST(Reducescatter, AWorldOfOneScales) {
  LocalBackend backend({.ranks = {0}, .self = 0, .groups = {{0}}});
  for (const Batch& batch : batches_for(1)) check(backend, batch, inputs_of(batch, 1, 4));
}

TEST(Reducescatter, RefusesPartsThatDoNotFitAndWhatKernelsDoNotKnow) {
  const ShmWorld world({.size = 2});
  const auto backend = world.backend(0);
  const auto code_of = [&](const std::vector<std::size_t>& begins, ReduceOp op) {
    const ScatterPiece piece{nullptr, nullptr, begins};
    const auto step = backend->start(Reducescatter{{&piece, 1}, {DType::Float32, op}})->step();
    return step ? std::optional<Code>() : step.error().code;
  };
  EXPECT_EQ(code_of({0, 0}, ReduceOp::Sum), Code::InvalidArgument);
  EXPECT_EQ(code_of({0, 2, 1}, ReduceOp::Sum), Code::InvalidArgument);
  EXPECT_EQ(code_of({1, 2, 3}, ReduceOp::Sum), Code::InvalidArgument);
  EXPECT_EQ(code_of({0, 1, 2}, ReduceOp::Adasum), Code::Unsupported);
  EXPECT_EQ(code_of({0, 1, 2}, ReduceOp::Average), Code::Unsupported);
  EXPECT_EQ(code_of({0, 0, 0}, ReduceOp::Sum), std::nullopt);  // nothing to do
}

}  // namespace
}  // namespace farandole
