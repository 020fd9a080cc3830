/// A test that needs a process of its own, with another environment, or beside this one.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

namespace farandole::testing {

/// What a program answers whose one test has run to its end: none that had no test does.
inline constexpr int kRan = 17;
inline void end_of_child() { ::_exit(::testing::Test::HasFailure() ? 1 : kRan); }

/// Runs a disabled test of this program as a program of its own, with more environment.
inline int run_again(const std::string& test, const std::vector<std::string>& settings) {
  std::vector<std::string> words{"/proc/self/exe", "--gtest_filter=" + test,
                                 "--gtest_also_run_disabled_tests"};
  std::vector<std::string> environment = settings;
  for (char** one = environ; *one != nullptr; ++one) environment.emplace_back(*one);
  const auto pointers = [](std::vector<std::string>& texts) {
    std::vector<char*> found;
    for (std::string& text : texts) found.push_back(text.data());
    found.push_back(nullptr);
    return found;
  };
  const auto arguments = pointers(words);
  const auto variables = pointers(environment);
  const pid_t child = ::fork();
  if (child == 0) {
    ::execve(words[0].c_str(), arguments.data(), variables.data());
    ::_exit(127);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace farandole::testing
