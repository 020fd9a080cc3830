// The shared-memory backend between real processes, each with mappings of its own: memory order at
// full speed, without a sanitizer's locks in between.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

#include "backends/shm/shm.h"
#include "patience.h"
#include "shm_script.h"
#include "transport/shm_segment.h"

namespace farandole {
namespace {

using testing::Script;
using testing::ScriptedRank;

/// What a forked rank does; its result is the exit status.
int rank_main(int rank, const std::vector<Fd>& memfds, const Script& script, ShmTuning tuning) {
  const int size = static_cast<int>(memfds.size());
  std::vector<ShmSegment> segments;
  std::vector<ShmMember> by_rank;
  Members members;
  members.self = rank;
  members.groups.emplace_back();
  for (int i = 0; i < size; ++i) {
    auto segment = ShmSegment::map(Fd(::dup(memfds[static_cast<std::size_t>(i)].get())),
                                   segment_bytes(size), segment_base_bytes(size));
    if (!segment) {
      std::fprintf(stderr, "%s\n", segment.error().what().c_str());
      return 2;
    }
    segments.push_back(*std::move(segment));
    const ShmView view(segments.back().bytes(), size);
    by_rank.push_back({view, i, Doorbell(&view.bell(), -1, -1)});
    members.ranks.push_back(i);
    members.groups[0].push_back(i);
  }
  ShmBackend backend(members, by_rank,
                     std::make_shared<ShmPipes>(members.ranks, by_rank, members.self), {}, tuning);
  const std::string problem = ScriptedRank(script, rank, size, backend, testing::drive_all).run();
  if (!problem.empty()) std::fprintf(stderr, "%s\n", problem.c_str());
  return problem.empty() ? 0 : 1;
}

void play(int size, const Script& script, ShmTuning tuning) {
  std::vector<Fd> memfds;
  for (int i = 0; i < size; ++i) {
    memfds.emplace_back(::memfd_create("farandole-test", MFD_CLOEXEC));
    ASSERT_EQ(::ftruncate(memfds.back().get(), static_cast<off_t>(segment_bytes(size))), 0);
  }
  std::vector<pid_t> children;
  for (int rank = 0; rank < size; ++rank) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      ::alarm(60);  // whatever happens, no rank is left behind
      ::_exit(rank_main(rank, memfds, script, tuning));
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = -1;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
  }
}

TEST(ShmProcesses, AnyMixOfOperationsInTinySlots) {
  unsigned seed = 500;
  for (const int size : {2, 4, 8}) {
    play(size, {.seed = seed++, .operations = 400, .pause_one_in = 8},
         {.small_bytes = 256, .chunk_bytes = 192});
  }
}

TEST(ShmProcesses, AnyMixOfOperationsInSlotsOfRealSize) {
  unsigned seed = 600;
  for (const int size : {2, 3}) {
    play(size, {.seed = seed++, .operations = 30, .most_bytes = 800000, .pause_one_in = 0}, {});
  }
}

}  // namespace
}  // namespace farandole
