/// Several engines as threads of one process, wired like ranks on hosts: shared memory inside a
/// group, TCP between groups. All ranks of a group see one mapping, so that the thread sanitizer
/// sees all of them.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "engine/control/world.h"
#include "engine/engine.h"

namespace farandole::testing {

using Groups = std::vector<std::vector<Rank>>;

/// The name of a parametrised test: 01_2 is ranks 0 and 1 together, and rank 2.
inline std::string world_name(const ::testing::TestParamInfo<Groups>& info) {
  std::string name;
  for (const auto& group : info.param) {
    if (!name.empty()) name += "_";
    for (const Rank rank : group) name += std::to_string(rank);
  }
  return name;
}

/// A connected pair of TCP sockets on the loopback interface.
inline std::pair<Fd, Fd> tcp_pair() {
  const Fd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(::bind(listener.get(), generic, length), 0);
  EXPECT_EQ(::listen(listener.get(), 1), 0);
  EXPECT_EQ(::getsockname(listener.get(), generic, &length), 0);
  Fd one(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::connect(one.get(), generic, length), 0);
  Fd other(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  EXPECT_TRUE(static_cast<bool>(other));
  return {std::move(one), std::move(other)};
}

inline std::pair<Fd, Fd> unix_pair() {
  int ends[2] = {-1, -1};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  return {Fd(ends[0]), Fd(ends[1])};
}

/// One connection between ranks of two groups.
struct Connection {
  Rank first = -1;
  Rank second = -1;
  bool control = false;
  int stream = 0;  ///< of data
};
/// Its two ends.
using Wiring = std::function<std::pair<Fd, Fd>(const Connection&)>;

class Cluster {
 public:
  /// `asleep`: a rank that is there but never runs, as if it was stopped. `prepare`: what is done
  /// with every engine before it starts. `severed`: pairs of ranks, the lower one first, whose data
  /// never arrive, though the connections stand. `wiring`: what connects groups; `streams`: how
  /// often two ranks are connected for data. `pidfds`: ranks of a group have descriptors of each
  /// other's process, which is this one and does not end. `differ`: changes the options of a rank.
  /// `absent`: the data connections of groups are left to whoever makes them later.
  explicit Cluster(Groups groups, EngineOptions base = {}, Rank asleep = -1,
                   const std::function<void(Engine&)>& prepare = {},
                   std::set<std::pair<Rank, Rank>> severed = {}, Wiring wiring = {},
                   int streams = 1, bool pidfds = false,
                   const std::function<void(EngineOptions&)>& differ = {}, bool absent = false)
      : groups_(std::move(groups)),
        severed_(std::move(severed)),
        wiring_(std::move(wiring)),
        streams_(streams),
        pidfds_(pidfds),
        absent_(absent) {
    if (!wiring_) wiring_ = [](const Connection&) { return tcp_pair(); };
    for (const auto& group : groups_) size_ += static_cast<int>(group.size());
    base.size = size_;
    base.groups = groups_;
    base.hosts.assign(static_cast<std::size_t>(size_), "");
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      for (const Rank rank : groups_[g]) {
        base.hosts[static_cast<std::size_t>(rank)] = "host" + std::to_string(g);
      }
    }
    for (Rank rank = 0; rank < size_; ++rank) {
      base.rank = rank;
      EngineOptions own = base;
      if (differ) differ(own);
      engines_.push_back(std::make_unique<Engine>(std::move(own)));
      if (prepare) prepare(*engines_.back());
    }
    for (const auto& group : groups_) wire_group(group);
    wire_network();
    for (Rank rank = 0; rank < size_; ++rank) {
      if (rank == asleep) continue;
      const auto started = (*this)[rank].start();
      EXPECT_TRUE(static_cast<bool>(started)) << (started ? "" : started.error().what());
    }
  }

  ~Cluster() {
    each([](Rank, Engine& engine) { engine.shutdown(); });
    engines_.clear();
    for (const auto& mapping : mappings_) ::munmap(mapping.data(), mapping.size());
  }

  [[nodiscard]] int size() const noexcept { return size_; }
  [[nodiscard]] Engine& operator[](Rank rank) { return *engines_[static_cast<std::size_t>(rank)]; }

  /// Runs `body` for every rank on a thread of its own.
  void each(const std::function<void(Rank, Engine&)>& body) {
    std::vector<std::jthread> threads;
    for (Rank rank = 0; rank < size_; ++rank) {
      if (engines_[static_cast<std::size_t>(rank)]) {
        threads.emplace_back([this, rank, &body] { body(rank, (*this)[rank]); });
      }
    }
  }

  /// One rank ends, and its engine with it, as after an error of its own.
  void end(Rank rank) {
    (*this)[rank].shutdown({.reason = wire::Departure::Reason::Failed, .text = "it ended"});
    engines_[static_cast<std::size_t>(rank)].reset();
  }

  /// What the others see when a rank's process ends: its connections close.
  void cut(Rank rank) { liveness_.erase(rank); }

 private:
  [[nodiscard]] Fd pidfd() const {
    return Fd(pidfds_ ? static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)) : -1);
  }

  void wire_group(const std::vector<Rank>& group) {
    if (group.size() < 2) return;
    const auto local_size = static_cast<int>(group.size());
    const std::size_t each_bytes = (segment_bytes(local_size) + 4095) / 4096 * 4096;
    const std::size_t bytes = each_bytes * group.size();
    void* memory =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    mappings_.push_back({static_cast<std::byte*>(memory), bytes});
    auto segment = [&](std::size_t index) {
      return ShmSegment::share(mappings_.back().subspan(index * each_bytes, each_bytes));
    };
    std::vector<std::array<Fd, 2>> bells;
    for (std::size_t i = 0; i < group.size(); ++i) {
      bells.push_back({Fd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
                       Fd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC))});
    }
    for (std::size_t i = 0; i < group.size(); ++i) {
      Peers& peers = (*this)[group[i]].peers();
      for (std::size_t j = 0; j < group.size(); ++j) {
        if (i == j) continue;
        auto [here, there] = unix_pair();
        liveness_[group[j]].push_back(std::move(there));
        peers.add_local_peer(group[j], segment(j), Fd(::dup(bells[j][0].get())),
                             Fd(::dup(bells[j][1].get())), pidfd(), std::move(here));
      }
    }
    for (std::size_t i = 0; i < group.size(); ++i) {
      (*this)[group[i]].peers().own_segment(segment(i), std::move(bells[i][0]),
                                            std::move(bells[i][1]));
    }
  }

  void wire_network() {
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      for (std::size_t h = g + 1; h < groups_.size(); ++h) {
        for (const Rank a : groups_[g]) {
          for (const Rank b : groups_[h]) connect(a, b);
        }
      }
    }
  }

  void connect(Rank a, Rank b) {
    const ControlTree tree = control_tree(groups_, b);
    const ControlTree mirror = control_tree(groups_, a);
    Fd control_a;
    Fd control_b;
    if (tree.parent == a || mirror.parent == b) {
      auto [one, other] = wiring_({.first = a, .second = b, .control = true});
      control_a = std::move(one);
      control_b = std::move(other);
    }
    std::vector<Fd> data_a;
    std::vector<Fd> data_b;
    if (absent_) {
      (*this)[a].peers().add_absent_peer(b, streams_);
      (*this)[b].peers().add_absent_peer(a, streams_);
    }
    for (int stream = absent_ ? streams_ : 0; stream < streams_; ++stream) {
      auto [one, other] = wiring_({.first = a, .second = b, .stream = stream});
      if (severed_.contains({a, b})) {
        auto [black, hole] = tcp_pair();
        black_holes_.push_back(std::exchange(other, std::move(black)));
        black_holes_.push_back(std::move(hole));
      }
      data_a.push_back(std::move(one));
      data_b.push_back(std::move(other));
    }
    (*this)[a].peers().add_network_peer(b, std::move(control_a), std::move(data_a));
    (*this)[b].peers().add_network_peer(a, std::move(control_b), std::move(data_b));
  }

  Groups groups_;
  std::set<std::pair<Rank, Rank>> severed_;
  std::vector<Fd> black_holes_;
  Wiring wiring_;
  int streams_;
  bool pidfds_;
  bool absent_;
  int size_ = 0;
  std::vector<std::span<std::byte>> mappings_;
  std::map<Rank, std::vector<Fd>> liveness_;
  std::vector<std::unique_ptr<Engine>> engines_;
};

/// How many operations of that rank have gone by the fast path.
inline std::uint64_t fast_operations(const Engine& engine) {
  std::uint64_t sum = 0;
  for (const auto& [path, count] : engine.paths()) {
    if (path == "shm.fast" || path == "tcp.fast") sum += count.operations;
  }
  return sum;
}

/// Every rank runs `body`, and again until so many operations have gone by the fast path. Who waits
/// long for the others, as on a busy machine, rightly leaves that path.
inline void until_fast(Cluster& cluster, std::uint64_t wanted,
                       const std::function<void(Rank, Engine&)>& body) {
  const auto until = Clock::now() + std::chrono::seconds(60);
  do {
    cluster.each(body);
  } while (fast_operations(cluster[0]) < wanted && Clock::now() < until &&
           !::testing::Test::HasFailure());
  EXPECT_GE(fast_operations(cluster[0]), wanted) << "the fast path was not taken";
}

/// Waits at most 30 s; the finished work, or null if the wait timed out.
inline std::shared_ptr<Work> finish(Engine& engine, Handle handle) {
  const auto done = engine.wait(handle, Clock::now() + std::chrono::seconds(30));
  EXPECT_TRUE(done.has_value() && *done) << "no end of handle " << handle;
  if (!done || !*done) return nullptr;
  return engine.take(handle);
}

template <typename T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::Float32;
};
template <>
struct DTypeOf<std::int64_t> {
  static constexpr DType value = DType::Int64;
};

template <typename T>
Tensor tensor_of(std::vector<T>& values) {
  auto* bytes = reinterpret_cast<std::byte*>(values.data());
  return {.in = bytes,
          .out = bytes,
          .dtype = DTypeOf<T>::value,
          .shape = {static_cast<std::int64_t>(values.size())}};
}

/// The same, for a thread that stays until it is over.
inline Submission blocking(Submission submission) {
  submission.mode = Mode::Blocking;
  return submission;
}

/// An in-place allreduce of `values` by that name.
template <typename T>
Submission allreduce_of(std::vector<T>& values, std::string name, bool waited = true) {
  Submission submission;
  submission.kind = Kind::Allreduce;
  submission.name = std::move(name);
  submission.tensors.push_back(tensor_of(values));
  submission.mode = waited ? Mode::Awaited : Mode::Asynchronous;
  return submission;
}

}  // namespace farandole::testing
