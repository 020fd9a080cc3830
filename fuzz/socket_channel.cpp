/// Control messages that a peer sends through a socket, in pieces of any length.

#include "transport/control_channel.h"

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <optional>

#include "target.h"
#include "transport/little_endian.h"

namespace farandole::fuzz {
namespace {

/// The messages that are whole, and whether something impossible follows them.
struct Expected {
  std::vector<Bytes> messages;
  bool broken = false;
};

Expected expected_of(std::span<const std::byte> stream) {
  Expected expected;
  while (stream.size() >= 4) {
    const std::size_t bytes = load_little_endian<std::uint32_t>(stream.data());
    expected.broken = bytes == 0 || bytes > kMaxControlMessage;
    if (expected.broken || stream.size() < 4 + bytes) break;
    expected.messages.emplace_back(stream.begin() + 4,
                                   stream.begin() + 4 + static_cast<std::ptrdiff_t>(bytes));
    stream = stream.subspan(4 + bytes);
  }
  return expected;
}

/// First how many bytes arrive at a time, then what arrives.
void run(std::span<const std::byte> input) {
  Script script(input);
  const std::size_t piece = 1 + script.byte();
  const auto stream = script.all();
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()) != 0) return;
  Fd writer(ends[0]);
  auto socket = Socket::adopt(Fd(ends[1]), 7);
  require(static_cast<bool>(socket), "a socket pair can be adopted");
  SocketChannel channel(std::move(*socket));

  const Expected expected = expected_of(stream);
  std::size_t received = 0;
  bool failed = false;
  const auto take = [&] {
    while (!failed) {
      const auto message = channel.receive();
      failed = !message;
      if (failed || !*message) return;
      const auto bytes = **message;
      require(received < expected.messages.size(), "no message that was not sent");
      require(Bytes(bytes.begin(), bytes.end()) == expected.messages[received], "as it was sent");
      ++received;
    }
  };
  for (std::size_t at = 0; at < stream.size() && !failed; at += piece) {
    const auto part = stream.subspan(at, std::min(piece, stream.size() - at));
    const ssize_t sent =
        ::send(writer.get(), part.data(), part.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    require(sent == static_cast<ssize_t>(part.size()), "there is room for what is taken at once");
    take();
  }
  require(received == expected.messages.size(), "every whole message");
  require(failed == expected.broken, "an error for what is impossible and for nothing else");
  writer.reset();
  take();
  require(failed, "the end is told");
  require(!channel.receive(), "and stays");
}

std::vector<Bytes> seeds() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()) != 0) return {};
  Fd reader(ends[1]);
  auto socket = Socket::adopt(Fd(ends[0]), 7);
  if (!socket) return {};
  SocketChannel channel(std::move(*socket));
  for (const std::size_t bytes : {1, 16, 300}) {
    if (!channel.send(Bytes(bytes, std::byte{7}))) return {};
  }
  if (!channel.flush()) return {};
  Bytes stream(1024);
  const ssize_t got = ::recv(reader.get(), stream.data(), stream.size(), 0);
  stream.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  Bytes whole = stream;
  whole.insert(whole.begin(), std::byte{255});
  stream.insert(stream.begin(), std::byte{2});
  return {stream, whole};
}

}  // namespace

const Target kSocketChannel{"socket_channel", run, seeds};

}  // namespace farandole::fuzz
