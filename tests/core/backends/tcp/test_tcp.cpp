// The network backend: transfers in order, ends out of step, shared connections, lost peers.
#include "backends/tcp/tcp.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <string>
#include <thread>
#include <tuple>

#include "tcp_world.h"

namespace farandole {
namespace {

using testing::drive;
using testing::each_alone;
using testing::succeeded;
using testing::TcpWorld;
using testing::Wire;
using Bytes = std::vector<std::byte>;

Bytes filled(std::size_t bytes, unsigned seed) {
  std::mt19937 random(seed);
  Bytes result(bytes);
  for (std::byte& byte : result) byte = static_cast<std::byte>(random());
  return result;
}

TEST(Tcp, TransfersOfOnePeerCompleteInOrderWhateverTheirSizes) {
  for (const auto& [wire, streams] : {std::pair(Wire::UnixPair, 1), std::pair(Wire::Loopback, 1),
                                      std::pair(Wire::UnixPair, 3), std::pair(Wire::Loopback, 2)}) {
    TcpWorld world({.groups = each_alone(2), .wire = wire, .buffer_bytes = 1, .streams = streams});
    const std::vector<std::size_t> sizes{0, 1, 0, 100000, 3, 0, 16, 70000, 1,
                                         1, 1, 1, 1,      1, 1, 1,  1,     9};
    world.run([&](int self, TcpBackend& backend) {
      // Both send everything before either receives a byte: neither may wait for the other.
      std::vector<Bytes> out;
      std::vector<Bytes> in;
      std::vector<std::unique_ptr<Operation>> operations;
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        out.push_back(filled(sizes[i], static_cast<unsigned>(i)));
        in.emplace_back(sizes[i]);
      }
      for (const Bytes& bytes : out) operations.push_back(backend.send(1 - self, bytes));
      for (Bytes& bytes : in) operations.push_back(backend.recv(1 - self, bytes));
      ASSERT_TRUE(testing::succeeded(testing::drive_all(testing::each_of(operations))));
      EXPECT_TRUE(in == out);
    });
  }
}

TEST(Tcp, WantsOnlyWhatIsOutstanding) {
  TcpWorld world({.groups = each_alone(3), .buffer_bytes = 1});
  TcpBackend backend(world.members(0), world.mesh(0));
  TcpBackend other(world.members(1), world.mesh(1));
  const auto wanted = [&] {
    std::vector<pollfd> polled;
    backend.wants(polled);
    return polled;
  };
  const Bytes large(1 << 20);
  Bytes byte(1);
  auto early = other.send(0, byte);
  ASSERT_TRUE(succeeded(drive(*early, other)));
  EXPECT_TRUE(wanted().empty());  // although bytes have arrived that nobody has asked for

  auto receipt = backend.recv(1, byte);
  ASSERT_EQ(wanted().size(), 1u);
  EXPECT_EQ(wanted()[0].events, POLLIN);
  ASSERT_TRUE(succeeded(drive(*receipt, backend)));
  EXPECT_TRUE(wanted().empty());

  auto sending = backend.send(2, large);
  for (int i = 0; i < 1000 && *sending->step() != Step::Blocked; ++i) {
  }
  ASSERT_EQ(wanted().size(), 1u);
  EXPECT_EQ(wanted()[0].events, POLLOUT);
  EXPECT_EQ(sending->waiting_for(), std::vector<Rank>{20});
}

TEST(Tcp, EndsOutOfStepAreAnErrorThatNamesThePeer) {
  TcpWorld world({.groups = each_alone(2)});
  TcpBackend backend(world.members(0), world.mesh(0));
  TcpBackend other(world.members(1), world.mesh(1));
  const Bytes eight(8);
  Bytes nine(9);
  auto sending = other.send(0, eight);
  ASSERT_TRUE(succeeded(drive(*sending, other)));
  auto receipt = backend.recv(1, nine);
  auto result = drive(*receipt, backend);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, Code::Internal);
  EXPECT_EQ(result.error().peer, 10);
  EXPECT_EQ(
      result.error().message,
      "the data stream from rank 10 is out of step: expected message 0 of 9 bytes, got message "
      "0 of 8 bytes");
  EXPECT_FALSE(drive(*backend.recv(1, nine), backend));  // and it stays so
}

TEST(Tcp, GarbageIsAnErrorThatNamesThePeer) {
  for (unsigned seed = 0; seed < 50; ++seed) {
    auto [mine, raw] = testing::connect_pair(Wire::UnixPair);
    std::vector<Mesh::Peer> peers(1);
    peers[0].rank = 5;
    peers[0].streams.push_back(std::move(mine));
    TcpBackend backend({{2, 5}, 0, {{0}, {1}}}, *Mesh::open(std::move(peers)));
    const Bytes garbage = filled(24 + seed, seed);
    ASSERT_EQ(::send(raw.get(), garbage.data(), garbage.size(), 0),
              static_cast<ssize_t>(garbage.size()));
    float value = 1;
    auto* const bytes = reinterpret_cast<std::byte*>(&value);
    const Piece piece{bytes, bytes, 1};
    auto result = drive(*backend.start(Allreduce{{&piece, 1}, {}}), backend);
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, Code::Internal);
    EXPECT_EQ(result.error().peer, 5);
  }
}

TEST(Tcp, AnAbandonedOperationTouchesItsMemoryNoMoreAndBreaksTheLink) {
  TcpWorld world({.groups = each_alone(2), .buffer_bytes = 1});
  TcpBackend backend(world.members(0), world.mesh(0));
  TcpBackend other(world.members(1), world.mesh(1));
  {
    const Bytes large(1 << 20);
    Bytes buffer(100);
    auto sending = backend.send(1, large);
    auto receipt = backend.recv(1, buffer);
    ASSERT_TRUE(sending->step());
    ASSERT_TRUE(receipt->step());
  }
  const Bytes byte(1);
  Bytes into(1);
  auto result = drive(*backend.send(1, byte), backend);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, Code::Internal);
  EXPECT_FALSE(drive(*backend.recv(1, into), backend));
  std::vector<pollfd> polled;
  backend.wants(polled);
  EXPECT_TRUE(polled.empty());
}

TEST(Tcp, AMemberWithoutConnectionCannotBeReached) {
  auto mesh = Mesh::open({});
  ASSERT_TRUE(mesh);
  TcpBackend backend({{0, 1}, 0, {{0, 1}}}, *mesh);
  for (const int peer : {-1, 0, 1, 2}) {
    auto step = backend.send(peer, {})->step();
    ASSERT_FALSE(step);
    EXPECT_EQ(step.error().code, Code::Unsupported);
    EXPECT_FALSE(backend.recv(peer, {})->step());
  }
}

TEST(Tcp, AMeshNeedsOneEntryForEachPeer) {
  std::vector<Mesh::Peer> none(1);
  none[0].rank = 3;
  auto without = Mesh::open(std::move(none));
  ASSERT_FALSE(without);
  EXPECT_EQ(without.error().peer, 3);

  auto [one, other] = testing::connect_pair(Wire::UnixPair);
  std::vector<Mesh::Peer> twice(2);
  twice[0].rank = twice[1].rank = 3;
  twice[0].streams.push_back(std::move(one));
  twice[1].streams.push_back(std::move(other));
  EXPECT_FALSE(Mesh::open(std::move(twice)));
}

/// Keeps what it is told.
struct Listener final : NoteSink {
  std::vector<Bytes> notes;
  Result<void> note(Rank from, std::uint64_t subject, std::span<const std::byte> body) override {
    EXPECT_EQ(from, 10);
    EXPECT_EQ(subject, 3U);
    notes.emplace_back(body.begin(), body.end());
    return {};
  }
};

TEST(Tcp, NotesGoBetweenMessagesInWhateverPiecesTheyArrive) {
  auto [theirs, copy] = testing::connect_pair(Wire::UnixPair);
  PeerLink sender(*Socket::adopt(std::move(theirs), 0));
  const std::vector<std::size_t> sizes{0, 5, kMaxNote, 1, 9000, 17};
  std::vector<Bytes> notes;
  std::vector<Bytes> messages;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    notes.push_back(filled(sizes[i], static_cast<unsigned>(i)));
    messages.push_back(filled(sizes[(i + 2) % sizes.size()] / 2, static_cast<unsigned>(100 + i)));
    sender.post_note(3, notes.back());
    sender.post_send(messages.back());
  }
  Bytes stream(1 << 20);
  std::size_t bytes = 0;
  while (sender.wants().fd >= 0) {
    ASSERT_TRUE(sender.pump_out());
    const ssize_t got = ::recv(copy.get(), stream.data() + bytes, stream.size() - bytes, 0);
    ASSERT_GT(got, 0);
    bytes += static_cast<std::size_t>(got);
  }
  for (const std::size_t piece : {1u, 16u, 1000u, 100000u}) {
    auto [end, feed] = testing::connect_pair(Wire::UnixPair);
    PeerLink link(*Socket::adopt(std::move(end), 10));
    Listener listener;
    link.deliver_notes_to(&listener);
    std::vector<Bytes> received;
    std::vector<PeerLink::Ticket> tickets;
    for (const Bytes& message : messages) {
      received.emplace_back(message.size());
      tickets.push_back(link.post_recv(received.back()));
    }
    for (std::size_t at = 0; at < bytes; at += piece) {
      const std::size_t now = std::min(piece, bytes - at);
      ASSERT_EQ(::send(feed.get(), stream.data() + at, now, 0), static_cast<ssize_t>(now));
      ASSERT_TRUE(link.pump_in());
    }
    EXPECT_TRUE(listener.notes == notes) << piece;
    EXPECT_TRUE(received == messages) << piece;
    EXPECT_TRUE(link.received(tickets.back()));
  }
}

TEST(Tcp, NotesAreHeardOnlyByThoseWhoListenAndMessagesWaitForTheirReceive) {
  auto [one, other] = testing::connect_pair(Wire::UnixPair);
  PeerLink here(*Socket::adopt(std::move(one), 10));
  PeerLink there(*Socket::adopt(std::move(other), 0));
  Listener listener;
  here.deliver_notes_to(&listener);
  const Bytes note = filled(30, 1);
  const Bytes message = filled(50, 2);
  there.post_note(3, note);
  there.post_send(message);
  there.post_note(3, note);
  ASSERT_TRUE(there.pump_out());
  EXPECT_LT(here.wants().fd, 0);
  here.listen(true);
  EXPECT_EQ(here.wants().events, POLLIN);
  ASSERT_TRUE(here.pump_in());
  EXPECT_EQ(listener.notes.size(), 1u);
  EXPECT_LT(here.wants().fd, 0) << "a message that nobody has asked for must not wake anybody";
  Bytes received(50);
  const auto ticket = here.post_recv(received);
  ASSERT_TRUE(here.pump_in());
  EXPECT_TRUE(here.received(ticket));
  EXPECT_TRUE(received == message);
  EXPECT_EQ(listener.notes.size(), 2u);
}

TEST(Tcp, NotesOutliveTheirMemory) {
  auto [one, other] = testing::connect_pair(Wire::UnixPair);
  PeerLink here(*Socket::adopt(std::move(one), 10));
  PeerLink there(*Socket::adopt(std::move(other), 0));
  Listener listener;
  here.deliver_notes_to(&listener);
  here.listen(true);
  // More than a socket takes at once, so that the first note is on its way when its memory goes.
  std::vector<Bytes> notes(40, filled(kMaxNote, 1));
  for (const Bytes& note : notes) there.post_note(3, note);
  ASSERT_TRUE(there.pump_out());
  ASSERT_TRUE(there.sending());
  there.keep_notes();
  const Bytes want = notes.front();
  for (Bytes& note : notes) std::ranges::fill(note, std::byte{0});
  for (int i = 0; i < 1000 && listener.notes.size() < notes.size(); ++i) {
    ASSERT_TRUE(there.pump_out());
    ASSERT_TRUE(here.pump_in());
  }
  ASSERT_EQ(listener.notes.size(), notes.size());
  for (const Bytes& note : listener.notes) ASSERT_TRUE(note == want);
}

TEST(Tcp, ANoteThatNobodyExpectsBreaksTheLink) {
  auto [one, other] = testing::connect_pair(Wire::UnixPair);
  PeerLink here(*Socket::adopt(std::move(one), 10));
  PeerLink there(*Socket::adopt(std::move(other), 0));
  const Bytes note = filled(30, 1);
  there.post_note(3, note);
  ASSERT_TRUE(there.pump_out());
  Bytes received(30);
  here.post_recv(received);
  const auto result = here.pump_in();
  ASSERT_FALSE(result && here.pump_in());
}

TEST(Tcp, OverlappingSetsShareTheConnections) {
  TcpWorld world({.groups = each_alone(3), .buffer_bytes = 1});
  const std::vector<std::vector<int>> sets{{0, 1, 2}, {0, 1}, {0, 2}, {1, 2}};
  std::vector<std::thread> threads;
  for (int self = 0; self < 3; ++self) {
    threads.emplace_back([&, self] {
      std::vector<std::unique_ptr<TcpBackend>> backends;  // of those sets that I am in
      std::vector<int> sizes;
      for (const auto& set : sets) {
        Members members;
        for (std::size_t i = 0; i < set.size(); ++i) {
          members.ranks.push_back(world.rank(set[i]));
          if (set[i] == self) members.self = static_cast<int>(i);
        }
        members.groups = each_alone(static_cast<int>(set.size()));
        const bool member = std::find(set.begin(), set.end(), self) != set.end();
        backends.push_back(member ? std::make_unique<TcpBackend>(members, world.mesh(self))
                                  : nullptr);
        sizes.push_back(static_cast<int>(set.size()));
      }
      std::mt19937 random(3);  // the same order of operations on all ranks
      for (int i = 0; i < 300; ++i) {
        const std::size_t set = random() % sets.size();
        const std::size_t count = random() % 3000;
        if (backends[set] == nullptr) continue;
        std::vector<float> values(count, 1.0f);
        auto* const bytes = reinterpret_cast<std::byte*>(values.data());
        const Piece piece{bytes, bytes, count};
        auto operation = backends[set]->start(Allreduce{{&piece, 1}, {}});
        ASSERT_TRUE(succeeded(drive(*operation, *backends[set])));
        ASSERT_EQ(values, std::vector<float>(count, static_cast<float>(sizes[set])));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Tcp, TheEndOfAConnectionFailsWhatIsUnderWayOnBothSides) {
  TcpWorld world({.groups = each_alone(2), .wire = Wire::Loopback});
  std::atomic<int> waiting{0};
  std::thread ender([&] {
    while (waiting.load() < 2) std::this_thread::yield();
    for (const int fd : world.mesh(0)->descriptors()) ::shutdown(fd, SHUT_RDWR);
  });
  world.run([&](int self, TcpBackend& backend) {
    Bytes never(1);
    auto operation = backend.recv(1 - self, never);
    waiting.fetch_add(1);
    auto result = drive(*operation, backend);
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, Code::PeerLost);
    EXPECT_EQ(result.error().peer, world.rank(1 - self));
  });
  ender.join();
}

/// One member's part in a run of equal operations.
class Participant {
 public:
  Participant(TcpBackend& backend, Kind kind, std::size_t count)
      : backend_(backend),
        kind_(kind),
        values_(count),
        all_(static_cast<std::size_t>(backend.members().size()), values_) {}

  std::unique_ptr<Operation> start() {
    const auto bytes = std::as_writable_bytes(std::span(values_));
    const Piece piece{bytes.data(), bytes.data(), values_.size()};
    GatherPlan plan;
    switch (kind_) {
      case Kind::Allreduce:
        return backend_.start(Allreduce{{&piece, 1}, {}});
      case Kind::Allgather:
        plan.in = {bytes};
        for (auto& part : all_) plan.out.push_back({std::as_writable_bytes(std::span(part))});
        return backend_.start(std::move(plan));
      case Kind::Broadcast:
        return backend_.start(Broadcast{bytes, bytes, 1});
      default:
        return backend_.start(Barrier{});
    }
  }

  Error run_until_failure() {
    for (;;) {
      auto operation = start();
      auto result = drive(*operation, backend_);
      if (!result) return std::move(result).error();
    }
  }

  /// Stops wherever it is after that many steps in all.
  void run_for(unsigned steps) {
    while (steps != 0) {
      auto operation = start();
      for (bool done = false; steps != 0 && !done; --steps) {
        auto step = operation->step();
        ASSERT_TRUE(step) << step.error().what();
        done = *step == Step::Done;
      }
    }
  }

 private:
  TcpBackend& backend_;
  const Kind kind_;
  std::vector<float> values_;
  std::vector<std::vector<float>> all_;
};

class LostPeer : public ::testing::TestWithParam<std::tuple<Kind, Wire, int>> {};
INSTANTIATE_TEST_SUITE_P(EveryKind, LostPeer,
                         ::testing::Combine(::testing::Values(Kind::Allreduce, Kind::Allgather,
                                                              Kind::Broadcast, Kind::Barrier),
                                            ::testing::Values(Wire::UnixPair, Wire::Loopback),
                                            ::testing::Values(2, 3, 5)));

TEST_P(LostPeer, DyingAtAnyByteFailsAllOthersSoon) {
  const auto [kind, wire, size] = GetParam();
  for (unsigned seed = 0; seed < 10; ++seed) {
    std::mt19937 random(seed);
    TcpWorld world({.groups = each_alone(size), .wire = wire, .buffer_bytes = 1});
    const int victim = static_cast<int>(random() % static_cast<unsigned>(size));
    const unsigned steps = random() % 200;
    const std::size_t count = seed % 2 == 0 ? 3 : 40000;
    world.run([&, kind = kind](int self, TcpBackend& backend) {
      Participant participant(backend, kind, count);
      if (self == victim) {
        participant.run_for(steps);
      } else {
        const Error error = participant.run_until_failure();
        EXPECT_EQ(error.code, Code::PeerLost) << error.what() << ", seed " << seed;
        EXPECT_EQ(error.peer % 10, 0);
        EXPECT_NE(error.peer, world.rank(self));
        EXPECT_TRUE(
            error.message.starts_with("connection closed by rank " + std::to_string(error.peer)))
            << error.message;
      }
      world.kill(self);  // whoever fails ends its connections, as the engine does
    });
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace farandole
