/// Connections that go through this process: what the bytes of each direction meet with is up to
/// the test, each direction for itself.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "transport/fd.h"
#include "types.h"

namespace farandole::testing {

class Relay {
 public:
  /// What happens to what has arrived: after `wait`, so many bytes of it go on. Then the next turn.
  struct Turn {
    Duration wait{};
    std::size_t bytes = 0;
  };
  /// Of one direction. Sees what has arrived and not gone on, and may change it. Relay's thread.
  using Weather = std::function<Turn(std::span<std::byte> waiting)>;

  Relay()
      : bell_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
        thread_([this](const std::stop_token& stop) { run(stop); }) {}
  ~Relay() {
    thread_.request_stop();
    ring();
  }
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  /// Two ends of one connection. `forth`: from the first to the second.
  [[nodiscard]] std::pair<Fd, Fd> connect(Weather forth, Weather back) {
    auto [first, here] = pair();
    auto [second, there] = pair();
    auto wire = std::make_unique<Wire>();
    wire->ends = {std::move(here), std::move(there)};
    wire->ways[0].from = wire->ways[1].to = wire->ends[0].get();
    wire->ways[1].from = wire->ways[0].to = wire->ends[1].get();
    wire->ways[0].weather = std::move(forth);
    wire->ways[1].weather = std::move(back);
    {
      const std::lock_guard lock(mutex_);
      wires_.push_back(std::move(wire));
    }
    ring();
    return {std::move(first), std::move(second)};
  }

 private:
  /// One direction of a connection.
  struct Way {
    int from = -1;
    int to = -1;
    Weather weather;
    std::vector<std::byte> waiting;
    TimePoint at{};           // when the turn comes
    std::size_t allowed = 0;  // bytes of the turn
    bool full = false;        // the reader has no room
    bool ended = false;       // nothing more comes
    bool over = false;        // and the reader knows
  };
  struct Wire {
    std::array<Fd, 2> ends;
    std::array<Way, 2> ways;
  };
  static constexpr std::size_t kMostWaiting = std::size_t{256} << 10;

  static std::pair<Fd, Fd> pair() {
    int ends[2] = {-1, -1};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    return {Fd(ends[0]), Fd(ends[1])};
  }

  void ring() const {
    const std::uint64_t one = 1;
    EXPECT_EQ(::write(bell_.get(), &one, sizeof one), static_cast<ssize_t>(sizeof one));
  }

  void run(const std::stop_token& stop) {
    std::vector<pollfd> fds;
    while (!stop.stop_requested()) {
      TimePoint due = TimePoint::max();
      fds.assign(1, {.fd = bell_.get(), .events = POLLIN, .revents = 0});
      {
        const std::lock_guard lock(mutex_);
        const auto now = Clock::now();
        for (auto& wire : wires_) {
          for (Way& way : wire->ways) {
            take(way);
            pass(way, now);
            if (!way.ended && way.waiting.size() < kMostWaiting) {
              fds.push_back({.fd = way.from, .events = POLLIN, .revents = 0});
            }
            if (way.full) fds.push_back({.fd = way.to, .events = POLLOUT, .revents = 0});
            if (!way.waiting.empty() && !way.full) due = std::min(due, way.at);
          }
        }
      }
      timespec left{.tv_sec = 1, .tv_nsec = 0};
      if (due != TimePoint::max()) {
        const auto wait = std::clamp<std::chrono::nanoseconds>(
            due - Clock::now(), std::chrono::nanoseconds(0), std::chrono::milliseconds(999));
        left = {.tv_sec = 0, .tv_nsec = wait.count()};
      }
      if (::ppoll(fds.data(), fds.size(), &left, nullptr) > 0 && fds.front().revents != 0) {
        std::uint64_t count = 0;
        EXPECT_EQ(::read(bell_.get(), &count, sizeof count), static_cast<ssize_t>(sizeof count));
      }
    }
  }

  static void take(Way& way) {
    while (!way.ended && way.waiting.size() < kMostWaiting) {
      std::array<std::byte, 16384> part;
      const auto got = ::recv(way.from, part.data(), part.size(), MSG_DONTWAIT);
      if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
      if (got <= 0) {
        way.ended = true;
      } else {
        way.waiting.insert(way.waiting.end(), part.begin(), part.begin() + got);
      }
    }
  }

  static void pass(Way& way, TimePoint now) {
    way.full = false;
    while (!way.waiting.empty() && now >= way.at) {
      if (way.allowed == 0) {
        const Turn turn = way.weather ? way.weather(way.waiting) : Turn{{}, way.waiting.size()};
        way.at = now + turn.wait;
        way.allowed = turn.bytes;
        continue;
      }
      const std::size_t bytes = std::min(way.allowed, way.waiting.size());
      const auto sent = ::send(way.to, way.waiting.data(), bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (sent < 0 && (errno == EAGAIN || errno == EINTR)) {
        way.full = true;
        return;
      }
      if (sent < 0) {  // nobody listens any more
        way.waiting.clear();
        way.ended = true;
        break;
      }
      way.waiting.erase(way.waiting.begin(), way.waiting.begin() + sent);
      way.allowed -= static_cast<std::size_t>(sent);
      if (way.waiting.empty()) way.allowed = 0;
    }
    if (way.ended && way.waiting.empty() && !std::exchange(way.over, true)) {
      ::shutdown(way.to, SHUT_WR);
    }
  }

  Fd bell_;
  std::mutex mutex_;  // guards wires_
  std::vector<std::unique_ptr<Wire>> wires_;
  std::jthread thread_;  // ends first
};

}  // namespace farandole::testing
