/// A rank without memory for its result: who is told what, and what goes on.

#include <set>

#include "cluster.h"

namespace farandole::testing {
namespace {

const std::vector<Groups> kWorlds{{{0, 1, 2}}, {{0}, {1}, {2}}, {{0, 1}, {2}}};
constexpr Rank kPoor = 1;

class NoMemory : public ::testing::TestWithParam<Groups> {};
INSTANTIATE_TEST_SUITE_P(Worlds, NoMemory, ::testing::ValuesIn(kWorlds), world_name);

/// Each rank brings `rows` rows; one of them has no memory for what comes.
std::optional<Error> gather(Engine& engine, Rank rank, Kind kind, std::vector<float>& rows,
                            bool poor) {
  Submission submission;
  submission.kind = kind;
  submission.name = "x";
  submission.tensors.push_back(tensor_of(rows));
  submission.tensors.front().out = nullptr;
  submission.mode = Mode::Awaited;
  if (poor && rank == kPoor) {
    submission.provide = [](std::size_t, const Shape&, DType) -> std::byte* { return nullptr; };
  }
  auto handle = engine.submit(std::move(submission));
  EXPECT_TRUE(static_cast<bool>(handle)) << handle.error().what();
  if (!handle) return handle.error();
  const auto work = finish(engine, *handle);
  EXPECT_TRUE(work);
  return work ? work->error : std::nullopt;
}

std::string host_of_poor(const Groups& groups) {
  return groups.front().size() > 1 ? "host0" : "host1";
}

TEST_P(NoMemory, for_a_large_result_fails_the_operation_on_all_ranks_and_nothing_else) {
  for (const Kind kind : {Kind::Allgather, Kind::Alltoall}) {
    Cluster cluster(GetParam());
    std::mutex mutex;
    std::set<std::string> texts;
    cluster.each([&](Rank rank, Engine& engine) {
      std::vector<float> rows(3 * 1024 * 1024, 1.0F);
      const auto error = gather(engine, rank, kind, rows, true);
      ASSERT_TRUE(error) << "rank " << rank;
      EXPECT_EQ(error->code, Code::Internal);
      {
        const std::lock_guard lock(mutex);
        texts.insert(error->what());
      }
      EXPECT_FALSE(gather(engine, rank, kind, rows, false)) << "the world goes on";
    });
    const std::string operation = kind == Kind::Allgather ? "allgather.x" : "alltoall.x";
    const std::string bytes = kind == Kind::Allgather ? "37748736" : "12582912";
    EXPECT_EQ(texts, (std::set<std::string>{"rank 1 on host " + host_of_poor(GetParam()) + ": " +
                                            operation + ": no memory for a result of " + bytes +
                                            " bytes"}));
  }
}

TEST_P(NoMemory, for_a_small_result_ends_the_world_with_all_there_is_to_say) {
  Cluster cluster(GetParam());
  cluster.each([&](Rank rank, Engine& engine) {
    std::vector<float> rows(4, 1.0F);
    const auto error = gather(engine, rank, Kind::Allgather, rows, true);
    if (!error) return;  // it had its result before
    EXPECT_EQ(error->what(), "rank 1 on host " + host_of_poor(GetParam()) +
                                 ": allgather.x: no memory for a result of 48 bytes, shape [12]");
  });
}

}  // namespace
}  // namespace farandole::testing
