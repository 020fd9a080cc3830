// Control messages over a stream socket.
#include "transport/control_channel.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "tcp_world.h"

namespace farandole {
namespace {

using testing::connect_pair;
using testing::succeeded;
using testing::Wire;
using Bytes = std::vector<std::byte>;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}
std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

SocketChannel channel(Fd fd, Rank peer) {
  return SocketChannel(*Socket::adopt(std::move(fd), peer));
}

/// Waits for a message, the end or an error, sleeping as the engine does.
Result<std::optional<Bytes>> receive_soon(SocketChannel& from) {
  const TimePoint deadline = Clock::now() + testing::kPatience;
  while (Clock::now() < deadline) {
    auto message = from.receive();
    if (!message) return std::move(message).error();
    if (*message) return std::optional(Bytes((*message)->begin(), (*message)->end()));
    pollfd polled = from.wants();
    ::poll(&polled, 1, 1000);
  }
  return std::optional<Bytes>{};
}

/// Two ends: a (whose peer is rank 1) and b (whose peer is rank 0).
struct Ends {
  SocketChannel a, b;
  explicit Ends(Wire wire = Wire::UnixPair, int buffer_bytes = 0)
      : Ends(connect_pair(wire, buffer_bytes)) {}
  explicit Ends(std::pair<Fd, Fd> fds)
      : a(channel(std::move(fds.first), 1)), b(channel(std::move(fds.second), 0)) {}
};

TEST(SocketChannel, KeepsMessagesApartAndInOrder) {
  Ends ends;
  for (const auto* text : {"one", "2", "three"}) {
    ASSERT_TRUE(succeeded(ends.a.send(bytes_of(text))));
  }
  EXPECT_TRUE(ends.a.congested());  // nothing has gone yet
  EXPECT_FALSE(ends.b.ready());
  ASSERT_TRUE(succeeded(ends.a.flush()));
  EXPECT_FALSE(ends.a.congested());
  EXPECT_TRUE(ends.b.ready());
  for (const auto* text : {"one", "2", "three"}) {
    auto message = ends.b.receive();
    ASSERT_TRUE(message);
    ASSERT_TRUE(*message);
    EXPECT_EQ(text_of(**message), text);
  }
  auto nothing = ends.b.receive();
  ASSERT_TRUE(nothing);
  EXPECT_FALSE(*nothing);
  EXPECT_FALSE(ends.b.ready());
}

TEST(SocketChannel, IsReadyWhileABufferedMessageIsLeft) {
  Ends ends;
  ASSERT_TRUE(ends.a.send(bytes_of("first")));
  ASSERT_TRUE(ends.a.send(bytes_of("second")));
  ASSERT_TRUE(ends.a.flush());
  ASSERT_TRUE(*ends.b.receive());
  EXPECT_TRUE(ends.b.ready());  // although the socket is empty
}

TEST(SocketChannel, BothEndsSendMoreThanTheBuffersHold) {
  for (const Wire wire : {Wire::UnixPair, Wire::Loopback}) {
    Ends ends(wire, 1);
    std::mt19937 random(1);
    std::vector<Bytes> messages;
    for (const std::size_t bytes : {std::size_t{1}, std::size_t{70000}, std::size_t{3},
                                    std::size_t{1} << 20, std::size_t{5}}) {
      Bytes message(bytes);
      for (std::byte& byte : message) byte = static_cast<std::byte>(random());
      messages.push_back(std::move(message));
    }
    for (const Bytes& message : messages) {
      ASSERT_TRUE(succeeded(ends.a.send(message)));
      ASSERT_TRUE(succeeded(ends.b.send(message)));
    }
    std::size_t at_a = 0;
    std::size_t at_b = 0;
    const TimePoint deadline = Clock::now() + testing::kPatience;
    while (at_a < messages.size() || at_b < messages.size()) {
      ASSERT_LT(Clock::now(), deadline);
      ASSERT_TRUE(succeeded(ends.a.flush()));
      ASSERT_TRUE(succeeded(ends.b.flush()));
      for (auto [end, at] : {std::pair(&ends.a, &at_a), std::pair(&ends.b, &at_b)}) {
        auto message = end->receive();
        ASSERT_TRUE(message);
        if (!*message) continue;
        const Bytes& expected = messages[(*at)++];
        EXPECT_TRUE(
            std::equal((*message)->begin(), (*message)->end(), expected.begin(), expected.end()));
      }
    }
    EXPECT_FALSE(ends.a.congested() || ends.b.congested());
  }
}

TEST(SocketChannel, ACongestedEndWantsToWriteAndIsReadyWhenThereIsRoom) {
  Ends ends(Wire::UnixPair, 1);
  const Bytes large(1 << 20);
  ASSERT_TRUE(ends.a.send(large));
  ASSERT_TRUE(ends.a.flush());
  ASSERT_TRUE(ends.a.congested());
  EXPECT_EQ(ends.a.wants().events, POLLIN | POLLOUT);
  EXPECT_EQ(ends.b.wants().events, POLLIN);
  EXPECT_FALSE(ends.a.ready());
  const TimePoint deadline = Clock::now() + testing::kPatience;
  while (!ends.a.ready()) {
    ASSERT_LT(Clock::now(), deadline);
    ASSERT_TRUE(ends.b.receive());
  }
}

TEST(SocketChannel, MessagesMayArriveByteByByte) {
  auto [fd, raw] = connect_pair(Wire::UnixPair);
  SocketChannel end = channel(std::move(fd), 4);
  const std::string frame("\3\0\0\0abc", 7);
  for (std::size_t i = 0; i < frame.size(); ++i) {
    auto nothing = end.receive();
    ASSERT_TRUE(nothing);
    EXPECT_FALSE(*nothing);
    ASSERT_EQ(::send(raw.get(), &frame[i], 1, 0), 1);
  }
  auto message = end.receive();
  ASSERT_TRUE(message && *message);
  EXPECT_EQ(text_of(**message), "abc");
}

TEST(SocketChannel, TheLargestMessagePassesAndALargerOneIsRefused) {
  Ends ends;
  EXPECT_FALSE(ends.a.send({}));
  const Bytes largest(kMaxControlMessage, std::byte{9});
  EXPECT_FALSE(ends.a.send(Bytes(kMaxControlMessage + 1)));
  EXPECT_FALSE(ends.a.congested());
  ASSERT_TRUE(ends.a.send(largest));
  const TimePoint deadline = Clock::now() + testing::kPatience;
  for (;;) {
    ASSERT_LT(Clock::now(), deadline);
    ASSERT_TRUE(succeeded(ends.a.flush()));
    auto message = ends.b.receive();
    ASSERT_TRUE(message);
    if (!*message) continue;
    EXPECT_TRUE(std::equal((*message)->begin(), (*message)->end(), largest.begin(), largest.end()));
    break;
  }
}

TEST(SocketChannel, ImpossibleLengthsAreErrorsThatNameThePeer) {
  for (const std::string& length :
       {std::string("\0\0\0\0", 4), std::string("\1\0\0\1", 4), std::string("\xff\xff\xff\xff", 4),
        std::string("GET / HTTP/1.1\r\n")}) {
    auto [fd, raw] = connect_pair(Wire::UnixPair);
    SocketChannel end = channel(std::move(fd), 4);
    const std::string stream = std::string("\1\0\0\0x", 5) + length;
    ASSERT_EQ(::send(raw.get(), stream.data(), stream.size(), 0),
              static_cast<ssize_t>(stream.size()));
    auto before = receive_soon(end);  // what came before it is delivered
    ASSERT_TRUE(before && *before);
    EXPECT_TRUE(end.ready());
    for (int attempt = 0; attempt < 2; ++attempt) {
      auto message = receive_soon(end);
      ASSERT_FALSE(message);
      EXPECT_EQ(message.error().code, Code::Internal);
      EXPECT_EQ(message.error().peer, 4);
      EXPECT_NE(message.error().message.find("rank 4"), std::string::npos);
    }
  }
}

TEST(SocketChannel, DeliversWhatCameBeforeTheEnd) {
  for (const Wire wire : {Wire::UnixPair, Wire::Loopback}) {
    for (const bool torn : {false, true}) {
      auto [fd, raw] = connect_pair(wire);
      SocketChannel end = channel(std::move(fd), 4);
      const std::string stream("\2\0\0\0hi\5\0\0\0torn", torn ? 14 : 6);
      ASSERT_EQ(::send(raw.get(), stream.data(), stream.size(), 0),
                static_cast<ssize_t>(stream.size()));
      raw.reset();
      auto message = receive_soon(end);
      ASSERT_TRUE(message && *message);
      EXPECT_EQ(text_of(**message), "hi");
      for (int attempt = 0; attempt < 2; ++attempt) {
        auto closed = receive_soon(end);
        ASSERT_FALSE(closed);
        EXPECT_EQ(closed.error().code, Code::PeerLost);
        EXPECT_EQ(closed.error().peer, 4);
        EXPECT_EQ(closed.error().message,
                  torn ? "connection closed by rank 4 in the middle of a control message"
                       : "connection closed by rank 4");
      }
      EXPECT_TRUE(end.ready());
    }
  }
}

TEST(SocketChannel, ACloseAfterQueuedMessagesStillLetsThemBeRead) {
  Ends ends;
  ASSERT_TRUE(ends.b.send(bytes_of("the cause")));
  ASSERT_TRUE(ends.b.flush());
  ASSERT_EQ(::shutdown(ends.b.fd(), SHUT_RDWR), 0);
  ASSERT_TRUE(ends.a.send(bytes_of("too late")));
  auto flushed = ends.a.flush();
  ASSERT_FALSE(flushed);
  EXPECT_EQ(flushed.error().code, Code::PeerLost);
  auto message = receive_soon(ends.a);
  ASSERT_TRUE(message && *message);
  EXPECT_EQ(text_of(**message), "the cause");
}

TEST(SocketChannel, APeerThatTakesNothingIsLostBeforeMemoryIs) {
  Ends ends;
  const Bytes message(std::size_t{1} << 20, std::byte{1});
  std::size_t taken = 0;
  for (;;) {
    if (auto sent = ends.a.send(message); !sent) {
      EXPECT_EQ(sent.error().code, Code::PeerLost);
      EXPECT_NE(sent.error().message.find("does not take"), std::string::npos);
      break;
    }
    ASSERT_TRUE(ends.a.flush());
    ASSERT_LE(taken += message.size(), 2 * kMaxControlBacklog);
  }
  EXPECT_GE(taken, kMaxControlBacklog / 2);
}

TEST(SocketChannel, GarbageNeverCrashesNorGrowsWithoutLimit) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    auto [fd, raw] = connect_pair(Wire::UnixPair);
    SocketChannel end = channel(std::move(fd), 4);
    std::mt19937 random(seed);
    Bytes garbage(1 + random() % 5000);
    for (std::byte& byte : garbage) byte = static_cast<std::byte>(random() % 4 == 0 ? random() : 0);
    ASSERT_EQ(::send(raw.get(), garbage.data(), garbage.size(), 0),
              static_cast<ssize_t>(garbage.size()));
    raw.reset();
    std::size_t delivered = 0;
    for (;;) {
      auto message = receive_soon(end);
      if (!message) break;
      ASSERT_TRUE(*message);
      delivered += (*message)->size();
      ASSERT_LE(delivered, garbage.size());
    }
  }
}

}  // namespace
}  // namespace farandole
