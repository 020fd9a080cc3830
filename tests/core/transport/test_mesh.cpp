// Connections that are made when something needs them: what waits for one goes out in order once it
// is there, and fails if there will be none.
#include "transport/mesh.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "cluster.h"
#include "tcp_world.h"

namespace farandole::testing {
namespace {

using Bytes = std::vector<std::byte>;

Bytes filled(std::size_t bytes, unsigned seed) {
  Bytes result(bytes);
  for (std::size_t i = 0; i < bytes; ++i)
    result[i] = static_cast<std::byte>(seed + i * 7 + i / 251);
  return result;
}

/// Two ranks without a connection: rank 0 and rank 1, and what they ask of bootstrap.
class Pair {
 public:
  explicit Pair(int streams) : streams_(streams) {
    for (Rank self = 0; self < 2; ++self) {
      late.push_back(*LateConnections::open());
      std::vector<Mesh::Peer> peers;
      peers.push_back({.rank = 1 - self, .absent = streams});
      auto opened = Mesh::open(std::move(peers), late.back().get());
      EXPECT_TRUE(opened) << opened.error().what();
      mesh.push_back(*opened);
      backend.push_back(std::make_unique<TcpBackend>(
          Members{.ranks = {0, 1}, .self = self, .groups = each_alone(2)}, mesh.back()));
    }
  }

  /// Both ends, as bootstrap brings them.
  void connect() {
    std::vector<LateConnections::Arrival> arrivals(2);
    for (int stream = 0; stream < streams_; ++stream) {
      auto [one, other] = connect_pair(Wire::Loopback);
      arrivals[0].streams.push_back(std::move(one));
      arrivals[1].streams.push_back(std::move(other));
    }
    for (Rank self = 0; self < 2; ++self) {
      auto& arrival = arrivals[static_cast<std::size_t>(self)];
      arrival.rank = 1 - self;
      EXPECT_TRUE(succeeded(mesh[static_cast<std::size_t>(self)]->connect(std::move(arrival))));
    }
  }

  std::vector<std::unique_ptr<LateConnections>> late;
  std::vector<std::shared_ptr<Mesh>> mesh;
  std::vector<std::unique_ptr<TcpBackend>> backend;

 private:
  int streams_;
};

TEST(LateConnections, WhatWasPostedBeforeGoesOutInOrder) {
  for (const int streams : {1, 3}) {
    Pair pair(streams);
    const std::vector<std::size_t> sizes{0, 1, 200000, 3, 0, 70000, 16};
    std::vector<std::unique_ptr<Operation>> operations;
    std::vector<Bytes> out;
    std::vector<Bytes> in;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      out.push_back(filled(sizes[i], static_cast<unsigned>(i)));
      in.emplace_back(sizes[i]);
    }
    EXPECT_TRUE(pair.late[0]->asked().empty()) << "nothing needs it as yet";
    for (const Bytes& bytes : out) operations.push_back(pair.backend[0]->send(1, bytes));
    for (Bytes& bytes : in) operations.push_back(pair.backend[1]->recv(0, bytes));
    for (const auto& operation : operations) {
      auto step = operation->step();
      ASSERT_TRUE(step) << step.error().what();
      EXPECT_EQ(*step, Step::Blocked);
    }
    EXPECT_FALSE(pair.mesh[0]->busy()) << "no descriptor tells about progress";
    EXPECT_EQ(pair.late[0]->asked(), std::vector<Rank>{1});
    EXPECT_EQ(pair.late[1]->asked(), std::vector<Rank>{0});
    pair.connect();
    EXPECT_TRUE(pair.mesh[0]->busy());
    ASSERT_TRUE(succeeded(drive_all(each_of(operations))));
    EXPECT_TRUE(in == out);
    EXPECT_TRUE(pair.late[0]->asked().empty()) << "it was asked for once";
  }
}

TEST(LateConnections, TheBellIsReadableWhileSomethingIsAsked) {
  auto late = *LateConnections::open();
  const auto readable = [&] {
    pollfd bell{.fd = late->bell(), .events = POLLIN, .revents = 0};
    return ::poll(&bell, 1, 0) == 1;
  };
  EXPECT_FALSE(readable());
  late->ask(3);
  late->ask(3);
  late->ask(5);
  EXPECT_TRUE(readable());
  EXPECT_EQ(late->asked(), (std::vector<Rank>{3, 5}));
  EXPECT_FALSE(readable());
  late->ask(3);
  EXPECT_FALSE(readable()) << "it is on its way";
}

TEST(LateConnections, WhatHasNoConnectionFailsWithTheReason) {
  Pair pair(2);
  const Bytes bytes = filled(200000, 1);
  Bytes room(100);
  auto waiting = pair.backend[0]->send(1, bytes);
  auto awaited = pair.backend[0]->recv(1, room);
  ASSERT_TRUE(succeeded(pair.mesh[0]->connect(
      {.rank = 1, .failure = Error{.code = Code::Backend, .message = "a firewall", .peer = 1}})));
  auto later = pair.backend[0]->send(1, bytes);
  for (Operation* operation : {waiting.get(), awaited.get(), later.get()}) {
    auto step = operation->step();
    ASSERT_FALSE(static_cast<bool>(step));
    EXPECT_EQ(step.error().peer, 1);
    EXPECT_NE(step.error().what().find("a firewall"), std::string::npos) << step.error().what();
  }
}

TEST(LateConnections, ThoseThatDoNotFitFailTheLinksThatWait) {
  Pair pair(2);
  Bytes room(100);
  auto awaited = pair.backend[0]->recv(1, room);
  auto [one, other] = connect_pair(Wire::UnixPair);
  LateConnections::Arrival too_few{.rank = 1};
  too_few.streams.push_back(std::move(one));
  EXPECT_FALSE(static_cast<bool>(pair.mesh[0]->connect(std::move(too_few))));
  EXPECT_FALSE(static_cast<bool>(awaited->step()));
}

TEST(LateConnections, NobodyGetsThemTwiceOrUnasked) {
  Pair pair(1);
  pair.connect();
  for (const Rank rank : {1, 7}) {
    auto [one, other] = connect_pair(Wire::UnixPair);
    LateConnections::Arrival again{.rank = rank};
    again.streams.push_back(std::move(one));
    EXPECT_FALSE(static_cast<bool>(pair.mesh[0]->connect(std::move(again)))) << rank;
  }
  const Bytes bytes = filled(1000, 1);
  Bytes room(1000);
  auto sending = pair.backend[0]->send(1, bytes);
  auto receiving = pair.backend[1]->recv(0, room);
  EXPECT_TRUE(succeeded(drive(*sending, *pair.backend[0])));
  EXPECT_TRUE(succeeded(drive(*receiving, *pair.backend[1])));
  EXPECT_EQ(room, bytes) << "the first ones are as they were";
}

TEST(LateConnections, AbandonedTransfersLeaveALinkThatMayStillBeConnected) {
  Pair pair(1);
  Bytes room(100);
  pair.backend[0]->recv(1, room).reset();
  pair.connect();
  auto again = pair.backend[0]->recv(1, room);
  EXPECT_FALSE(static_cast<bool>(again->step())) << "its memory is gone";
}

/// Makes the connections that engines ask for, in a thread, each `delay` after it was asked for.
class Connector {
 public:
  Connector(Cluster& cluster, int streams, std::chrono::microseconds delay,
            std::set<std::pair<Rank, Rank>> refused = {}, std::pair<Rank, Rank> held = {-1, -1})
      : cluster_(cluster),
        streams_(streams),
        delay_(delay),
        refused_(std::move(refused)),
        held_(held) {
    thread_ = std::jthread([this](const std::stop_token& stop) { serve(stop); });
  }

  [[nodiscard]] int made() const { return made_.load(); }
  /// Makes the connection that was held back.
  void release() { released_ = true; }

 private:
  void serve(const std::stop_token& stop) {
    std::vector<pollfd> bells;
    for (Rank rank = 0; rank < cluster_.size(); ++rank) {
      bells.push_back({.fd = cluster_[rank].wanted_bell(), .events = POLLIN, .revents = 0});
    }
    while (!stop.stop_requested()) {
      if (released_.exchange(false)) connect(std::exchange(held_, {-1, -1}));
      if (::poll(bells.data(), bells.size(), 20) <= 0) continue;
      for (Rank rank = 0; rank < cluster_.size(); ++rank) {
        for (const Rank other : cluster_[rank].wanted_connections()) {
          std::this_thread::sleep_for(delay_);
          connect({std::min(rank, other), std::max(rank, other)});
        }
      }
    }
  }

  void connect(std::pair<Rank, Rank> pair) {
    if (pair == held_ || !known_.insert(pair).second) return;
    if (refused_.contains(pair)) {
      cluster_[pair.second].bring(
          {.rank = pair.first,
           .failure = Error{.code = Code::Backend, .message = "no way", .peer = pair.first}});
      return;
    }
    LateConnections::Arrival to_first{.rank = pair.second};
    LateConnections::Arrival to_second{.rank = pair.first};
    for (int stream = 0; stream < streams_; ++stream) {
      auto [one, other] = tcp_pair();
      to_first.streams.push_back(std::move(one));
      to_second.streams.push_back(std::move(other));
    }
    // The two sides are never told at the same time.
    cluster_[pair.first].bring(std::move(to_first));
    std::this_thread::sleep_for(delay_);
    cluster_[pair.second].bring(std::move(to_second));
    made_.fetch_add(1);
  }

  Cluster& cluster_;
  int streams_;
  std::chrono::microseconds delay_;
  std::set<std::pair<Rank, Rank>> refused_;
  std::set<std::pair<Rank, Rank>> known_;
  std::pair<Rank, Rank> held_;
  std::atomic<bool> released_{false};
  std::atomic<int> made_{0};
  std::jthread thread_;
};

Cluster absent(const Groups& groups, int streams, EngineOptions options = {}) {
  return Cluster(groups, std::move(options), -1, {}, {}, {}, streams, false, {}, true);
}

Submission alltoall_of(std::vector<float>& values, std::string name, int size, bool wait) {
  Submission submission = allreduce_of(values, std::move(name));
  submission.kind = Kind::Alltoall;
  submission.tensors[0].out = nullptr;
  submission.tensors[0].splits.assign(static_cast<std::size_t>(size),
                                      static_cast<std::int64_t>(values.size()) / size);
  return wait ? blocking(std::move(submission)) : submission;
}

void expect_sum(Engine& engine, Rank rank, int size, std::size_t count, const std::string& name,
                bool stay) {
  std::vector<float> values(count, static_cast<float>(rank + 1));
  Submission submission = allreduce_of(values, name);
  auto handle = engine.submit(stay ? blocking(std::move(submission)) : std::move(submission));
  ASSERT_TRUE(handle) << handle.error().what() << name;
  if (*handle != 0) {
    const auto work = finish(engine, *handle);
    ASSERT_TRUE(work && !work->error) << (work ? work->error->what() : "");
  }
  const auto want = static_cast<float>(size * (size + 1)) / 2;
  EXPECT_TRUE(std::ranges::all_of(values, [want](float v) { return v == want; })) << name;
}

class LateWorld : public ::testing::TestWithParam<Groups> {};

INSTANTIATE_TEST_SUITE_P(Worlds, LateWorld,
                         ::testing::Values(Groups{{0}, {1}}, Groups{{0}, {1}, {2}, {3}, {4}},
                                           Groups{{0, 1}, {2, 3}}, Groups{{0, 1, 2}, {3}, {4, 5}}),
                         world_name);

TEST_P(LateWorld, OperationsWaitForTheConnectionsThatTheyNeed) {
  using std::chrono::microseconds;
  for (const auto delay : {microseconds(0), microseconds(300), microseconds(20000)}) {
    for (const bool stay : {false, true}) {
      for (const int streams : {1, 2}) {
        Cluster cluster = absent(GetParam(), streams);
        const Connector connector(cluster, streams, delay);
        cluster.each([&](Rank rank, Engine& engine) {
          const int size = cluster.size();
          for (int round = 0; round < 3; ++round) {
            const std::string number = std::to_string(round);
            for (const std::size_t count : {1u, 3000u, 100001u}) {
              expect_sum(engine, rank, size, count, "sum " + std::to_string(count) + number, stay);
            }
            std::vector<float> values(static_cast<std::size_t>(size) * 500);
            for (std::size_t i = 0; i < values.size(); ++i) {
              values[i] = static_cast<float>(rank * 100 + static_cast<int>(i) / 500);
            }
            auto handle = engine.submit(alltoall_of(values, "all " + number, size, false));
            ASSERT_TRUE(handle) << handle.error().what();
            const auto work = finish(engine, *handle);
            ASSERT_TRUE(work && !work->error) << (work ? work->error->what() : "");
            std::vector<float> got(values.size());
            std::memcpy(got.data(), work->outputs[0].buffer.data(), got.size() * sizeof(float));
            for (std::size_t i = 0; i < got.size(); ++i) {
              ASSERT_EQ(got[i], static_cast<float>(static_cast<int>(i) / 500 * 100 + rank));
            }
          }
        });
        EXPECT_GT(connector.made(), 0);
      }
    }
  }
}

TEST_P(LateWorld, ProcessSetsConnectTheirMembers) {
  if (GetParam().size() == 2 && GetParam()[0].size() == 1) return;  // the set would be the world
  Cluster cluster = absent(GetParam(), 1);
  const Connector connector(cluster, 1, std::chrono::microseconds(500));
  const Rank last = cluster.size() - 1;
  cluster.each([&](Rank rank, Engine& engine) {
    auto handle = engine.submit({.kind = Kind::AddProcessSet, .ranks = {0, last}});
    ASSERT_TRUE(handle) << handle.error().what();
    const auto added = finish(engine, *handle);
    ASSERT_TRUE(added && !added->error) << (added ? added->error->what() : "");
    if (rank != 0 && rank != last) return;
    for (int round = 0; round < 200; ++round) {
      std::vector<float> values(100, static_cast<float>(rank + 1));
      Submission submission = blocking(allreduce_of(values, "in the set"));
      submission.process_set = static_cast<std::int32_t>(*added->value);
      auto done = engine.submit(std::move(submission));
      ASSERT_TRUE(done) << done.error().what();
      if (*done != 0) {
        const auto work = finish(engine, *done);
        ASSERT_TRUE(work && !work->error) << (work ? work->error->what() : "");
      }
      ASSERT_EQ(values.front(), static_cast<float>(last + 2));
      ASSERT_EQ(values.back(), static_cast<float>(last + 2));
    }
  });
}

TEST(LateEngine, OperationsThatDoNotNeedAConnectionDoNotWaitForIt) {
  // An allreduce of four hosts pairs 0 with 1 and 2 alone; proposals would go from 0 to 3, too.
  Cluster cluster = absent({{0}, {1}, {2}, {3}}, 1);
  Connector connector(cluster, 1, std::chrono::microseconds(0), {}, {0, 3});
  const auto sum = [&](Rank rank, Engine& engine) {
    for (int round = 0; round < 20; ++round) {
      expect_sum(engine, rank, 4, 10, "small", true);
      expect_sum(engine, rank, 4, 50000, "large", true);
    }
  };
  cluster.each(sum);
  EXPECT_EQ(fast_operations(cluster[0]), 0u) << "it has no way to rank 3 as yet";
  connector.release();
  until_fast(cluster, 1, sum);
}

TEST(LateEngine, AConnectionThatCannotBeMadeIsTheErrorOfWhatNeedsItOnAllRanks) {
  Cluster cluster = absent({{0}, {1}, {2}, {3}}, 1);
  const Connector connector(cluster, 1, std::chrono::microseconds(0), {{0, 3}});
  cluster.each([&](Rank rank, Engine& engine) {
    for (int round = 0; round < 50; ++round) expect_sum(engine, rank, 4, 10, "small", true);
    std::vector<float> values(4000);
    auto handle = engine.submit(alltoall_of(values, "x", cluster.size(), false));
    ASSERT_TRUE(handle) << handle.error().what();
    const auto work = finish(engine, *handle);
    ASSERT_TRUE(work && work->error);
    EXPECT_NE(work->error->what().find("no way"), std::string::npos) << work->error->what();
    EXPECT_NE(work->error->code, Code::PeerLost) << work->error->what();
  });
}

TEST(LateEngine, AWorldMayEndWhileAnOperationWaits) {
  EngineOptions options;
  options.operation_timeout = std::chrono::milliseconds(500);
  Cluster cluster = absent({{0}, {1}}, 1, options);
  cluster.each([&](Rank, Engine& engine) {
    std::vector<float> values(4000);
    auto handle = engine.submit(allreduce_of(values, "x"));
    ASSERT_TRUE(handle) << handle.error().what();
    const auto work = finish(engine, *handle);
    ASSERT_TRUE(work && work->error) << "nobody makes the connection";
    EXPECT_EQ(work->error->code, Code::Timeout) << work->error->what();
  });
  for (Rank rank = 0; rank < 2; ++rank) {
    auto [one, other] = tcp_pair();
    LateConnections::Arrival late{.rank = 1 - rank};
    late.streams.push_back(std::move(one));
    cluster[rank].bring(std::move(late));
  }
}

}  // namespace
}  // namespace farandole::testing
