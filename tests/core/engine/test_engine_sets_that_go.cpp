/// A proposal is open in a process set while all ranks remove it, and another set gets its number.

#include <gtest/gtest.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "cluster.h"
#include "set_calls.h"

namespace farandole::testing {
namespace {

using std::chrono::milliseconds;

/// Stops a thread where it is, as a busy machine may.
class Stopper {
 public:
  Stopper() {
    struct sigaction action{};
    action.sa_handler = [](int) {
      stopped_ = true;
      while (wanted_) {
        const timespec moment{.tv_sec = 0, .tv_nsec = 1'000'000};
        ::nanosleep(&moment, nullptr);
      }
      stopped_ = false;
    };
    ::sigaction(SIGUSR1, &action, &before_);
  }
  ~Stopper() { ::sigaction(SIGUSR1, &before_, nullptr); }
  Stopper(const Stopper&) = delete;
  Stopper& operator=(const Stopper&) = delete;

  static void stop(std::jthread& thread) {
    wanted_ = true;
    ::pthread_kill(thread.native_handle(), SIGUSR1);
    while (!stopped_) std::this_thread::yield();
  }
  static void go_on() { wanted_ = false; }

 private:
  static inline std::atomic<bool> wanted_{false};
  static inline std::atomic<bool> stopped_{false};
  struct sigaction before_{};
};

/// It has nothing to do for now: it is asleep at ten looks in a row, or has ended.
void wait_until_asleep(pid_t thread) {
  for (int looks = 0; looks < 10; ++looks) {
    std::this_thread::sleep_for(milliseconds(1));
    std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
    std::string line;
    if (!std::getline(file, line)) return;
    const std::size_t name_end = line.rfind(") ");
    if (name_end == std::string::npos || line[name_end + 2] != 'S') looks = -1;
  }
}

/// Set 1 has ranks 1 and 2. A thread of rank 1 proposes there, and is stopped while all ranks
/// remove the set and add another one, which gets its number.
class SetThatGoes {
 public:
  explicit SetThatGoes(int size, Ranks next) : next_(std::move(next)) {
    groups_.emplace_back();
    for (Rank rank = 0; rank < size; ++rank) groups_[0].push_back(rank);
    cluster_ = std::make_unique<Cluster>(groups_, with_sets({{1, 2}}));
  }
  Engine& operator[](Rank rank) { return (*cluster_)[rank]; }
  Cluster& cluster() { return *cluster_; }

  /// `proposes` runs on that thread; `meanwhile` while it is stopped.
  void run(const std::function<void()>& proposes, const std::function<void()>& meanwhile = {}) {
    const Stopper stopper;
    std::atomic<pid_t> proposer{0};
    std::jthread thread([&] {
      proposer = ::gettid();
      proposes();
    });
    while (proposer == 0) std::this_thread::yield();
    wait_until_asleep(proposer);  // its proposal is open
    change(1);
    std::this_thread::sleep_for(milliseconds(10));  // the coordinator has heard of it
    Stopper::stop(thread);
    if (meanwhile) meanwhile();
    for (Rank rank = 0; rank < cluster_->size(); ++rank) {
      if (rank != 1) change(rank);
    }
    std::vector<std::jthread> others;
    for (Rank rank = 0; rank < cluster_->size(); ++rank) {
      if (rank != 1) others.emplace_back([this, rank] { end(rank); });
    }
    std::this_thread::sleep_for(milliseconds(60));
    Stopper::go_on();
    thread.join();
    end(1);
  }

 private:
  void change(Rank rank) {
    for (Submission submission : {Submission{.kind = Kind::RemoveProcessSet, .root = 1},
                                  Submission{.kind = Kind::AddProcessSet, .ranks = next_}}) {
      const auto handle = (*this)[rank].submit(std::move(submission));
      ASSERT_TRUE(static_cast<bool>(handle)) << handle.error().what();
      const std::lock_guard lock(mutex_);
      handles_[rank].push_back(*handle);
    }
  }
  void end(Rank rank) {
    std::vector<Handle> handles;
    {
      const std::lock_guard lock(mutex_);
      handles = handles_[rank];
    }
    for (const Handle handle : handles) {
      const auto work = finish((*this)[rank], handle);
      EXPECT_TRUE(work && !work->error) << (work ? work->error->what() : "");
    }
  }

  Ranks next_;
  Groups groups_;
  std::unique_ptr<Cluster> cluster_;
  std::mutex mutex_;  // guards the handles
  std::map<Rank, std::vector<Handle>> handles_;
};

TEST(EngineFastSets, a_refused_proposal_of_a_set_that_has_gone_is_no_operation_of_the_next_one) {
  for (int attempt = 0; attempt < 5; ++attempt) {
    SetThatGoes world(3, {0, 1});
    world.cluster().each([&](Rank rank, Engine& engine) {
      for (int i = 0; rank > 0 && i < 6; ++i) expect_sum(engine, 1, {1, 2}, "x", 4, 1);
    });
    std::optional<Error> error;
    std::vector<float> values(4, 100.0F);
    world.run([&] {
      Submission submission = allreduce_of(values, "x");
      submission.process_set = 1;
      error = stay(world[1], std::move(submission));
    });
    ASSERT_TRUE(error);
    EXPECT_NE(error->what().find("Process set has been removed"), std::string::npos)
        << error->what();
    world.cluster().each([&](Rank rank, Engine& engine) {
      if (rank < 2) expect_sum(engine, 1, {0, 1}, "x", 4, 3);
    });
  }
}

/// With data that come behind the proposal: it runs in the set that has agreed on it.
TEST(EngineFastSets, what_was_agreed_on_runs_though_another_set_has_the_number) {
  SetThatGoes world(4, {0, 1, 3});
  std::atomic<bool> agreed{false};  // of the last exchange of rank 2
  const auto exchange = [&](Rank rank) {
    std::vector<float> values(200'000, static_cast<float>(rank));
    Submission submission = allreduce_of(values, "a");
    submission.kind = Kind::Alltoall;
    submission.process_set = 1;
    submission.tensors[0].out = nullptr;
    submission.tensors[0].splits = {100'000, 100'000};
    const auto handle = world[rank].submit(blocking(std::move(submission)));
    if (rank == 2) agreed = true;  // it is under way, or done
    ASSERT_TRUE(static_cast<bool>(handle)) << handle.error().what();
    const auto work = finish(world[rank], *handle);
    ASSERT_TRUE(work);
    ASSERT_FALSE(work->error) << work->error->what();
    const auto* got = reinterpret_cast<const float*>(work->outputs.front().buffer.data());
    EXPECT_EQ(got[0], 1.0F);
    EXPECT_EQ(got[199'999], 2.0F);
  };
  world.cluster().each([&](Rank rank, Engine&) {
    for (int i = 0; (rank == 1 || rank == 2) && i < 6; ++i) exchange(rank);
  });
  agreed = false;
  std::jthread other;
  world.run([&] { exchange(1); },
            [&] {
              other = std::jthread([&] { exchange(2); });
              while (!agreed) std::this_thread::sleep_for(milliseconds(1));
            });
}

}  // namespace
}  // namespace farandole::testing
