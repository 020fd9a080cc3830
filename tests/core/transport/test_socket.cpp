// A stream socket that never blocks.
#include "transport/socket.h"

#include <gtest/gtest.h>

#include <thread>

#include "tcp_world.h"

namespace farandole {
namespace {

using testing::connect_pair;
using testing::Wire;

class SocketTest : public ::testing::TestWithParam<Wire> {
 protected:
  /// My end, adopted as the way to rank 7, and the other end as it is.
  std::pair<Socket, Fd> open(int buffer_bytes = 0) {
    auto [mine, other] = connect_pair(GetParam(), buffer_bytes);
    auto socket = Socket::adopt(std::move(mine), 7);
    EXPECT_TRUE(socket);
    return {*std::move(socket), std::move(other)};
  }
};
INSTANTIATE_TEST_SUITE_P(Wires, SocketTest, ::testing::Values(Wire::UnixPair, Wire::Loopback));

iovec part(std::byte* data, std::size_t bytes) { return {data, bytes}; }

/// Reads until something comes or the stream ends.
Result<std::size_t> read_soon(Socket& socket, std::span<std::byte> to) {
  const TimePoint deadline = Clock::now() + testing::kPatience;
  for (;;) {
    const iovec one = part(to.data(), to.size());
    auto got = socket.read({&one, 1});
    if (!got || *got != 0 || Clock::now() > deadline) return got;
    pollfd polled{socket.fd(), POLLIN, 0};
    ::poll(&polled, 1, 1000);
  }
}

TEST_P(SocketTest, NothingThereAndNoRoomAreZeroBytes) {
  auto [socket, other] = open(1);
  std::byte data[4096]{};
  const iovec one = part(data, sizeof(data));
  auto got = socket.read({&one, 1});
  ASSERT_TRUE(got);
  EXPECT_EQ(*got, 0u);
  EXPECT_FALSE(socket.ready(POLLIN));
  std::size_t total = 0;
  for (;;) {
    auto taken = socket.write({&one, 1});
    ASSERT_TRUE(taken);
    if (*taken == 0) break;
    total += *taken;
    ASSERT_LT(total, std::size_t{64} << 20);
  }
  EXPECT_GT(total, 0u);
}

TEST_P(SocketTest, GathersAndScattersParts) {
  auto [socket, other] = open();
  std::byte out[5] = {std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4}, std::byte{5}};
  const iovec parts[] = {part(out, 2), part(out + 2, 0), part(out + 2, 3)};
  auto taken = socket.write(parts);
  ASSERT_TRUE(taken);
  EXPECT_EQ(*taken, 5u);
  std::byte got[5]{};
  ASSERT_EQ(::recv(other.get(), got, 5, MSG_WAITALL), 5);
  EXPECT_EQ(got[4], std::byte{5});
  ASSERT_EQ(::send(other.get(), got, 5, 0), 5);
  std::byte back[5]{};
  EXPECT_EQ(*read_soon(socket, back), 5u);
  EXPECT_EQ(back[0], std::byte{1});
}

TEST_P(SocketTest, TheEndOfTheStreamNamesThePeerAfterItsLastBytes) {
  auto [socket, other] = open();
  ASSERT_EQ(::send(other.get(), "x", 1, 0), 1);
  other.reset();
  std::byte byte[1];
  auto got = read_soon(socket, byte);
  ASSERT_TRUE(got);
  EXPECT_EQ(*got, 1u);
  got = read_soon(socket, byte);
  ASSERT_FALSE(got);
  EXPECT_EQ(got.error().code, Code::PeerLost);
  EXPECT_EQ(got.error().peer, 7);
  EXPECT_EQ(got.error().message, "connection closed by rank 7");
}

TEST_P(SocketTest, WritingToAClosedPeerIsAnErrorAndNoSignal) {
  auto [socket, other] = open();
  other.reset();
  std::byte byte[1]{};
  const iovec one = part(byte, 1);
  const TimePoint deadline = Clock::now() + testing::kPatience;
  for (;;) {  // TCP tells only after the first segment was answered
    auto taken = socket.write({&one, 1});
    if (!taken) {
      EXPECT_EQ(taken.error().code, Code::PeerLost);
      EXPECT_EQ(taken.error().peer, 7);
      EXPECT_TRUE(taken.error().message.starts_with("connection closed by rank 7"));
      break;
    }
    ASSERT_LT(Clock::now(), deadline);
    std::this_thread::yield();
  }
}

TEST_P(SocketTest, AResetIsALostPeer) {
  if (GetParam() == Wire::UnixPair) return;  // Unix sockets have no reset
  auto [socket, other] = open();
  const linger abort{1, 0};
  ASSERT_EQ(::setsockopt(other.get(), SOL_SOCKET, SO_LINGER, &abort, sizeof(abort)), 0);
  other.reset();
  std::byte byte[1];
  auto got = read_soon(socket, byte);
  ASSERT_FALSE(got);
  EXPECT_EQ(got.error().code, Code::PeerLost);
  EXPECT_EQ(got.error().message, "connection closed by rank 7 (connection reset)");
}

TEST(Socket, RefusesWhatIsNoStreamSocket) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_DGRAM, 0, ends), 0);
  const Fd other(ends[1]);
  auto datagrams = Socket::adopt(Fd(ends[0]), 3);
  ASSERT_FALSE(datagrams);
  EXPECT_EQ(datagrams.error().peer, 3);
  ASSERT_EQ(::pipe(ends), 0);
  const Fd writer(ends[1]);
  EXPECT_FALSE(Socket::adopt(Fd(ends[0]), 3));
  EXPECT_FALSE(Socket::adopt(Fd(), 3));
}

}  // namespace
}  // namespace farandole
