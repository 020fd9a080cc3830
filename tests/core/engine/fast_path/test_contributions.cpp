/// What members bring to a proposal, and whether it goes the fast way.

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "backends/local/local.h"
#include "cluster.h"
#include "engine/fast_path/contributions.h"

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

}  // namespace
}  // namespace farandole::testing
