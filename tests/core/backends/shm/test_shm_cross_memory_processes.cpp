// Members that read each other's memory, as processes: results, a permission that is refused or
// withdrawn, a process that ends half-way.
#include <gtest/gtest.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <functional>

#include "backends/shm/shm.h"
#include "patience.h"
#include "shm_script.h"
#include "transport/shm_segment.h"

namespace farandole {
namespace {

using testing::Script;
using testing::ScriptedRank;
using Bytes = std::vector<std::byte>;

constexpr ShmTuning kTiny{.small_bytes = 256,
                          .chunk_bytes = 192,
                          .cross_memory_bytes = 1,
                          .cross_memory_broadcast_bytes = 1000000};
constexpr std::size_t kBytes = 1000;

/// From now on the kernel refuses this process to read another one's memory.
bool refuse_reading() {
  const auto offset = static_cast<std::uint32_t>(offsetof(seccomp_data, nr));
  std::array<sock_filter, 4> filter{{
      {BPF_LD | BPF_W | BPF_ABS, 0, 0, offset},
      {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, SYS_process_vm_readv},
      {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | EPERM},
      {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW},
  }};
  const sock_fprog program{static_cast<unsigned short>(filter.size()), filter.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

Fd pidfd_of(int socket) {
  ucred peer{};
  socklen_t length = sizeof peer;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) return {};
  return Fd(static_cast<int>(::syscall(SYS_pidfd_open, peer.pid, 0)));
}

sockaddr_un address_of(pid_t test, int rank) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "farandole-test-%d-%d", test,
                rank);
  return address;
}

/// A rank in a process of its own, connected to all others as bootstrap does it.
class Process {
 public:
  Process(int rank, const std::vector<Fd>& memfds, pid_t test, ShmTuning tuning = kTiny)
      : size_(static_cast<int>(memfds.size())) {
    for (const Fd& memfd : memfds) {
      auto segment =
          ShmSegment::map(Fd(::dup(memfd.get())), segment_bytes(size_), segment_base_bytes(size_));
      if (segment) segments_.push_back(*std::move(segment));
    }
    token_.publish(ShmView(segments_[static_cast<std::size_t>(rank)].bytes(), size_).card());
    connect(rank, test);
    Members members;
    std::vector<ShmMember> by_rank;
    members.self = rank;
    members.groups.emplace_back();
    for (int i = 0; i < size_; ++i) {
      const auto index = static_cast<std::size_t>(i);
      const ShmView view(segments_[index].bytes(), size_);
      const PeerMemory memory =
          i == rank ? PeerMemory() : PeerMemory::of(pidfds_[index].get(), sockets_[index].get());
      by_rank.push_back({view, i, Doorbell(&view.bell(), -1, -1), nullptr, memory});
      members.ranks.push_back(i);
      members.groups[0].push_back(i);
    }
    backend_ = std::make_unique<ShmBackend>(
        members, by_rank, std::make_shared<ShmPipes>(members.ranks, by_rank, rank), ShmChannelUse{},
        tuning);
  }

  [[nodiscard]] ShmBackend& backend() { return *backend_; }
  [[nodiscard]] int pidfd(int rank) const { return pidfds_[static_cast<std::size_t>(rank)].get(); }

  /// An allgather; how it went, or what went wrong.
  std::string gather(std::size_t bytes = kBytes) {
    const int rank = backend_->members().self;
    const Bytes mine(bytes, static_cast<std::byte>(rank + 1));
    Bytes all(bytes * static_cast<std::size_t>(size_));
    const auto operation = start_gather(mine, all);
    if (auto done = testing::drive_all({operation.get()}); !done) return done.error().what();
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (all[i] != static_cast<std::byte>(i / bytes + 1)) return "wrong bytes";
    }
    return std::string(operation->path());
  }
  std::unique_ptr<Operation> start_gather(const Bytes& mine, Bytes& all) {
    GatherPlan plan;
    plan.in = {mine};
    for (std::size_t m = 0; m < static_cast<std::size_t>(size_); ++m) {
      plan.out.push_back({std::span(all).subspan(m * mine.size(), mine.size())});
    }
    return backend_->start(std::move(plan));
  }

 private:
  static MemoryToken make_token() {
    auto token = MemoryToken::make();
    if (!token) std::abort();
    return *std::move(token);
  }

  void connect(int rank, pid_t test) {
    sockets_.resize(static_cast<std::size_t>(size_));
    pidfds_.resize(static_cast<std::size_t>(size_));
    const Fd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_un own = address_of(test, rank);
    ::bind(listener.get(), reinterpret_cast<const sockaddr*>(&own), sizeof own);
    ::listen(listener.get(), size_);
    for (int other = 0; other < rank; ++other) {
      Fd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
      const sockaddr_un theirs = address_of(test, other);
      const auto* generic = reinterpret_cast<const sockaddr*>(&theirs);
      while (::connect(socket.get(), generic, sizeof theirs) != 0) ::sched_yield();  // see alarm()
      if (::write(socket.get(), &rank, sizeof rank) != sizeof rank) std::abort();
      pidfds_[static_cast<std::size_t>(other)] = pidfd_of(socket.get());
      sockets_[static_cast<std::size_t>(other)] = std::move(socket);
    }
    for (int other = rank + 1; other < size_; ++other) {
      Fd socket(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
      int who = 0;
      if (::read(socket.get(), &who, sizeof who) != sizeof who) std::abort();
      pidfds_[static_cast<std::size_t>(who)] = pidfd_of(socket.get());
      sockets_[static_cast<std::size_t>(who)] = std::move(socket);
    }
  }

  int size_;
  std::vector<ShmSegment> segments_;
  MemoryToken token_ = make_token();
  std::vector<Fd> sockets_;  // by rank
  std::vector<Fd> pidfds_;   // by rank
  std::unique_ptr<ShmBackend> backend_;
};

using Body = std::function<std::string(int rank, Process& process)>;

/// Runs the body in one process for each rank. It returns what went wrong. `fallen`: the rank that
/// ends itself by a signal.
void run(int size, const Body& body, ShmTuning tuning = kTiny, int fallen = -1) {
  std::vector<Fd> memfds;
  for (int rank = 0; rank < size; ++rank) {
    memfds.emplace_back(::memfd_create("farandole-test", MFD_CLOEXEC));
    ASSERT_EQ(::ftruncate(memfds.back().get(), static_cast<off_t>(segment_bytes(size))), 0);
  }
  const pid_t test = ::getpid();
  std::vector<pid_t> children;
  for (int rank = 0; rank < size; ++rank) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      ::alarm(60);  // whatever happens, no rank is left behind
      Process process(rank, memfds, test, tuning);
      const std::string problem = body(rank, process);
      if (!problem.empty()) std::fprintf(stderr, "rank %d: %s\n", rank, problem.c_str());
      ::_exit(problem.empty() ? 0 : 1);
    }
    children.push_back(child);
  }
  for (int rank = 0; rank < size; ++rank) {
    int status = -1;
    const pid_t child = children[static_cast<std::size_t>(rank)];
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    const bool ended = rank == fallen ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL
                                      : WIFEXITED(status) && WEXITSTATUS(status) == 0;
    EXPECT_TRUE(ended) << "rank " << rank << ": status " << status;
  }
}

std::string unless(const std::string& expected, const std::string& got) {
  return got == expected ? "" : "went by '" + got + "' where '" + expected + "' was expected";
}

/// Where the machine allows no process to read another one, this is about the slots alone.
std::string readable() {
  static const std::string path = [] {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(60);
      ::pause();
    }
    std::byte mine{};
    const iovec here{&mine, 1};
    const iovec there{&mine, 1};
    const bool read = ::process_vm_readv(child, &here, 1, &there, 1, 0) == 1;
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    return read ? "shm.direct" : "shm.large";
  }();
  return path;
}

TEST(CrossMemoryProcesses, AnyMixOfOperations) {
  unsigned seed = 700;
  for (const int size : {2, 3, 4, 5}) {
    const Script script{.seed = seed++, .operations = 200, .pause_one_in = 8};
    run(size, [&](int rank, Process& process) {
      return ScriptedRank(script, rank, size, process.backend(), testing::drive_all).run();
    });
  }
  const Script script{.seed = seed, .operations = 30, .most_bytes = 3000000, .pause_one_in = 0};
  run(
      2,
      [&](int rank, Process& process) {
        return ScriptedRank(script, rank, 2, process.backend(), testing::drive_all).run();
      },
      ShmTuning{});
}

TEST(CrossMemoryProcesses, MemoryIsReadWhereThatIsAllowed) {
  const std::string expected = readable();
  run(3, [&](int, Process& process) {
    for (const std::size_t bytes : {1000U, 65537U, 1500001U}) {
      if (auto problem = unless(expected, process.gather(bytes)); !problem.empty()) return problem;
      if (expected != "shm.direct") break;
    }
    return std::string();
  });
}

TEST(CrossMemoryProcesses, IfOneRankMayNotReadAllTakeTheSlots) {
  if (readable() != "shm.direct") GTEST_SKIP() << "no process may read another one here";
  run(3, [](int rank, Process& process) -> std::string {
    if (rank == 1 && !refuse_reading()) return "no filter of system calls";
    auto problem = unless("shm.large", process.gather());
    return problem.empty() ? unless("", process.gather()) : problem;  // it is not tried again
  });
}

TEST(CrossMemoryProcesses, IfThePermissionIsWithdrawnAllTakeTheSlots) {
  const std::string expected = readable();
  if (expected != "shm.direct") GTEST_SKIP() << "no process may read another one here";
  run(3, [&](int rank, Process& process) -> std::string {
    if (auto problem = unless(expected, process.gather()); !problem.empty()) return problem;
    if (rank == 2 && !refuse_reading()) return "no filter of system calls";
    if (auto problem = unless("shm.large", process.gather()); !problem.empty()) return problem;
    return unless("", process.gather());
  });
}

TEST(CrossMemoryProcesses, ARankThatDiesAfterItsNoticeIsWaitedFor) {
  if (readable() != "shm.direct") GTEST_SKIP() << "no process may read another one here";
  run(
      3,
      [](int rank, Process& process) -> std::string {
        if (auto problem = unless("shm.direct", process.gather()); !problem.empty()) return problem;
        const Bytes mine(kBytes);
        Bytes all(3 * kBytes);
        const auto operation = process.start_gather(mine, all);
        if (auto step = operation->step(); !step) return step.error().what();
        if (rank == 1) ::kill(::getpid(), SIGKILL);
        pollfd ended{.fd = process.pidfd(1), .events = POLLIN, .revents = 0};
        if (::poll(&ended, 1, 30000) != 1) return "rank 1 goes on";
        // The engine hears of the end by itself; here the operation must neither end nor fail.
        const TimePoint until = Clock::now() + std::chrono::milliseconds(100);
        Step last = Step::Advanced;
        while (last == Step::Advanced || Clock::now() < until) {
          const auto step = operation->step();
          if (!step) return step.error().what();
          last = *step;
          if (last == Step::Done) return "came to an end";
        }
        const auto missing = operation->waiting_for();
        return std::find(missing.begin(), missing.end(), 1) == missing.end() ? "waits for another"
                                                                             : "";
      },
      kTiny, 1);
}

TEST(CrossMemoryProcesses, AnEndedProcessIsNotAlive) {
  int ends[2] = {-1, -1};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const Fd own(ends[0]);
  const Fd other(ends[1]);
  const PeerMemory nobody = PeerMemory::of(-1, -1);
  EXPECT_FALSE(nobody.reachable());
  EXPECT_FALSE(nobody.alive());
  const PeerMemory self = PeerMemory::of(-1, own.get());  // made by this process
  EXPECT_TRUE(self.reachable());
  EXPECT_TRUE(self.alive());
  if (readable() != "shm.direct") GTEST_SKIP() << "no process may read another one here";
  std::byte to{};
  const PeerMemory::Part part{&to, reinterpret_cast<std::uintptr_t>(&to), 1};
  EXPECT_EQ(self.read(std::span(&part, 1)), 0);
  EXPECT_EQ(nobody.read(std::span(&part, 1)), ESRCH);
  const PeerMemory::Part wrong{&to, 8, 1};
  EXPECT_EQ(self.read(std::span(&wrong, 1)), EFAULT);
}

}  // namespace
}  // namespace farandole
