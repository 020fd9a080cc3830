/// Batches one after another: what the dispatcher starts, steps, refuses and gives back.

#include <gtest/gtest.h>

#include <set>

#include "backends/local/local.h"
#include "engine/execution/dispatcher.h"

namespace farandole {
namespace {

using std::chrono::seconds;

Members alone() { return {.ranks = {0}, .self = 0, .groups = {{0}}}; }

/// Operations that wait for rank 3 until they are told to go on.
class StuckBackend final : public Backend {
 public:
  StuckBackend() : Backend(alone()) {}
  [[nodiscard]] std::string_view name() const noexcept override { return "stuck"; }
  std::unique_ptr<Operation> send(int, std::span<const std::byte>) override { return nullptr; }
  std::unique_ptr<Operation> recv(int, std::span<std::byte>) override { return nullptr; }
  std::unique_ptr<Operation> start(Verb) override { return std::make_unique<Stuck>(*this); }
  Step next = Step::Blocked;
  bool broken = false;
  std::optional<Error> refusal;

 private:
  class Stuck final : public Operation {
   public:
    explicit Stuck(StuckBackend& backend) : backend_(backend) {}
    Result<Step> step() override {
      if (backend_.broken) return Error{.code = Code::PeerLost, .message = "it broke", .peer = 3};
      return backend_.next;
    }
    [[nodiscard]] std::vector<Rank> waiting_for() const override { return {3}; }
    [[nodiscard]] std::optional<Error> refusal() const override { return backend_.refusal; }

   private:
    StuckBackend& backend_;
  };
};

Result<std::unique_ptr<Backend>> no_sets(const SetChange&) {
  return Error{.code = Code::Backend, .message = "no memory left"};
}

Dispatcher::Batch batch_of(std::initializer_list<const char*> names) {
  Dispatcher::Batch batch;
  for (const char* name : names) {
    auto entry = std::make_unique<Entry>();
    entry->name = name;
    auto signature = std::make_shared<Signature>();
    signature->shape = {0};
    entry->signature = signature;
    batch.signatures.push_back(entry->signature);
    batch.entries.push_back(std::move(entry));
  }
  return batch;
}

TEST(Dispatcher, batches_run_one_after_another_in_order) {
  LocalBackend backend(alone());
  Dispatcher dispatcher(backend, no_sets, seconds(30));
  dispatcher.enqueue(batch_of({"a", "b"}));
  dispatcher.enqueue(batch_of({"c"}));
  std::vector<std::string> order;
  const TimePoint now{};
  while (!dispatcher.idle()) {
    auto step = dispatcher.step(now);
    ASSERT_TRUE(static_cast<bool>(step));
    for (const auto& entry : dispatcher.take_completed()) order.push_back(entry->name);
  }
  EXPECT_EQ(order, (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_EQ(dispatcher.paths().at("local").operations, 2U);
}

TEST(Dispatcher, a_started_operation_without_progress_is_overdue_after_its_time) {
  StuckBackend backend;
  Dispatcher dispatcher(backend, no_sets, seconds(30));
  dispatcher.enqueue(batch_of({"allreduce.x"}));
  const TimePoint start{};
  ASSERT_TRUE(static_cast<bool>(dispatcher.step(start)));
  EXPECT_EQ(dispatcher.deadline(), start + seconds(30));
  backend.next = Step::Advanced;
  ASSERT_TRUE(static_cast<bool>(dispatcher.step(start + seconds(20))));
  backend.next = Step::Blocked;
  EXPECT_EQ(dispatcher.deadline(), start + seconds(50));
  ASSERT_TRUE(static_cast<bool>(dispatcher.step(start + seconds(50))));
  EXPECT_FALSE(dispatcher.overdue(start + seconds(49)));
  EXPECT_TRUE(dispatcher.overdue(start + seconds(50)));
  EXPECT_EQ(dispatcher.awaited(), (std::vector<Rank>{3}));
  dispatcher.wait_until(start + seconds(60));
  EXPECT_EQ(dispatcher.deadline(), start + seconds(60));
  EXPECT_FALSE(dispatcher.overdue(start + seconds(59)));
  EXPECT_TRUE(dispatcher.stalled(start + seconds(59)));
  const Error late = dispatcher.stuck(start + seconds(60));
  EXPECT_EQ(late.code, Code::Timeout);
  EXPECT_EQ(late.tensor, "allreduce.x");
  EXPECT_EQ(late.waited_s, 40.0);
  EXPECT_EQ(late.message,
            "'allreduce.x' was started by all ranks but has made no progress for 40 s");
}

TEST(Dispatcher, what_all_members_refuse_is_told_with_its_name_and_counted_on_no_path) {
  StuckBackend backend;
  Dispatcher dispatcher(backend, no_sets, seconds(30));
  dispatcher.enqueue(batch_of({"allgather.x"}));
  dispatcher.enqueue(batch_of({"allreduce.y"}));
  backend.next = Step::Done;
  backend.refusal = Error{.code = Code::Internal, .message = "no memory", .peer = 3};
  ASSERT_EQ(*dispatcher.step(TimePoint{}), Step::Done);
  const auto refusal = dispatcher.take_refusal();
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->tensor, "allgather.x");
  EXPECT_EQ(refusal->peer, 3);
  EXPECT_TRUE(dispatcher.paths().empty());
  backend.refusal.reset();
  ASSERT_EQ(*dispatcher.step(TimePoint{}), Step::Done);
  EXPECT_FALSE(dispatcher.take_refusal());
}

TEST(Dispatcher, never_gives_up_without_a_limit) {
  StuckBackend backend;
  Dispatcher dispatcher(backend, no_sets, Duration::zero());
  dispatcher.enqueue(batch_of({"allreduce.x"}));
  ASSERT_EQ(*dispatcher.step(TimePoint{}), Step::Blocked);
  EXPECT_FALSE(dispatcher.deadline());
  EXPECT_FALSE(dispatcher.stalled(TimePoint{} + seconds(1'000'000)));
}

TEST(Dispatcher, tells_a_log_of_details_what_went_by_which_path) {
  LocalBackend backend(alone());
  Dispatcher dispatcher(backend, no_sets, seconds(30));
  auto batch = batch_of({"a"});
  auto signature = std::make_shared<Signature>();
  signature->shape = {100};
  batch.signatures = {signature};
  batch.entries.front() = nullptr;  // zeros
  dispatcher.enqueue(std::move(batch));
  while (!dispatcher.idle()) ASSERT_TRUE(static_cast<bool>(dispatcher.step(TimePoint{})));
  const auto said = [&](LogLevel level) {
    Log log(0, level, true);
    ::testing::internal::CaptureStdout();
    dispatcher.log_paths(log);
    return ::testing::internal::GetCapturedStdout();
  };
  EXPECT_NE(said(LogLevel::Info).find("data path local: 1 batches, 400 bytes"), std::string::npos);
  EXPECT_EQ(said(LogLevel::Warning), "");
}

TEST(Dispatcher, how_far_it_has_come_is_known_by_position) {
  StuckBackend backend;
  Dispatcher dispatcher(backend, no_sets, seconds(30));
  const Position before{Position::Stream::Dispatches, 4};
  const Position mine{Position::Stream::Dispatches, 5};
  const Position after{Position::Stream::Dispatches, 7};
  auto batch = batch_of({"allreduce.x"});
  batch.position = mine;
  dispatcher.enqueue(std::move(batch));
  const TimePoint start{};
  ASSERT_TRUE(static_cast<bool>(dispatcher.step(start)));
  EXPECT_EQ(dispatcher.standing(before, start).state, Standing::State::Past);
  const Standing here = dispatcher.standing(mine, start + seconds(3));
  EXPECT_EQ(here.state, Standing::State::In);
  EXPECT_EQ(here.quiet, seconds(3));
  EXPECT_EQ(here.waits_for, (std::vector<Rank>{3}));
  EXPECT_EQ(dispatcher.standing(after, start).state, Standing::State::Before);
  EXPECT_EQ(dispatcher.standing({Position::Stream::Proposals, 1}, start).state,
            Standing::State::Before);
  backend.next = Step::Done;
  ASSERT_TRUE(static_cast<bool>(dispatcher.step(start + seconds(9))));
  const Standing done = dispatcher.standing(mine, start + seconds(10));
  EXPECT_EQ(done.state, Standing::State::Past);
  EXPECT_EQ(done.quiet, seconds(1));
  EXPECT_TRUE(done.waits_for.empty());
}

TEST(Dispatcher, an_error_of_the_backend_names_the_tensor_and_the_rest_can_be_taken_back) {
  StuckBackend backend;
  Dispatcher dispatcher(backend, no_sets, seconds(30));
  dispatcher.enqueue(batch_of({"allreduce.x"}));
  dispatcher.enqueue(batch_of({"allreduce.y"}));
  backend.broken = true;
  const auto step = dispatcher.step(TimePoint{});
  ASSERT_FALSE(static_cast<bool>(step));
  EXPECT_EQ(step.error().tensor, "allreduce.x");
  EXPECT_EQ(step.error().peer, 3);
  EXPECT_EQ(dispatcher.take_all().size(), 2U);
  EXPECT_TRUE(dispatcher.idle());
}

Dispatcher::Batch change_of(Kind kind, std::int32_t id, std::vector<Rank> ranks) {
  Dispatcher::Batch batch = batch_of({"process_set"});
  auto signature = std::make_shared<Signature>();
  signature->kind = kind;
  batch.signatures = {signature};
  batch.entries.front()->work = std::make_shared<Work>();
  batch.change = {
      .id = id, .generation = 1, .added = kind == Kind::AddProcessSet, .ranks = std::move(ranks)};
  batch.value = id;
  return batch;
}

/// Rounds of a process set are numbered by themselves, and begin anew with the next set of its
/// number.
TEST(Dispatcher, positions_of_one_set_say_nothing_about_another) {
  StuckBackend backend;
  Dispatcher dispatcher(backend, no_sets, seconds(30));
  const auto proposed = [](std::uint32_t generation, std::uint32_t round) {
    return Position{Position::Stream::Proposals, proposed_number(generation, round, 1)};
  };
  const TimePoint start{};
  backend.next = Step::Done;
  for (const Position& position : {proposed(0, 7), proposed(3, 900), proposed(0, 8)}) {
    auto batch = batch_of({"allreduce.x"});
    batch.position = position;
    dispatcher.enqueue(std::move(batch));
    ASSERT_EQ(*dispatcher.step(start), Step::Done);
  }
  const auto state = [&](const Position& position) {
    return dispatcher.standing(position, start).state;
  };
  EXPECT_EQ(state(proposed(0, 8)), Standing::State::Past);
  EXPECT_EQ(state(proposed(0, 9)), Standing::State::Before);
  EXPECT_EQ(state(proposed(3, 900)), Standing::State::Past);
  EXPECT_EQ(state(proposed(3, 901)), Standing::State::Before);
  EXPECT_EQ(state(proposed(2, 1)), Standing::State::Before);
  EXPECT_EQ(state({Position::Stream::Dispatches, 1}), Standing::State::Before);
}

TEST(Dispatcher, positions_of_a_set_are_forgotten_with_it) {
  LocalBackend world(alone());
  Dispatcher dispatcher(
      world,
      [](const SetChange&) -> Result<std::unique_ptr<Backend>> {
        return std::unique_ptr<Backend>(std::make_unique<LocalBackend>(alone()));
      },
      seconds(30));
  const TimePoint now{};
  const auto finish = [&](Dispatcher::Batch batch) {
    dispatcher.enqueue(std::move(batch));
    while (!dispatcher.idle()) ASSERT_TRUE(static_cast<bool>(dispatcher.step(now)));
  };
  finish(change_of(Kind::AddProcessSet, 4, {0}));
  const Position last{Position::Stream::Proposals, proposed_number(1, 900, 1)};
  auto batch = batch_of({"allreduce.x"});
  batch.process_set = 4;
  batch.position = last;
  finish(std::move(batch));
  EXPECT_EQ(dispatcher.standing(last, now).state, Standing::State::Past);
  finish(change_of(Kind::RemoveProcessSet, 4, {0}));
  EXPECT_EQ(dispatcher.standing(last, now).state, Standing::State::Before);
}

TEST(OperationNumbers, are_different_for_all_sets_that_can_meet) {
  EXPECT_EQ(proposed_number(0, 5, 1), (5U << 16) + 1);
  std::set<std::uint64_t> numbers{proposed_number(0, 5, 1)};
  for (std::uint32_t generation = 1; generation < 16384; ++generation) {
    EXPECT_TRUE(numbers.insert(proposed_number(generation, 5, 1)).second) << generation;
  }
  EXPECT_NE(proposed_number(16384, 5, 1), proposed_number(0, 5, 1));
  EXPECT_EQ(
      describe(OperationTag{2} << kTagShift | proposed_number(6, 70000, 2)),
      "part 2 of what was agreed in round 70000 of the process set that was added as number 6");
}

TEST(Dispatcher, sets_open_and_close_at_their_place_in_the_order) {
  StuckBackend world;
  int opened = 0;
  Dispatcher dispatcher(
      world,
      [&](const SetChange& added) -> Result<std::unique_ptr<Backend>> {
        opened = added.id;
        return std::unique_ptr<Backend>(std::make_unique<LocalBackend>(alone()));
      },
      seconds(30));
  dispatcher.enqueue(batch_of({"before"}));
  dispatcher.enqueue(change_of(Kind::AddProcessSet, 4, {0}));
  dispatcher.enqueue(change_of(Kind::AddProcessSet, 5, {1, 2}));
  dispatcher.enqueue(change_of(Kind::RemoveProcessSet, 4, {0}));
  const TimePoint now{};
  EXPECT_EQ(*dispatcher.step(now), Step::Blocked);
  EXPECT_EQ(opened, 0) << "what came before is not over";
  world.next = Step::Done;
  EXPECT_EQ(*dispatcher.step(now), Step::Done);
  (void)dispatcher.take_completed();
  for (const std::int64_t id : {4, 5, 4}) {
    EXPECT_EQ(*dispatcher.step(now), Step::Done);
    const auto completed = dispatcher.take_completed();
    ASSERT_EQ(completed.size(), 1U);
    EXPECT_EQ(completed.front()->work->value, id);
  }
  EXPECT_EQ(opened, 4) << "this rank is no member of set 5";
  EXPECT_TRUE(dispatcher.idle());
}

TEST(Dispatcher, a_set_that_cannot_be_opened_ends_the_world_with_the_reason) {
  StuckBackend world;
  Dispatcher dispatcher(world, no_sets, seconds(30));
  dispatcher.enqueue(change_of(Kind::AddProcessSet, 4, {0}));
  const auto step = dispatcher.step(TimePoint{});
  ASSERT_FALSE(step);
  EXPECT_EQ(step.error().code, Code::Backend);
  EXPECT_NE(step.error().what().find("cannot open process set 4"), std::string::npos);
  EXPECT_NE(step.error().what().find("no memory left"), std::string::npos);
  EXPECT_EQ(dispatcher.take_all().size(), 1U);
}

TEST(Dispatcher, a_join_ends_after_the_batches_before_it) {
  StuckBackend world;
  Dispatcher dispatcher(world, no_sets, seconds(30));
  dispatcher.enqueue(batch_of({"before"}));
  Dispatcher::Batch joined;
  joined.entries.push_back(std::make_unique<Entry>());
  joined.entries.front()->work = std::make_shared<Work>();
  joined.value = 3;
  dispatcher.enqueue(std::move(joined));
  EXPECT_EQ(*dispatcher.step(TimePoint{}), Step::Blocked);
  EXPECT_TRUE(dispatcher.take_completed().empty());
  world.next = Step::Done;
  EXPECT_EQ(*dispatcher.step(TimePoint{}), Step::Done);
  EXPECT_EQ(dispatcher.take_completed().size(), 1U);
  EXPECT_EQ(*dispatcher.step(TimePoint{}), Step::Done);
  EXPECT_EQ(dispatcher.take_completed().front()->work->value, 3);
}

TEST(Dispatcher, a_joined_rank_takes_part_with_zeros) {
  LocalBackend backend(alone());
  Dispatcher dispatcher(backend, no_sets, seconds(30));
  Dispatcher::Batch batch;
  auto signature = std::make_shared<Signature>();
  signature->shape = {100};
  batch.signatures.push_back(std::move(signature));
  batch.entries.push_back(nullptr);
  dispatcher.enqueue(std::move(batch));
  while (!dispatcher.idle()) ASSERT_TRUE(static_cast<bool>(dispatcher.step(TimePoint{})));
  EXPECT_TRUE(dispatcher.take_completed().empty());
}

}  // namespace
}  // namespace farandole
