// Hosts with several ranks each: results have the bits of the association, wherever the ranks are.
#include "backends/hierarchical/hierarchical.h"

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <optional>
#include <random>
#include <thread>

#include "association_reference.h"
#include "hosts_world.h"
#include "shm_script.h"

namespace farandole {
namespace {

using reference::Bytes;
using testing::Hosts;
using testing::succeeded;
using Layout = std::vector<std::vector<Rank>>;

const std::vector<Layout> kLayouts{
    {{0, 1}, {2, 3}},
    {{0, 2}, {1, 3}},  // dealt in turn
    {{0, 3}, {1, 2}},  // the second carriers are in another order than the first
    {{0, 1}, {2}},     // one carrier
    {{0}, {1, 2, 3}},
    {{0, 1, 2}, {3}},
    {{0, 4, 5, 6}, {1, 3}, {2}},
    {{0, 1}, {2, 5}, {3, 4}},  // three hosts: one is surplus
    {{0, 9}, {1, 5, 6}, {2, 8}, {3, 4}, {7, 10}},
};

std::string layout_name(const ::testing::TestParamInfo<Layout>& info) {
  std::string name;
  for (const auto& group : info.param) {
    if (!name.empty()) name += "_";
    for (const Rank rank : group)
      name += static_cast<char>(rank < 10 ? '0' + rank : 'a' + rank - 10);
  }
  return name;
}

struct Borders {
  HierarchicalTuning hosts;
  ShmTuning inside;
};

/// Everything in one meeting; many short rounds, in slots and in one meeting each; real ones.
const std::vector<Borders> kBorders{
    {{.small_bytes = std::size_t{1} << 20}, {}},
    {{.small_bytes = 0, .least_share_bytes = 64, .most_share_bytes = 64},
     {.small_bytes = 1, .chunk_bytes = 64}},
    {{.small_bytes = 0, .least_share_bytes = 640, .most_share_bytes = 640}, {}},
    {},
};

int size_of_layout(const Layout& layout) {
  std::size_t size = 0;
  for (const auto& group : layout) size += group.size();
  return static_cast<int>(size);
}

/// Runs body(rank, backend) on one thread for each rank.
void each(const Layout& layout, const Borders& borders,
          const std::function<void(int, Backend&)>& body, int buffer_bytes = 0) {
  Hosts hosts(layout, buffer_bytes);
  std::vector<std::unique_ptr<Backend>> backends;
  for (int rank = 0; rank < hosts.size(); ++rank) {
    backends.push_back(hosts.hierarchical(rank, borders.hosts, borders.inside));
  }
  std::vector<std::thread> threads;
  for (int rank = 0; rank < hosts.size(); ++rank) {
    threads.emplace_back([&, rank] { body(rank, *backends[static_cast<std::size_t>(rank)]); });
  }
  for (std::thread& thread : threads) thread.join();
}

Result<void> drive(std::unique_ptr<Operation> operation) {
  return testing::drive_all({operation.get()});
}

struct Batch {
  Reduction reduction;
  std::vector<std::size_t> counts;  ///< elements of each piece
  bool in_place = true;
};

void check(const Layout& layout, const Borders& borders, const std::vector<Batch>& batches,
           int buffer_bytes = 0) {
  const int size = size_of_layout(layout);
  std::vector<std::vector<Bytes>> inputs;
  std::vector<Bytes> expected;
  for (std::size_t i = 0; i < batches.size(); ++i) {
    std::size_t count = 0;
    for (const std::size_t elements : batches[i].counts) count += elements;
    inputs.emplace_back();
    for (int rank = 0; rank < size; ++rank) {
      std::mt19937 random(static_cast<unsigned>(i) * 100 + static_cast<unsigned>(rank));
      inputs.back().push_back(reference::mixed(batches[i].reduction.dtype, count, random));
    }
    expected.push_back(reference::associate(layout, inputs.back(), batches[i].reduction));
  }
  each(
      layout, borders,
      [&](int rank, Backend& backend) {
        for (std::size_t i = 0; i < batches.size(); ++i) {
          const Batch& batch = batches[i];
          const std::size_t element = size_of(batch.reduction.dtype);
          Bytes in = inputs[i][static_cast<std::size_t>(rank)];
          Bytes apart(in.size(), std::byte{0xee});
          Bytes& out = batch.in_place ? in : apart;
          std::vector<Piece> pieces;
          std::size_t at = 0;
          for (const std::size_t count : batch.counts) {
            pieces.push_back({in.data() + at, out.data() + at, count});
            at += count * element;
          }
          ASSERT_TRUE(succeeded(drive(backend.start(Allreduce{pieces, batch.reduction}))));
          ASSERT_TRUE(out == expected[i])
              << "batch " << i << " rank " << rank << " " << name_of(batch.reduction.dtype) << " "
              << name_of(batch.reduction.op);
          if (!batch.in_place) {
            ASSERT_TRUE(in == inputs[i][static_cast<std::size_t>(rank)]) << "the input was changed";
          }
        }
      },
      buffer_bytes);
}

constexpr std::array kAllTypes{DType::UInt8,   DType::Int8,    DType::UInt16,  DType::Int16,
                               DType::Int32,   DType::Int64,   DType::Float16, DType::BFloat16,
                               DType::Float32, DType::Float64, DType::Bool};

TEST(HierarchicalAllreduce, HasTheBitsOfTheAssociationForEveryTypeAndOperation) {
  std::vector<Batch> batches;
  for (const DType dtype : kAllTypes) {
    for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Min, ReduceOp::Max, ReduceOp::Product}) {
      batches.push_back({{dtype, op, 1.0, 1.0}, {501}});
      batches.push_back({{dtype, op, 0.3, 1.7}, {3, 0, 250, 1, 77}, false});
    }
  }
  batches.push_back({{DType::Bool, ReduceOp::Average, 1.0, 1.0}, {1001}});
  for (const Layout& layout : {Layout{{0, 2}, {1, 3}}, Layout{{0}, {1, 3, 4}, {2, 5}}}) {
    for (const Borders& borders : kBorders) check(layout, borders, batches);
  }
}

class Hierarchical : public ::testing::TestWithParam<Layout> {};
INSTANTIATE_TEST_SUITE_P(Layouts, Hierarchical, ::testing::ValuesIn(kLayouts), layout_name);

TEST_P(Hierarchical, AllreduceDoesNotDependOnHowABatchIsCut) {
  std::vector<Batch> batches;
  for (const DType dtype : {DType::Float32, DType::BFloat16, DType::UInt8}) {
    for (const double prescale : {1.0, 0.7}) {
      for (const bool in_place : {true, false}) {
        const Reduction sum{dtype, ReduceOp::Sum, prescale, 0.05};
        for (const std::size_t count : {0, 1, 2, 15, 16, 17, 63, 64, 65, 320, 321}) {
          batches.push_back({sum, {count}, in_place});
        }
        batches.push_back({sum, {1, 1, 1, 0, 1, 62, 1, 1, 64, 65, 0}, in_place});
        batches.push_back({sum, {0, 0, 555, 5}, in_place});
        batches.push_back({sum, {}, in_place});
      }
    }
  }
  for (const Borders& borders : kBorders) check(GetParam(), borders, batches);
}

TEST_P(Hierarchical, AllreduceOfRealSizeHasTheSameBits) {
  const std::vector<Batch> batches{
      {{DType::Float32, ReduceOp::Sum, 1.0, 1.0}, {400001}},
      {{DType::Float16, ReduceOp::Sum, 1.0, 0.25}, {300000, 7, 250001}, false},
      {{DType::Float32, ReduceOp::Sum, 1.0, 1.0}, {1024}},
      {{DType::Float32, ReduceOp::Sum, 1.0, 1.0}, {1025}},
  };
  check(GetParam(), {}, batches);
}

/// Random mixes of all operations.
void play(const Layout& layout, const Borders& borders, const testing::Script& script,
          int buffer_bytes = 0) {
  each(
      layout, borders,
      [&](int rank, Backend& backend) {
        testing::ScriptedRank scripted(script, rank, size_of_layout(layout), backend,
                                       testing::drive_all);
        EXPECT_EQ(scripted.run(), "");
      },
      buffer_bytes);
}

TEST_P(Hierarchical, AnyMixOfOperationsGivesRightResults) {
  unsigned seed = 1;
  const int operations = 120 / size_of_layout(GetParam());
  for (const Borders& borders : kBorders) {
    play(GetParam(), borders, {.seed = ++seed, .operations = operations, .most_bytes = 6000});
  }
}

TEST(HierarchicalOfRealSize, AnyMixOfOperationsGivesRightResults) {
  const testing::Script script{
      .seed = 5, .operations = 10, .most_bytes = std::size_t{5} << 18, .pause_one_in = 0};
  play({{0, 2}, {1, 3}}, {}, script);
  play({{0, 1, 2}, {3}}, {}, script);
}

TEST_P(Hierarchical, SmallSocketBuffersChangeNothing) {
  for (const Borders& borders : kBorders) {
    play(GetParam(), borders, {.seed = 7, .operations = 10, .most_bytes = 6000}, 1);
  }
}

/// A rank of two hosts of two, with an allreduce of many rounds.
struct Player {
  Player(Hosts& hosts, int rank)
      : backend(hosts.hierarchical(
            rank, {.small_bytes = 0, .least_share_bytes = 4096, .most_share_bytes = 4096}, {})),
        values(100000),
        pieces{{reinterpret_cast<std::byte*>(values.data()),
                reinterpret_cast<std::byte*>(values.data()), values.size()}},
        operation(backend->start(Allreduce{pieces, {}})) {}

  std::unique_ptr<Backend> backend;
  std::vector<float> values;
  std::vector<Piece> pieces;
  std::unique_ptr<Operation> operation;
};

/// Steps all until nobody moves, or one fails.
std::optional<Error> exhaust(const std::vector<Player*>& players) {
  for (bool moved = true; moved;) {
    moved = false;
    for (Player* player : players) {
      if (!player->operation) continue;
      auto step = player->operation->step();
      if (!step) return step.error();
      moved = moved || *step == Step::Advanced;
      if (*step == Step::Done) player->operation.reset();
    }
  }
  return std::nullopt;
}

const Layout kTwoByTwo{{0, 2}, {1, 3}};

TEST(HierarchicalTrouble, ABlockedOperationNamesWhomItWaitsFor) {
  Hosts hosts(kTwoByTwo);
  Player first(hosts, 0);
  Player second(hosts, 1);
  Player third(hosts, 2);
  EXPECT_EQ(exhaust({&first, &second, &third}), std::nullopt);
  EXPECT_EQ(first.operation->waiting_for(), std::vector<Rank>{hosts.rank(1)});   // over the network
  EXPECT_EQ(second.operation->waiting_for(), std::vector<Rank>{hosts.rank(3)});  // in its host
  EXPECT_EQ(third.operation->waiting_for(), std::vector<Rank>{hosts.rank(3)});   // over the network
}

TEST(HierarchicalTrouble, ALostCarrierIsAnErrorWithItsGlobalRank) {
  Hosts hosts(kTwoByTwo);
  Player first(hosts, 0);
  Player second(hosts, 1);
  Player third(hosts, 2);
  {
    Player fourth(hosts, 3);
    for (int i = 0; i < 20; ++i) {
      ASSERT_TRUE(static_cast<bool>(first.operation->step()));
      ASSERT_TRUE(static_cast<bool>(second.operation->step()));
      ASSERT_TRUE(static_cast<bool>(third.operation->step()));
      ASSERT_TRUE(static_cast<bool>(fourth.operation->step()));
    }
  }  // in the middle of it
  hosts.kill(3);
  const auto error = exhaust({&first, &second, &third});
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->code, Code::PeerLost) << error->what();
  EXPECT_EQ(error->peer, hosts.rank(3));
}

TEST(HierarchicalTrouble, AnOperationMayBeGivenUpAtAnyPoint) {
  for (int steps = 0; steps < 60; ++steps) {
    Hosts hosts(kTwoByTwo, 1);
    std::vector<std::unique_ptr<Player>> players;
    for (int rank = 0; rank < 4; ++rank) players.push_back(std::make_unique<Player>(hosts, rank));
    for (int i = 0; i < steps; ++i) {
      for (auto& player : players) ASSERT_TRUE(static_cast<bool>(player->operation->step()));
    }
    for (auto& player : players) {
      player->operation.reset();  // before the memory that it worked on
      player.reset();
    }
  }
}

}  // namespace
}  // namespace farandole
