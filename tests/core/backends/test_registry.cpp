// Process sets: who serves which ranks, sets that overlap, channels that go from one set to the
// next.
#include "backends/registry.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <map>
#include <optional>
#include <thread>

#include "backends/algorithms/direct.h"
#include "hosts_world.h"
#include "shm_script.h"

namespace farandole {
namespace {

using testing::Hosts;
using testing::ScriptedRank;
using Ranks = std::vector<Rank>;
using Groups = std::vector<std::vector<int>>;

void meet(Backend& backend) {
  const auto barrier = dissemination_barrier(backend);
  const auto met = testing::drive_all({barrier.get()});
  ASSERT_TRUE(testing::succeeded(met));
}

/// One set of one generation: who is in it and on which channel.
struct Set {
  Ranks ranks;
  int channel;
};

/// Every rank runs operations of all its sets in one order; then the sets of the next generation
/// take the channels over.
void play(Hosts& hosts, const std::vector<std::vector<Set>>& generations, int operations) {
  const Ranks world = [&] {
    Ranks ranks;
    for (int rank = 0; rank < hosts.size(); ++rank) ranks.push_back(rank);
    return ranks;
  }();
  std::vector<std::unique_ptr<BackendFactory>> factories;
  for (const Rank rank : world) factories.push_back(hosts.factory(rank));
  std::vector<std::thread> threads;
  for (const Rank self : world) {
    threads.emplace_back([&, self] {
      BackendFactory& factory = *factories[static_cast<std::size_t>(self)];
      auto everybody = factory.open(hosts.global(world), 0);
      ASSERT_TRUE(static_cast<bool>(everybody));
      std::mt19937 order(77);  // the same on every rank
      unsigned seed = 1;
      for (const auto& sets : generations) {
        std::vector<std::unique_ptr<Backend>> backends;
        std::vector<std::optional<ScriptedRank>> scripts;
        for (const Set& set : sets) {
          const auto at = std::find(set.ranks.begin(), set.ranks.end(), self);
          ++seed;
          backends.emplace_back();
          scripts.emplace_back();
          if (at == set.ranks.end()) continue;
          auto opened = factory.open(hosts.global(set.ranks), set.channel);
          ASSERT_TRUE(static_cast<bool>(opened)) << opened.error().what();
          backends.back() = *std::move(opened);
          meet(*backends.back());
          const testing::Script script{
              .seed = seed, .most_bytes = 6000, .pause_one_in = 16, .tagged = false};
          scripts.back().emplace(script, static_cast<int>(at - set.ranks.begin()),
                                 static_cast<int>(set.ranks.size()), *backends.back(),
                                 testing::drive_all);
        }
        for (int i = 0; i < operations; ++i) {
          auto& script = scripts[order() % scripts.size()];
          if (script) {
            ASSERT_EQ(script->next(), "") << "operation " << i << ", rank " << self;
          }
        }
        // A set is removed by all ranks of the world.
        const auto barrier = (*everybody)->start(Barrier{});
        const auto met = testing::drive_all({barrier.get()});
        ASSERT_TRUE(testing::succeeded(met));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

const std::vector<std::vector<Set>> kGenerations{
    {{{0, 1}, 1}, {{1, 2, 3}, 2}, {{0, 1, 2, 3}, 3}, {{0, 2}, 4}, {{3}, 5}},
    {{{2, 3}, 1}, {{0, 1, 3}, 2}, {{0, 3}, 3}, {{1, 2}, 4}, {{0, 1, 2, 3}, kNoChannel}},
    {{{0, 1, 2, 3}, 1}, {{0, 2}, 2}, {{1, 3}, 3}, {{0, 1, 2}, kShmChannels - 1}},
};

TEST(BackendFactory, SetsThatOverlapInOneHostKeepApartAndChannelsAreUsedAgain) {
  Hosts hosts({{0, 1, 2, 3}});
  play(hosts, kGenerations, 1000);
}

TEST(BackendFactory, SetsThatOverlapAcrossHostsShareLinksAndRings) {
  Hosts two({{0, 1}, {2, 3}});
  play(two, kGenerations, 150);
  Hosts crossed({{0, 3}, {1, 2}});
  play(crossed, kGenerations, 150);
  Hosts apart({{0}, {1}, {2}, {3}});
  play(apart, kGenerations, 100);
}

TEST(BackendFactory, GroupsOfASetAreThoseOfTheWorldInTheOrderOfItsMembers) {
  Hosts hosts({{0, 3, 5}, {1, 2}, {4}});
  const auto factory = hosts.factory(2);
  const Members all = factory->members(hosts.global({0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(all.groups, (Groups{{0, 3, 5}, {1, 2}, {4}}));
  EXPECT_EQ(all.self, 2);
  const Members some = factory->members(hosts.global({1, 2, 3, 5}));
  EXPECT_EQ(some.ranks, hosts.global({1, 2, 3, 5}));
  EXPECT_EQ(some.groups, (Groups{{0, 1}, {2, 3}}));
  EXPECT_EQ(some.self, 1);
}

/// Threads that submit ask for members while the holder of the progress lock opens sets.
TEST(BackendFactory, AnyThreadAsksWhoIsInASetWhileAnotherOpensOne) {
  Hosts hosts({{0, 1, 2}, {3}});
  const auto factory = hosts.factory(1);
  const Ranks some = hosts.global({0, 1, 3});
  std::atomic<bool> opened{false};
  std::jthread submits([&] {
    do {
      const Members members = factory->members(some);
      ASSERT_EQ(members.self, 1);
      ASSERT_EQ(members.groups, (Groups{{0, 1}, {2}}));
    } while (!opened.load(std::memory_order_relaxed));
  });
  for (int channel = 1; channel < kShmChannels; ++channel) {
    ASSERT_TRUE(static_cast<bool>(factory->open(some, channel)));
  }
  opened.store(true, std::memory_order_relaxed);
}

TEST(BackendFactory, ChoosesTheBackendByWhereTheMembersAre) {
  Hosts hosts({{0, 1, 2}, {3}});
  const auto factory = hosts.factory(1);
  const auto name_of = [&](const Ranks& ranks, int channel) {
    auto backend = factory->open(hosts.global(ranks), channel);
    return backend ? std::string((*backend)->name()) : backend.error().message;
  };
  EXPECT_EQ(name_of({1}, 1), "local");
  EXPECT_EQ(name_of({0, 1, 2}, 1), "shm");
  EXPECT_EQ(name_of({1, 2}, 1), "shm");
  EXPECT_EQ(name_of({1, 2}, kNoChannel), "pipes");
  EXPECT_EQ(name_of({1, 3}, 1), "tcp");
  EXPECT_EQ(name_of({0, 1, 3}, 1), "hierarchical");
  EXPECT_EQ(name_of({0, 1, 3}, kNoChannel), "routed");
  EXPECT_EQ(name_of({1, 2}, kShmChannels),
            "There is no shared-memory channel " + std::to_string(kShmChannels));
  EXPECT_EQ(name_of({0, 2}, 1), "A process set without this rank was opened");
}

TEST(BackendFactory, TheFirstRowOfTheRegistryThatServesASetIsTaken) {
  const std::vector<std::pair<SetTraits, std::string_view>> expected{
      {{.ranks = 1, .hosts = 1, .channel = true, .foreign = true}, "local"},
      {{.ranks = 2, .hosts = 1, .channel = true, .foreign = true}, "foreign"},
      {{.ranks = 2, .hosts = 1, .channel = true}, "shm"},
      {{.ranks = 2, .hosts = 1}, "pipes"},
      {{.ranks = 2, .hosts = 2, .channel = true}, "tcp"},
      {{.ranks = 3, .hosts = 2, .channel = true}, "hierarchical"},
      {{.ranks = 3, .hosts = 2}, "routed"},
  };
  for (const auto& [set, name] : expected) EXPECT_EQ(backend_for(set).name, name);
}

TEST(BackendFactory, ASetWhoseChannelIsCutOffAnywhereWorksWithout) {
  Hosts hosts({{0, 1, 2}, {3}});
  for (const Rank rank : {1, 3}) {
    const auto factory = hosts.factory(rank);
    const ShmExtent last = channel_extent(3, 4);
    factory->limit_segments(last.offset + last.bytes);
    const auto name_of = [&](const Ranks& ranks, int channel) {
      auto backend = factory->open(hosts.global(ranks), channel);
      return backend ? std::string((*backend)->name()) : backend.error().message;
    };
    EXPECT_EQ(name_of({0, 1, 2, 3}, 0), "hierarchical");
    EXPECT_EQ(name_of({0, 1, 2, 3}, 4), "hierarchical");
    EXPECT_EQ(name_of({0, 1, 2, 3}, 5), "routed");
    if (rank == 1) {
      EXPECT_EQ(name_of({1, 2}, 4), "shm");
      EXPECT_EQ(name_of({1, 2}, 5), "pipes");
    }
  }
}

TEST(BackendFactory, AChannelWithoutMemoryIsAnError) {
  Fd file(::memfd_create("farandole-test", MFD_CLOEXEC));
  const std::size_t bytes = segment_bytes(2);
  ASSERT_EQ(::ftruncate(file.get(), static_cast<off_t>(bytes)), 0);
  auto own = ShmSegment::map(Fd(::dup(file.get())), bytes, segment_base_bytes(2));
  ASSERT_TRUE(static_cast<bool>(own));
  const ShmView view(own->bytes(), 2);
  const ShmHost host{{0, 1}, {{view, 0, {}}, {view, 1, {}}}, 0, &*own};
  BackendFactory factory(0, {{0, 1}}, host, nullptr);
  EXPECT_TRUE(static_cast<bool>(factory.open(Ranks{0, 1}, 5)));
  static_cast<void>(own->take_file());  // now nothing can be reserved
  auto opened = factory.open(Ranks{0, 1}, 6);
  ASSERT_FALSE(static_cast<bool>(opened));
  EXPECT_TRUE(opened.error().message.starts_with("Opening a process set")) << opened.error().what();
}

}  // namespace
}  // namespace farandole
