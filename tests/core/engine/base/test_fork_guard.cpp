/// A forked child: what it has of the engine.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/fork_guard.h"

namespace farandole {
namespace {

TEST(ForkGuard, a_child_loses_the_descriptors_and_knows_it) {
  ForkGuard guard;
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  guard.cover({ends[1]});
  const pid_t child = ::fork();
  if (child == 0) {
    // The number is still valid (its owner will close it), but it is not the pipe any more.
    const bool fine = guard.in_child() && ::write(ends[1], "x", 1) == 1;
    ::pause();  // lives on, as a forked data loader does
    ::_exit(fine ? 0 : 1);
  }
  EXPECT_FALSE(guard.in_child());
  ::close(ends[1]);
  char byte;
  EXPECT_EQ(::read(ends[0], &byte, 1), 0) << "the child kept the pipe open, or wrote into it";
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  ::waitpid(child, nullptr, 0);
  ::close(ends[0]);
}

}  // namespace
}  // namespace farandole
