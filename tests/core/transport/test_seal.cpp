// Streams that nobody in between can change unnoticed.
#include "transport/seal.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "tcp_world.h"
#include "transport/control_channel.h"
#include "transport/little_endian.h"
#include "transport/peer_link.h"

namespace farandole {
namespace {

using testing::connect_pair;
using testing::Wire;
using Bytes = std::vector<std::byte>;

constexpr std::size_t kOverhead = kSealLengthBytes + kSealTagBytes;

SealSecret secret(int seed) {
  SealSecret made;
  for (std::size_t i = 0; i < made.size(); ++i) {
    made[i] = static_cast<std::byte>(static_cast<std::size_t>(seed) * 50 + i);
  }
  return made;
}

SealKeys keys(Protection protection, bool dialer, std::uint64_t records = std::uint64_t{1} << 22) {
  return {.protection = protection,
          .sending = secret(dialer ? 1 : 2),
          .receiving = secret(dialer ? 2 : 1),
          .records_of_a_key = records};
}

Bytes pattern(std::size_t bytes, unsigned seed = 1) {
  std::mt19937 random(seed);
  Bytes made(bytes);
  for (std::byte& byte : made) byte = static_cast<std::byte>(random());
  return made;
}

/// What the sealed stream of `messages` looks like on the wire, each a record of its own.
std::vector<Bytes> records(Seal& from, const std::vector<Bytes>& messages) {
  std::vector<Bytes> made;
  for (const Bytes& message : messages) {
    const iovec part{const_cast<std::byte*>(message.data()), message.size()};
    EXPECT_TRUE(from.begin({&part, 1}, 0));
    made.emplace_back(from.pending().begin(), from.pending().end());
    EXPECT_EQ(from.sent(from.pending().size()), message.size());
  }
  return made;
}

struct Seen {
  Bytes plain;
  std::string error;
};

/// Opens `stream`, given in pieces of `piece` bytes.
Seen open(Seal& at, const Bytes& stream, std::size_t piece) {
  Seen seen;
  for (std::size_t begin = 0; begin < stream.size(); begin += piece) {
    const std::size_t now = std::min(piece, stream.size() - begin);
    const auto room = at.room();
    EXPECT_GE(room.size(), now);
    std::copy_n(stream.begin() + static_cast<std::ptrdiff_t>(begin), now, room.begin());
    at.filled(now);
    for (;;) {
      EXPECT_TRUE(at.plain().empty());
      const bool held = at.holds();
      auto opened = at.unseal();
      EXPECT_EQ(held, !opened || *opened);
      if (!opened) {
        seen.error = opened.error().message;
        return seen;
      }
      if (!*opened) break;
      Bytes out(at.plain().size());
      const iovec part{out.data(), out.size()};
      EXPECT_EQ(at.take({&part, 1}, 0), out.size());
      seen.plain.insert(seen.plain.end(), out.begin(), out.end());
    }
  }
  return seen;
}

Bytes joined(const std::vector<Bytes>& parts) {
  Bytes all;
  for (const Bytes& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

class SealTest : public ::testing::TestWithParam<Protection> {
 protected:
  void SetUp() override { ASSERT_STREQ(seal_missing(), ""); }

  static std::unique_ptr<Seal> seal(bool dialer, std::uint64_t records = std::uint64_t{1} << 22) {
    auto made = Seal::open(keys(GetParam(), dialer, records));
    EXPECT_TRUE(made);
    return *std::move(made);
  }
};
INSTANTIATE_TEST_SUITE_P(Protections, SealTest,
                         ::testing::Values(Protection::Integrity, Protection::Full),
                         [](const auto& chosen) {
                           return chosen.param == Protection::Full ? "Full" : "Integrity";
                         });

TEST_P(SealTest, RecordsArriveAsTheyWereHoweverTheyAreCut) {
  const std::vector<Bytes> messages = {pattern(1),          pattern(300),   pattern(17),
                                       pattern(kMaxSealed), pattern(40000), pattern(kMaxSealed),
                                       pattern(5)};
  const Bytes stream = joined(records(*seal(true), messages));
  EXPECT_EQ(stream.size(), joined(messages).size() + messages.size() * kOverhead);
  for (const std::size_t piece : {std::size_t{1}, std::size_t{7}, std::size_t{5000}}) {
    const Seen seen = open(*seal(false), stream, piece);
    EXPECT_EQ(seen.error, "");
    EXPECT_EQ(seen.plain, joined(messages));
  }
}

TEST_P(SealTest, OnlyFullProtectionHidesThePayload) {
  const std::string text = "a rather long text that stands out";
  const auto bytes = std::as_bytes(std::span(text));
  const Bytes stream = records(*seal(true), {Bytes(bytes.begin(), bytes.end())}).front();
  const std::string wire(reinterpret_cast<const char*>(stream.data()), stream.size());
  EXPECT_EQ(wire.find(text) == std::string::npos, GetParam() == Protection::Full);
}

TEST_P(SealTest, EveryFlippedBitIsFoundAndNothingOfItsRecordIsSeen) {
  const std::vector<Bytes> messages = {pattern(40), pattern(9)};
  const auto made = records(*seal(true), messages);
  const Bytes good = joined(made);
  for (std::size_t bit = 0; bit < 8 * good.size(); ++bit) {
    Bytes stream = good;
    stream[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    const Seen seen = open(*seal(false), stream, stream.size());
    const bool in_first = bit / 8 < made.front().size();
    // A length that grew makes the reader wait for what never comes: it has seen nothing either.
    const bool waits = seen.error.empty();
    const std::size_t in_record = bit / 8 - (in_first ? 0 : made.front().size());
    EXPECT_TRUE(!waits || in_record < kSealLengthBytes) << bit;
    EXPECT_EQ(seen.plain, in_first ? Bytes{} : messages.front()) << bit;
    EXPECT_EQ(waits, seen.error.find("altered on the way") == std::string::npos);
  }
}

TEST_P(SealTest, RecordsThatAreRepeatedLeftOutOrSwappedAreFound) {
  const auto made = records(*seal(true), {pattern(8, 1), pattern(8, 2), pattern(8, 3)});
  const auto& [a, b, c] = std::tie(made[0], made[1], made[2]);
  for (const std::vector<Bytes>& order :
       {std::vector{a, a, b, c}, {b, c}, {a, c}, {a, c, b}, {c, b, a}, {a, b, b}}) {
    const Seen seen = open(*seal(false), joined(order), 1);
    EXPECT_NE(seen.error.find("altered on the way"), std::string::npos);
    const bool first_is_right = order.front() == a;
    EXPECT_EQ(seen.plain.size(), first_is_right ? (order[1] == b ? 16u : 8u) : 0u);
  }
}

TEST_P(SealTest, ARecordOfTheOtherDirectionIsNoRecordHere) {
  const Bytes stream = joined(records(*seal(false), {pattern(8)}));
  EXPECT_NE(open(*seal(false), stream, 1).error, "");
}

TEST_P(SealTest, TheTwoProtectionsDoNotUnderstandEachOther) {
  const Bytes stream = joined(records(*seal(true), {pattern(8)}));
  const auto other = GetParam() == Protection::Full ? Protection::Integrity : Protection::Full;
  EXPECT_NE(open(**Seal::open(keys(other, false)), stream, 1).error, "");
}

TEST_P(SealTest, LengthsThatCannotBeAreErrorsAtOnce) {
  for (const std::uint32_t length : {0u, static_cast<std::uint32_t>(kMaxSealed) + 1, 0xFFFFFFFFu}) {
    Bytes stream(kSealLengthBytes);
    store_little_endian(stream.data(), length);
    EXPECT_NE(open(*seal(false), stream, 4).error, "") << length;
  }
}

TEST_P(SealTest, KeysAreRenewedOnBothSidesAtTheSameRecord) {
  const std::vector<Bytes> messages(20, pattern(5));
  const auto made = records(*seal(true, 3), messages);
  EXPECT_EQ(open(*seal(false, 3), joined(made), 11).plain, joined(messages));
  const Seen without = open(*seal(false), joined(made), 11);  // one that never renews its key
  EXPECT_EQ(without.plain.size(), 3u * 5u);
  EXPECT_NE(without.error, "");
}

TEST_P(SealTest, TheLastByteCountsWhenAllOfItsRecordHasGone) {
  auto from = seal(true);
  const Bytes message = pattern(10);
  const iovec part{const_cast<std::byte*>(message.data()), message.size()};
  ASSERT_TRUE(from->begin({&part, 1}, 4));
  ASSERT_EQ(from->pending().size(), 6 + kOverhead);
  std::size_t taken = 0;
  while (from->pending().size() > 1) taken += from->sent(1);
  EXPECT_EQ(taken, 5u);
  EXPECT_EQ(from->sent(1), 1u);
  EXPECT_TRUE(from->pending().empty());
}

/// Two sockets with keys, and the wires between them in our hands.
struct Between {
  std::optional<Socket> a, b;
  Fd wire_a, wire_b;

  explicit Between(Protection protection, int buffer_bytes = 0) {
    auto [a_end, a_wire] = connect_pair(Wire::Loopback, buffer_bytes);
    auto [b_end, b_wire] = connect_pair(Wire::Loopback, buffer_bytes);
    a.emplace(*Socket::adopt(std::move(a_end), 1, keys(protection, true)));
    b.emplace(*Socket::adopt(std::move(b_end), 0, keys(protection, false)));
    wire_a = std::move(a_wire);
    wire_b = std::move(b_wire);
  }

  /// Passes on what a has said, with `change` made to it.
  template <typename Change>
  void pass(const Change& change) {
    Bytes said(1 << 16);
    const ssize_t got = ::recv(wire_a.get(), said.data(), said.size(), 0);
    ASSERT_GT(got, 0);
    said.resize(static_cast<std::size_t>(got));
    change(said);
    ASSERT_EQ(::send(wire_b.get(), said.data(), said.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(said.size()));
  }
};

bool readable(const Socket& socket) {
  pollfd polled{socket.fd(), POLLIN, 0};
  return ::poll(&polled, 1, 10'000) > 0;
}

TEST_P(SealTest, ASocketNamesTheConnectionThatWasAltered) {
  Between two(GetParam());
  const Bytes message = pattern(100);
  const iovec part{const_cast<std::byte*>(message.data()), message.size()};
  ASSERT_EQ(*two.a->write({&part, 1}), message.size());
  two.pass([](Bytes&) {});
  ASSERT_EQ(*two.a->write({&part, 1}), message.size());
  two.pass([](Bytes& said) { said[50] ^= std::byte{1}; });
  ASSERT_TRUE(readable(*two.b));
  Bytes got(1000);
  const iovec into{got.data(), got.size()};
  std::size_t arrived = 0;
  Result<std::size_t> read = two.b->read({&into, 1});
  while (read) {  // what was good comes first
    arrived += *read;
    ASSERT_TRUE(*read != 0 || readable(*two.b));
    read = two.b->read({&into, 1});
  }
  EXPECT_EQ(arrived, message.size());
  EXPECT_EQ(read.error().peer, 0);
  EXPECT_NE(read.error().message.find("connection with rank 0 at 127.0.0.1: its data was altered"),
            std::string::npos)
      << read.error().message;
  EXPECT_FALSE(two.b->read({&into, 1}));  // and nothing comes any more
}

TEST_P(SealTest, AnEndInsideARecordIsTheEndOfTheConnection) {
  Between two(GetParam());
  const Bytes message = pattern(100);
  const iovec part{const_cast<std::byte*>(message.data()), message.size()};
  ASSERT_EQ(*two.a->write({&part, 1}), message.size());
  two.pass([](Bytes& said) { said.resize(60); });
  two.wire_b.reset();
  Bytes got(100);
  const iovec into{got.data(), got.size()};
  Result<std::size_t> read = two.b->read({&into, 1});
  while (read && *read == 0 && readable(*two.b)) read = two.b->read({&into, 1});
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code, Code::PeerLost);
}

TEST_P(SealTest, ReadyKnowsOfWhatPollDoesNot) {
  auto [one, other] = connect_pair(Wire::Loopback);
  auto a = *Socket::adopt(std::move(one), 1, keys(GetParam(), true));
  auto b = *Socket::adopt(std::move(other), 0, keys(GetParam(), false));
  std::byte data[2]{};
  const iovec both{data, 2}, first{data, 1};
  EXPECT_FALSE(b.ready(POLLIN));
  ASSERT_EQ(*a.write({&both, 1}), 2u);
  ASSERT_TRUE(readable(b));
  ASSERT_EQ(*b.read({&first, 1}), 1u);
  pollfd polled{b.fd(), POLLIN, 0};
  EXPECT_EQ(::poll(&polled, 1, 0), 0);
  EXPECT_TRUE(b.ready(POLLIN));
  ASSERT_EQ(*b.read({&first, 1}), 1u);
  EXPECT_FALSE(b.ready(POLLIN));
}

/// Over a bad link a record comes in pieces, so slowly that nothing of it can be read for long.
TEST_P(SealTest, PartOfARecordIsProgress) {
  Between two(GetParam());
  const Bytes message = pattern(1000);
  PeerLink sender(*std::move(two.a)), receiver(*std::move(two.b));
  Bytes got(message.size());
  sender.post_send(message);
  const PeerLink::Ticket ticket = receiver.post_recv(got);
  ASSERT_TRUE(*sender.pump_out());
  Bytes rest;
  two.pass([&](Bytes& said) {
    rest.assign(said.begin() + 500, said.end());
    said.resize(500);
  });
  ASSERT_GT(::poll(std::array{receiver.wants()}.data(), 1, 10'000), 0);
  EXPECT_TRUE(*receiver.pump_in());
  EXPECT_FALSE(*receiver.pump_in()) << "nothing more has come";
  ASSERT_EQ(::send(two.wire_b.get(), rest.data(), rest.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(rest.size()));
  ASSERT_GT(::poll(std::array{receiver.wants()}.data(), 1, 10'000), 0);
  EXPECT_TRUE(*receiver.pump_in());
  EXPECT_TRUE(receiver.received(ticket));
  EXPECT_EQ(got, message);
}

/// Long and short messages both ways at once, over links with next to no room between them.
TEST_P(SealTest, LinksCarryEverythingThroughTheSmallestBuffers) {
  auto [one, other] = connect_pair(Wire::UnixPair, 1);  // TCP waits for its timers there
  std::vector<std::unique_ptr<PeerLink>> links;
  links.push_back(
      std::make_unique<PeerLink>(*Socket::adopt(std::move(one), 1, keys(GetParam(), true, 2))));
  links.push_back(
      std::make_unique<PeerLink>(*Socket::adopt(std::move(other), 0, keys(GetParam(), false, 2))));
  const std::vector<std::size_t> sizes = {0, 1, 5, 70'000, 3, 0, 300'000, 65'536, 65'520, 9};
  std::vector<std::thread> threads;
  for (unsigned self = 0; self < 2; ++self) {
    threads.emplace_back([&, self] {
      PeerLink& link = *links[self];
      std::vector<Bytes> out, in;
      for (const std::size_t bytes : sizes) {
        out.push_back(pattern(bytes, self));
        in.emplace_back(bytes);
      }
      PeerLink::Ticket last = 0;
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        last = link.post_send(out[i]);
        link.post_recv(in[i]);
      }
      const TimePoint deadline = Clock::now() + testing::kPatience;
      while (!link.sent(last) || !link.received(last)) {
        ASSERT_LT(Clock::now(), deadline);
        auto went = link.pump_out();
        auto came = link.pump_in();
        ASSERT_TRUE(went && came);
        if (*went || *came) continue;
        pollfd polled = link.wants();
        ASSERT_GT(::poll(&polled, 1, 10'000), 0) << "slept although something was there";
      }
      for (std::size_t i = 0; i < sizes.size(); ++i) EXPECT_EQ(in[i], pattern(sizes[i], 1 - self));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_P(SealTest, ChannelsCarryMessagesOfAnySize) {
  auto [one, other] = connect_pair(Wire::UnixPair, 1);  // TCP waits for its timers there
  SocketChannel a(*Socket::adopt(std::move(one), 1, keys(GetParam(), true)));
  SocketChannel b(*Socket::adopt(std::move(other), 0, keys(GetParam(), false)));
  const std::vector<std::size_t> sizes = {1, 200, 100'000, 7, 65'516, 1};
  std::thread sender([&] {
    for (const std::size_t bytes : sizes) ASSERT_TRUE(a.send(pattern(bytes)));
    const TimePoint deadline = Clock::now() + testing::kPatience;
    while (a.congested() && Clock::now() < deadline) {
      ASSERT_TRUE(a.flush());
      pollfd polled = a.wants();
      if (a.congested()) ::poll(&polled, 1, 1000);
    }
  });
  for (const std::size_t bytes : sizes) {
    Result<std::optional<std::span<const std::byte>>> message = b.receive();
    while (message && !*message) {
      pollfd polled = b.wants();
      ASSERT_GT(::poll(&polled, 1, 10'000), 0);
      message = b.receive();
    }
    ASSERT_TRUE(message);
    EXPECT_EQ(Bytes((*message)->begin(), (*message)->end()), pattern(bytes));
  }
  EXPECT_FALSE(b.ready());
  sender.join();
}

}  // namespace
}  // namespace farandole
