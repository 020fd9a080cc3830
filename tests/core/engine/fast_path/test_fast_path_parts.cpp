/// The parts of the fast path by themselves: what members bring to a proposal, lanes, the call.

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "backends/local/local.h"
#include "cluster.h"
#include "engine/fast_path/contributions.h"
#include "engine/fast_path/fast_path.h"
#include "engine/fast_path/lanes.h"

namespace farandole::testing {
namespace {

/// The members of a set that is one host, and what each brings.
class Host {
 public:
  explicit Host(int size) {
    Members members{.ranks = {}, .self = 0, .groups = {{}}};
    for (int rank = 0; rank < size; ++rank) {
      members.ranks.push_back(rank);
      members.groups.front().push_back(rank);
      boards_.push_back(std::make_unique<ProposalBoard>());
    }
    for (int self = 0; self < size; ++self) {
      std::vector<Proposals::Member> ends;
      for (auto& board : boards_) ends.push_back({.board = board.get(), .bell = {}});
      members.self = self;
      all_.push_back(std::make_unique<One>(std::move(ends), members));
    }
  }

  Contributions& operator[](std::size_t member) { return all_[member]->contributions; }

  /// The operation of that member, which it proposes if it can.
  bool propose(std::size_t member, const Submission& submission) {
    One& one = *all_[member];
    EXPECT_TRUE(one.contributions.begin(submission.kind, one.proposals, one.backend));
    one.contributions.signature().kind = submission.kind;
    if (!one.contributions.prepare(submission)) return false;
    EXPECT_TRUE(one.proposals.may_propose());
    const std::vector<std::uint32_t> said(submission.tensors.size(), 7);
    one.contributions.publish(
        submission, {.count = static_cast<std::uint32_t>(said.size()), .key = 5, .signature = 7},
        said.data());
    return true;
  }
  void expect_agreement() {
    for (auto& one : all_) ASSERT_EQ(one->proposals.outcome(), Proposals::Outcome::Agreed);
  }

 private:
  struct One {
    One(std::vector<Proposals::Member> ends, const Members& members)
        : proposals(std::move(ends), members.self, Proposals::Setting{}), backend(members) {}
    Proposals proposals;
    LocalBackend backend;
    Contributions contributions;
  };
  std::vector<std::unique_ptr<ProposalBoard>> boards_;
  std::vector<std::unique_ptr<One>> all_;
};

/// Groups of the ranks' own rows, as all of them hear of them.
TEST(Contributions, tell_every_member_of_all_rows_and_where_they_lie) {
  Host host(3);
  std::vector<std::vector<std::vector<float>>> brought;  // by member and tensor
  std::vector<Submission> submissions;
  for (std::size_t member = 0; member < 3; ++member) {
    auto& tensors = brought.emplace_back();
    Submission& submission = submissions.emplace_back();
    submission.kind = Kind::Allgather;
    submission.grouped = true;
    for (std::size_t t = 0; t < 2; ++t) {
      tensors.emplace_back(10 * member + 3 * t + 1, 1.0F);
      submission.tensors.push_back(tensor_of(tensors.back()));
      submission.tensors.back().out = nullptr;
    }
    ASSERT_TRUE(host.propose(member, submission));
  }
  host.expect_agreement();
  for (std::size_t member = 0; member < 3; ++member) {
    const auto told = host[member].told(submissions[member]);
    ASSERT_EQ(told.size(), 2U);
    for (std::size_t t = 0; t < 2; ++t) {
      std::vector<std::int64_t> rows;
      std::vector<std::uint64_t> addresses;
      for (const auto& tensors : brought) {
        rows.push_back(static_cast<std::int64_t>(tensors[t].size()));
        addresses.push_back(reinterpret_cast<std::uintptr_t>(tensors[t].data()));
      }
      EXPECT_EQ(told[t].numbers, rows);
      EXPECT_EQ(told[t].addresses, addresses);
    }
    EXPECT_FALSE(host[member].any_large(submissions[member]));
  }
}

/// Two or four members may fill the room of 64 KiB. Eight may not: each reads what all bring.
TEST(Contributions, come_with_the_proposal_up_to_256_KiB_of_all_members) {
  for (const auto& [size, most] :
       {std::pair(2, 16384U), std::pair(4, 16384U), std::pair(8, 8192U)}) {
    for (const std::size_t count : {most, most + 1}) {
      Host host(size);
      std::vector<float> values(count);
      Submission submission;
      submission.tensors = {tensor_of(values)};
      for (int member = 0; member < size; ++member) {
        ASSERT_TRUE(host.propose(static_cast<std::size_t>(member), submission));
      }
      host.expect_agreement();
      EXPECT_EQ(host[0].any_large(submission), count != most) << count << " of " << size;
      EXPECT_EQ(host[0].bytes(), count * sizeof(float));
    }
  }
}

TEST(Contributions, of_a_barrier_are_none) {
  Host host(2);
  Submission barrier;
  barrier.kind = Kind::Barrier;
  barrier.tensors = {{.dtype = DType::UInt8}};
  for (const std::size_t member : {0U, 1U}) ASSERT_TRUE(host.propose(member, barrier));
  host.expect_agreement();
  EXPECT_FALSE(host[0].any_large(barrier));
  EXPECT_EQ(host[0].bytes(), 0U);
}

/// A number for each of eight members and an address, of every tensor: 64 KiB, and more.
TEST(Contributions, go_the_regular_way_where_there_is_too_much_to_tell) {
  Host host(8);
  std::vector<float> values(8);
  Submission submission;
  submission.kind = Kind::Alltoall;
  submission.grouped = true;
  submission.tensors.resize(910, tensor_of(values));
  EXPECT_TRUE(host.propose(0, submission));
  submission.tensors.resize(911, tensor_of(values));
  EXPECT_FALSE(host.propose(1, submission));
}

TEST(AskFrame, carries_the_round_and_the_set) {
  const auto frame = encode_ask({.generation = 0x12345678, .round = 0x9ABCDEF0});
  const auto ask = decode_ask(frame);
  ASSERT_TRUE(ask);
  EXPECT_EQ(ask->generation, 0x12345678U);
  EXPECT_EQ(ask->round, 0x9ABCDEF0U);
  EXPECT_FALSE(decode_ask(std::span(frame).first(frame.size() - 1)));
}

/// A rank by itself, with lanes of the world and of two more sets.
class LanesOfOne : public ::testing::Test {
 protected:
  LanesOfOne() : peers(0, 1, {{0}}, {"a"}), lanes(peers) {
    EXPECT_TRUE(static_cast<bool>(peers.open()));
    EXPECT_TRUE(lanes.empty());
    nobody_else();
    for (const std::int32_t id : {0, 1, 2}) {
      ProcessSet set;
      set.id = id;
      set.generation = static_cast<std::uint32_t>(id);
      set.members.add(0);
      lanes.open(set, false);
    }
    EXPECT_FALSE(lanes.empty());
  }
  static void nobody_else() FARANDOLE_ASSERTS(progress_lock, engine_lock) {}
  Proposals& of(std::int32_t set) {
    nobody_else();
    return *lanes.find(set)->proposals;
  }

  Peers peers;
  Lanes lanes;
};

TEST_F(LanesOfOne, reopen_until_a_set_has_not_been_wanted_for_long) {
  nobody_else();
  const auto reopens = [&](std::int32_t set) {
    nobody_else();
    lanes.close();
    EXPECT_TRUE(of(set).closed());
    lanes.reopen();
    return !of(set).closed();
  };
  for (int time = 1; time <= 4; ++time) EXPECT_TRUE(reopens(1)) << time;
  EXPECT_FALSE(reopens(1));
  EXPECT_FALSE(reopens(2));
  EXPECT_TRUE(reopens(0)) << "the world is always wanted";
  lanes.find(1)->unused = 0;
  EXPECT_TRUE(reopens(1));
  EXPECT_FALSE(reopens(2));
}

TEST_F(LanesOfOne, tell_whether_any_that_were_asked_could_answer) {
  nobody_else();
  of(1).called(1);
  ASSERT_TRUE(of(2).may_propose());
  of(2).propose({.key = 5, .signature = 7}, 0, 0);
  of(2).called(2);
  EXPECT_TRUE(lanes.asked());
  EXPECT_TRUE(lanes.answer()) << "that of set 1 has answered";
  EXPECT_TRUE(lanes.asked()) << "that of set 2 waits for its own proposal";
  EXPECT_FALSE(lanes.answer());
  of(2).settle();
  EXPECT_TRUE(lanes.answer());
  EXPECT_FALSE(lanes.asked());
}

TEST_F(LanesOfOne, are_gone_with_their_sets) {
  nobody_else();
  lanes.remove(1);
  EXPECT_EQ(lanes.find(1), nullptr);
  EXPECT_NE(lanes.find(2), nullptr);
  EXPECT_EQ(lanes.of_generation(1), nullptr);
}

}  // namespace
}  // namespace farandole::testing
