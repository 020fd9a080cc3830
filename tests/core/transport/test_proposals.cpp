/// Rounds of proposals: all members come to the same outcome, whatever they do and when.

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "transport/note_exchange.h"
#include "transport/proposals.h"

namespace farandole::testing {
namespace {

using Outcome = Proposals::Outcome;

class Host {
 public:
  explicit Host(int size) : boards_(static_cast<std::size_t>(size)) {
    for (auto& board : boards_) board = std::make_unique<ProposalBoard>();
    for (int self = 0; self < size; ++self) {
      std::vector<Proposals::Member> members;
      for (auto& board : boards_) members.push_back({.board = board.get(), .bell = {}});
      ends_.push_back(std::make_unique<Proposals>(std::move(members), self, Proposals::Setting{}));
    }
  }
  Proposals& operator[](int member) { return *ends_[static_cast<std::size_t>(member)]; }

 private:
  std::vector<std::unique_ptr<ProposalBoard>> boards_;
  std::vector<std::unique_ptr<Proposals>> ends_;
};

Proposals::Tag tag(std::uint32_t key) { return {.key = key, .signature = 7}; }

/// Puts a number there and proposals. After may_propose(), though others may have closed since.
void put(Proposals& proposals, std::uint32_t key, int value) {
  std::memcpy(proposals.room(), &value, sizeof value);
  proposals.propose(tag(key), 0, 0);
}

void propose(Proposals& proposals, std::uint32_t key, int value) {
  ASSERT_TRUE(proposals.may_propose());
  put(proposals, key, value);
}

int value_of(const Proposals& proposals, int member) {
  int value = 0;
  std::memcpy(&value, proposals.room_of(member), sizeof value);
  return value;
}

TEST(Proposals, one_member_agrees_with_itself) {
  const auto proposals = Proposals::alone();
  for (int round = 0; round < 5; ++round) {
    propose(*proposals, 1, round);
    ASSERT_EQ(proposals->outcome(), Outcome::Agreed);
    EXPECT_EQ(value_of(*proposals, 0), round);
    proposals->settle();
  }
}

TEST(Proposals, equal_offers_are_agreed_once_all_have_come) {
  Host host(3);
  for (int round = 0; round < 7; ++round) {
    for (int member = 0; member < 3; ++member) {
      for (int other = 0; other < member; ++other) EXPECT_EQ(host[other].outcome(), Outcome::Open);
      propose(host[member], 5, 10 * round + member);
    }
    for (int member = 0; member < 3; ++member) {
      ASSERT_EQ(host[member].outcome(), Outcome::Agreed);
      for (int other = 0; other < 3; ++other) {
        EXPECT_EQ(value_of(host[member], other), 10 * round + other);
      }
    }
    for (int member = 0; member < 3; ++member) host[member].settle();
  }
}

TEST(Proposals, different_offers_are_refused_by_all) {
  Host host(2);
  propose(host[0], 1, 0);
  propose(host[1], 2, 0);
  EXPECT_EQ(host[0].outcome(), Outcome::Refused);
  EXPECT_EQ(host[1].outcome(), Outcome::Refused);
  host[0].settle();
  host[1].settle();
  propose(host[0], 3, 0);
  propose(host[1], 3, 0);
  EXPECT_EQ(host[0].outcome(), Outcome::Agreed);
}

TEST(Proposals, made_at_different_positions_are_refused) {
  Host host(2);
  for (int member = 0; member < 2; ++member) {
    ASSERT_TRUE(host[member].may_propose());
    Proposals::Tag said = tag(1);
    said.position = static_cast<std::uint64_t>(7 + member);
    host[member].propose(said, 0, 0);
  }
  EXPECT_EQ(host[0].outcome(), Outcome::Refused);
  EXPECT_EQ(host[1].outcome(), Outcome::Refused);
}

TEST(Proposals, what_is_said_beside_the_tag_must_be_equal) {
  Host host(2);
  for (int member = 0; member < 2; ++member) {
    ASSERT_TRUE(host[member].may_propose());
    std::memcpy(host[member].room(), member == 0 ? "ab" : "ac", 2);
    host[member].propose(tag(1), 2, 2);
  }
  EXPECT_EQ(host[0].outcome(), Outcome::Refused);
  EXPECT_EQ(host[1].outcome(), Outcome::Refused);
}

TEST(Proposals, who_closes_declines_what_others_have_begun) {
  Host host(3);
  propose(host[0], 1, 0);
  host[1].close();
  EXPECT_EQ(host[0].outcome(), Outcome::Refused) << "although the third has said nothing";
  EXPECT_FALSE(host[2].may_propose()) << "what is refused already has no chance";
  host[0].settle();
  host[1].reopen();
  for (int member = 0; member < 3; ++member) propose(host[member], 2, 0);
  for (int member = 0; member < 3; ++member) EXPECT_EQ(host[member].outcome(), Outcome::Agreed);
}

/// Two members of one host, and a third one elsewhere that says nothing.
TEST(Proposals, who_closes_at_the_same_moment_is_asked_also_beside_members_elsewhere) {
  std::array<ProposalBoard, 2> boards{};
  std::vector<PeerLink> links;
  std::vector<Fd> far_ends;
  for (int member = 0; member < 2; ++member) {
    int ends[2] = {-1, -1};
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    far_ends.emplace_back(ends[1]);
    auto socket = Socket::adopt(Fd(ends[0]), 2);
    ASSERT_TRUE(static_cast<bool>(socket));
    links.emplace_back(*std::move(socket));
  }
  NoteExchange notes;
  std::vector<std::unique_ptr<Proposals>> members;
  for (int self = 0; self < 2; ++self) {
    const auto link = static_cast<std::size_t>(self);
    members.push_back(std::make_unique<Proposals>(
        std::vector<Proposals::Member>{{.board = &boards[0], .bell = {}},
                                       {.board = &boards[1], .bell = {}},
                                       {.bell = {}, .link = &links[link]}},
        self, Proposals::Setting{.notes = &notes}));
  }
  ASSERT_TRUE(members[0]->may_propose());
  members[1]->close();  // sees no proposal yet
  put(*members[0], 1, 1);
  ASSERT_TRUE(members[1]->asked()) << "else it is asked after 100 ms";
  members[1]->answer();
  EXPECT_EQ(members[0]->outcome(), Outcome::Refused);
}

/// A rank closes and reopens in one thread, while another one moves bytes.
TEST(Proposals, links_know_whether_anybody_listens) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), 0);
  const Fd other(ends[1]);
  auto socket = Socket::adopt(Fd(ends[0]), 1);
  ASSERT_TRUE(static_cast<bool>(socket));
  PeerLink link(*std::move(socket));
  NoteExchange notes;
  const auto with = [&](std::uint64_t subject) {
    return std::make_unique<Proposals>(
        std::vector<Proposals::Member>{{.board = nullptr, .bell = {}},
                                       {.board = nullptr, .bell = {}, .link = &link}},
        0, Proposals::Setting{.notes = &notes, .subject = subject});
  };
  const auto world = with(0);
  auto set = with(1);
  std::atomic<bool> over{false};
  std::jthread closing([&] {
    for (int i = 0; i < 200'000; ++i) {
      world->close();
      world->reopen();
    }
    over = true;
  });
  while (!over) ASSERT_TRUE(static_cast<bool>(notes.move()));
  closing.join();
  ASSERT_TRUE(static_cast<bool>(notes.move()));
  EXPECT_LT(link.wants().fd, 0) << "nobody listens";
  world->close();
  set->close();
  ASSERT_TRUE(static_cast<bool>(notes.move()));
  EXPECT_GE(link.wants().fd, 0);
  world->reopen();
  ASSERT_TRUE(static_cast<bool>(notes.move()));
  EXPECT_GE(link.wants().fd, 0) << "the set listens";
  set.reset();
  EXPECT_LT(link.wants().fd, 0) << "the set has gone";
}

TEST(Proposals, nobody_begins_while_somebody_is_closed) {
  Host host(2);
  host[1].close();
  EXPECT_FALSE(host[0].may_propose());
  host[1].reopen();
  EXPECT_TRUE(host[0].may_propose());
}

TEST(Proposals, who_is_asked_declines) {
  Host host(2);
  propose(host[0], 1, 0);
  EXPECT_FALSE(host[1].asked());
  host[0].ask();
  ASSERT_TRUE(host[1].asked());
  host[1].answer();
  EXPECT_FALSE(host[1].asked());
  EXPECT_EQ(host[0].outcome(), Outcome::Refused);
}

TEST(Proposals, a_call_about_the_next_round_waits_for_the_end_of_this_one) {
  Host host(2);
  propose(host[0], 1, 1);
  propose(host[1], 1, 2);
  ASSERT_EQ(host[0].outcome(), Outcome::Agreed);
  host[0].settle();
  propose(host[0], 2, 0);
  host[0].ask();
  host[1].answer();
  ASSERT_EQ(host[1].outcome(), Outcome::Agreed);
  EXPECT_EQ(value_of(host[1], 0), 1);
  host[1].settle();
  ASSERT_TRUE(host[1].asked());
  host[1].answer();
  EXPECT_EQ(host[0].outcome(), Outcome::Refused);
}

TEST(Proposals, who_closed_meanwhile_declines_the_next_round_when_this_one_is_settled) {
  Host host(2);
  propose(host[0], 1, 0);
  propose(host[1], 1, 0);
  host[1].close();
  ASSERT_EQ(host[0].outcome(), Outcome::Agreed);
  host[0].settle();
  EXPECT_FALSE(host[0].may_propose());
  EXPECT_EQ(host[1].outcome(), Outcome::Agreed);
}

/// Members propose, decline, close and ask as they like; every round has one outcome.
TEST(Proposals, random_members_agree_on_every_verdict) {
  constexpr int kMembers = 3;
  constexpr int kRounds = 3000;
  Host host(kMembers);
  std::vector<std::vector<int>> agreed(kMembers);
  std::atomic<bool> over{false};
  std::atomic<int> ended{0};
  {
    std::vector<std::jthread> threads;
    for (int member = 0; member < kMembers; ++member) {
      threads.emplace_back([&, member] {
        std::mt19937 random(static_cast<unsigned>(member));
        Proposals& mine = host[member];
        for (int round = 1; round <= kRounds && !over; ++round) {
          // The round ends for this member when it has an outcome, or has declined.
          if (random() % 8 == 0) {
            mine.close();
            mine.reopen();
          }
          bool may = false;
          while (!over && !(may = mine.may_propose())) {
            if (mine.asked()) mine.answer();
            std::this_thread::yield();
          }
          if (!may) break;
          put(mine, random() % 16 == 0 ? 2U : 1U, round);
          Outcome outcome{};
          int looks = 0;
          while ((outcome = mine.outcome()) == Outcome::Open) {
            if (++looks == 50) mine.ask();
            std::this_thread::yield();
          }
          if (outcome == Outcome::Agreed) {
            int sum = 0;
            for (int other = 0; other < kMembers; ++other) sum += value_of(mine, other);
            agreed[static_cast<std::size_t>(member)].push_back(sum);
          }
          mine.settle();
        }
        over = true;
        ++ended;
        while (ended != kMembers) {  // the others may still wait
          if (mine.asked()) mine.answer();
          std::this_thread::yield();
        }
      });
    }
  }
  EXPECT_EQ(agreed[0], agreed[1]);
  EXPECT_EQ(agreed[0], agreed[2]);
  EXPECT_FALSE(agreed[0].empty());
}

}  // namespace
}  // namespace farandole::testing
