// Control messages through shared memory: order, sizes, wrap-around, a full ring, a peer that
// closes or writes garbage.
#include "transport/control_channel.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <thread>

#include "shm_world.h"

namespace farandole {
namespace {

using testing::ShmWorld;
using testing::ShmWorldOptions;
using testing::Wait;
using Bytes = std::vector<std::byte>;

std::unique_ptr<ShmChannel> end_of(const ShmWorld& world, int self, int peer) {
  return std::make_unique<ShmChannel>(ShmChannel::Edge{
      world.view(self), self, world.view(peer), peer, ShmWorld::global(peer), world.bell(peer)});
}

Bytes message(std::size_t bytes, unsigned seed) {
  std::mt19937 random(seed);
  Bytes result(bytes);
  for (std::byte& byte : result) byte = static_cast<std::byte>(random());
  return result;
}

Bytes copy(std::span<const std::byte> span) { return {span.begin(), span.end()}; }

TEST(ShmChannel, MessagesArriveInOrderAndWhole) {
  const ShmWorld world({.size = 3});
  const auto one = end_of(world, 0, 2);
  const auto other = end_of(world, 2, 0);
  EXPECT_FALSE(other->ready());
  for (unsigned i = 1; i <= 20; ++i) ASSERT_TRUE(static_cast<bool>(one->send(message(i * 7, i))));
  ASSERT_TRUE(static_cast<bool>(one->flush()));
  EXPECT_FALSE(one->congested());
  EXPECT_TRUE(other->ready());
  for (unsigned i = 1; i <= 20; ++i) {
    auto received = other->receive();
    ASSERT_TRUE(received && *received);
    EXPECT_EQ(copy(**received), message(i * 7, i));
  }
  auto nothing = other->receive();
  EXPECT_TRUE(nothing && !*nothing);
  EXPECT_FALSE(other->ready());
}

TEST(ShmChannel, AFullRingKeepsMessagesUntilThereIsRoom) {
  const ShmWorld world({.size = 2, .first_sequence = 0U - 5000U});
  const auto one = end_of(world, 0, 1);
  const auto other = end_of(world, 1, 0);
  const std::size_t ring = world.view(0).messages_to(1).data.size();
  const std::vector<std::size_t> sizes{ring - 6, 1, ring - 4, ring, 5 * ring + 3, 2, 1 << 20};
  for (unsigned i = 0; i < sizes.size(); ++i) {
    ASSERT_TRUE(static_cast<bool>(one->send(message(sizes[i], i))));
  }
  EXPECT_TRUE(one->congested());
  EXPECT_FALSE(one->ready());
  for (unsigned i = 0; i < sizes.size(); ++i) {
    bool whole = false;
    for (int round = 0; round < 1000 && !whole; ++round) {
      auto received = other->receive();
      ASSERT_TRUE(static_cast<bool>(received));
      whole = received->has_value();
      if (whole) {
        EXPECT_EQ(copy(**received), message(sizes[i], i));
      }
      ASSERT_TRUE(static_cast<bool>(one->flush()));
    }
    ASSERT_TRUE(whole) << i;
  }
  EXPECT_FALSE(one->congested());
}

/// Both ends send and receive at once; a rank that has nothing to do yields or sleeps.
void converse(Wait wait, std::uint32_t first_sequence) {
  const ShmWorld world({.size = 2, .first_sequence = first_sequence, .wait = wait});
  const auto talk = [&](int self) {
    const auto channel = end_of(world, self, 1 - self);
    constexpr unsigned kMessages = 400;
    const auto size = [](unsigned i) {
      return i % 50 == 49 ? std::size_t{100000} : 1 + i * 37 % 900;
    };
    unsigned sent = 0;
    unsigned received = 0;
    const TimePoint deadline = Clock::now() + testing::kPatience;
    BellWord& bell = world.view(self).bell();
    bool announced = false;
    while (received < kMessages || sent < kMessages || channel->congested()) {
      ASSERT_LT(Clock::now(), deadline) << "sent " << sent << " received " << received;
      bool moved = false;
      if (sent < kMessages && !channel->congested()) {
        ASSERT_TRUE(static_cast<bool>(channel->send(message(size(sent), sent))));
        ++sent;
        moved = true;
      }
      ASSERT_TRUE(static_cast<bool>(channel->flush()));
      if (channel->ready()) {
        auto next = channel->receive();
        if (!next && received == kMessages) break;  // the other one has everything and has left
        ASSERT_TRUE(static_cast<bool>(next)) << next.error().what();
        moved = true;
        if (*next) {
          ASSERT_EQ(copy(**next), message(size(received), received));
          ++received;
        }
      }
      if (moved || wait == Wait::Yield) {
        if (announced) bell.sleeper.store(0);
        announced = false;
        if (!moved) ::sched_yield();
      } else if (!announced) {
        bell.sleeper.store(static_cast<std::uint32_t>(Sleeper::EngineThread));
        announced = true;
      } else {
        pollfd fd{world.bell_fd(self), POLLIN, 0};
        ASSERT_EQ(::poll(&fd, 1, 30000), 1) << "a wake-up was lost";
        std::uint64_t count = 0;
        ASSERT_EQ(::read(fd.fd, &count, sizeof count), static_cast<ssize_t>(sizeof count));
        announced = false;
      }
    }
    bell.sleeper.store(0);
  };
  std::thread other(talk, 1);
  talk(0);
  other.join();
}

TEST(ShmChannel, BothEndsSendAndReceiveAtOnce) { converse(Wait::Yield, 0); }
TEST(ShmChannel, SleepingEndsAreRungForMessagesAndForRoom) { converse(Wait::Sleep, 0); }
TEST(ShmChannel, RingCountersMayWrapAround) { converse(Wait::Yield, 0U - 100000U); }

TEST(ShmChannel, WhatWasSentBeforeClosingArrivesThenTheEndIsAnError) {
  const ShmWorld world({.size = 2});
  auto one = end_of(world, 0, 1);
  const auto other = end_of(world, 1, 0);
  ASSERT_TRUE(static_cast<bool>(one->send(message(10, 1))));
  one.reset();
  auto received = other->receive();
  ASSERT_TRUE(received && *received);
  EXPECT_TRUE(other->ready());
  received = other->receive();
  ASSERT_FALSE(static_cast<bool>(received));
  EXPECT_EQ(received.error().code, Code::PeerLost);
  EXPECT_EQ(received.error().peer, ShmWorld::global(0));
}

TEST(ShmChannel, EmptyAndOversizedMessagesAreRefused) {
  const ShmWorld world({.size = 2});
  const auto one = end_of(world, 0, 1);
  EXPECT_FALSE(static_cast<bool>(one->send({})));
  EXPECT_FALSE(static_cast<bool>(one->send(Bytes((16 << 20) + 1))));
}

TEST(ShmChannel, APeerThatTakesNothingIsLostBeforeMemoryIs) {
  const ShmWorld world({.size = 2});
  const auto one = end_of(world, 0, 1);
  const auto other = end_of(world, 1, 0);
  const Bytes large(std::size_t{1} << 20);
  std::size_t waiting = 0;
  for (;;) {
    if (auto sent = one->send(large); !sent) {
      EXPECT_EQ(sent.error().code, Code::PeerLost);
      EXPECT_EQ(sent.error().peer, ShmWorld::global(1));
      break;
    }
    ASSERT_LE(waiting += large.size(), kMaxControlBacklog);
  }
  // Once it has taken a message there is room for another one.
  for (;;) {
    ASSERT_TRUE(static_cast<bool>(one->flush()));
    auto received = other->receive();
    ASSERT_TRUE(static_cast<bool>(received));
    if (*received) break;
  }
  ASSERT_TRUE(static_cast<bool>(one->flush()));
  EXPECT_TRUE(static_cast<bool>(one->send(large)));
}

TEST(ShmChannel, AHostilePeerCausesErrorsAndNothingElse) {
  for (const std::uint32_t length : {0U, 0xFFFFFFFFU, (16U << 20) + 1}) {
    const ShmWorld world({.size = 2});
    const auto victim = end_of(world, 1, 0);
    const RingMemory ring = world.view(0).messages_to(1);
    std::memcpy(ring.data.data(), &length, sizeof length);
    ring.head->written.store(sizeof length);
    const auto received = victim->receive();
    ASSERT_FALSE(static_cast<bool>(received));
    EXPECT_EQ(received.error().peer, ShmWorld::global(0));
  }
  std::mt19937 random(11);
  for (int round = 0; round < 200; ++round) {
    const ShmWorld world({.size = 2});
    const auto victim = end_of(world, 1, 0);
    const RingMemory ring = world.view(0).messages_to(1);
    for (std::byte& byte : ring.data) byte = static_cast<std::byte>(random() % 3);
    for (int i = 0; i < 50; ++i) {
      ring.head->written.store(random() % (random() % 2 == 0 ? 5000 : 0xFFFFFFFF));
      world.view(1).messages_to(0).head->read.store(random());
      (void)victim->receive();
      (void)victim->send(message(100, 1));
      (void)victim->flush();
      (void)victim->ready();
    }
  }
}

}  // namespace
}  // namespace farandole
