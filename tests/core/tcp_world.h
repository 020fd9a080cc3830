/// Ranks as threads of one process, joined by stream sockets.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <functional>
#include <memory>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "backends/tcp/tcp.h"
#include "patience.h"

namespace farandole::testing {

enum class Wire { UnixPair, Loopback };

inline void limit_buffers(int fd, int bytes) {
  if (bytes == 0) return;
  ASSERT_EQ(::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes)), 0);
  ASSERT_EQ(::setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes)), 0);
}

/// Two ends of one connection. `buffer_bytes` 0: what the system gives.
inline std::pair<Fd, Fd> connect_pair(Wire wire, int buffer_bytes = 0) {
  if (wire == Wire::UnixPair) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return {};
    limit_buffers(ends[0], buffer_bytes);
    limit_buffers(ends[1], buffer_bytes);
    return {Fd(ends[0]), Fd(ends[1])};
  }
  Fd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  limit_buffers(listener.get(), buffer_bytes);  // before the handshake, which fixes the window
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (::bind(listener.get(), generic, length) != 0 || ::listen(listener.get(), 1) != 0 ||
      ::getsockname(listener.get(), generic, &length) != 0) {
    return {};
  }
  Fd one(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  limit_buffers(one.get(), buffer_bytes);
  if (::connect(one.get(), generic, length) != 0) return {};
  Fd other(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  return {std::move(one), std::move(other)};
}

/// Every member on a host of its own.
inline std::vector<std::vector<int>> each_alone(int size) {
  std::vector<std::vector<int>> groups;
  for (int member = 0; member < size; ++member) groups.push_back({member});
  return groups;
}

/// Steps until done, sleeping only for what the backend says it waits for.
inline Result<void> drive(Operation& operation, const TcpBackend& backend) {
  const TimePoint deadline = Clock::now() + kPatience;
  for (;;) {
    auto step = operation.step();
    if (!step) return std::move(step).error();
    if (*step == Step::Done) return {};
    if (*step == Step::Advanced) continue;
    std::vector<pollfd> polled;
    backend.wants(polled);
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0 || ::poll(polled.data(), polled.size(), static_cast<int>(left)) == 0) {
      Error error;
      error.code = Code::Timeout;
      error.message = "the test ran out of patience";
      error.missing = operation.waiting_for();
      return error;
    }
  }
}

struct WorldOptions {
  std::vector<std::vector<int>> groups;
  Wire wire = Wire::UnixPair;
  int buffer_bytes = 0;
  Rank first_rank = 0;  ///< global rank of member 0; those of the others are 10 apart
  int streams = 1;      ///< connections of each pair
};

/// A fully connected world. Each rank's part may be taken by one thread.
class TcpWorld {
 public:
  explicit TcpWorld(WorldOptions options) : options_(std::move(options)) {
    int size = 0;
    for (const auto& group : options_.groups) size += static_cast<int>(group.size());
    std::vector<std::vector<Mesh::Peer>> peers(static_cast<std::size_t>(size));
    for (int a = 0; a < size; ++a) {
      for (int b = a + 1; b < size; ++b) {
        for (int stream = 0; stream < options_.streams; ++stream) {
          auto [one, other] = connect_pair(options_.wire, options_.buffer_bytes);
          add(peers[static_cast<std::size_t>(a)], b, std::move(one));
          add(peers[static_cast<std::size_t>(b)], a, std::move(other));
        }
      }
    }
    for (auto& own : peers) {
      auto mesh = Mesh::open(std::move(own));
      if (!mesh) throw std::runtime_error(mesh.error().what());
      meshes_.push_back(*std::move(mesh));
    }
  }

  [[nodiscard]] int size() const { return static_cast<int>(meshes_.size()); }
  [[nodiscard]] Rank rank(int member) const { return options_.first_rank + 10 * member; }
  [[nodiscard]] std::shared_ptr<Mesh> mesh(int member) const {
    return meshes_[static_cast<std::size_t>(member)];
  }
  /// Closes the connections of a member, as its death would, once no backend uses them.
  void kill(int member) { meshes_[static_cast<std::size_t>(member)].reset(); }

  [[nodiscard]] Members members(int self) const {
    Members members;
    for (int member = 0; member < size(); ++member) members.ranks.push_back(rank(member));
    members.self = self;
    members.groups = options_.groups;
    return members;
  }

  /// Runs body(member, backend) on one thread for each member and waits for all.
  void run(const std::function<void(int, TcpBackend&)>& body) {
    std::vector<std::thread> threads;
    for (int member = 0; member < size(); ++member) {
      threads.emplace_back([this, member, &body] {
        TcpBackend backend(members(member), mesh(member));
        body(member, backend);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

 private:
  void add(std::vector<Mesh::Peer>& peers, int member, Fd fd) const {
    if (peers.empty() || peers.back().rank != rank(member)) {
      peers.emplace_back();
      peers.back().rank = rank(member);
    }
    peers.back().streams.push_back(std::move(fd));
  }

  WorldOptions options_;
  std::vector<std::shared_ptr<Mesh>> meshes_;
};

}  // namespace farandole::testing
