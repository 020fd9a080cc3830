/// Notes of several process sets on the links that they share.

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <memory>
#include <vector>

#include "transport/note_exchange.h"
#include "transport/proposals.h"

namespace farandole::testing {
namespace {

using Outcome = Proposals::Outcome;
using Member = Proposals::Member;

/// Both ends of a link between two ranks. `buffer`: of the sockets, in bytes; 0: as they are.
struct Ends {
  Ends(Rank here_rank, Rank there_rank, int buffer = 0) {
    std::array<int, 2> fds{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, fds.data()), 0);
    for (const int fd : fds) {
      if (buffer != 0) ::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
    }
    here = std::make_unique<PeerLink>(*Socket::adopt(Fd(fds[0]), there_rank));
    there = std::make_unique<PeerLink>(*Socket::adopt(Fd(fds[1]), here_rank));
  }
  std::unique_ptr<PeerLink> here, there;
};

std::unique_ptr<Proposals> end_of(std::vector<Member> members, int self, NoteExchange& notes,
                                  std::uint64_t subject) {
  return std::make_unique<Proposals>(std::move(members), self,
                                     Proposals::Setting{.notes = &notes, .subject = subject});
}

Member on(const std::unique_ptr<PeerLink>& link) { return {.bell = {}, .link = link.get()}; }

void propose(Proposals& proposals, std::uint32_t key, std::size_t bytes = 0) {
  ASSERT_TRUE(proposals.may_propose());
  std::memset(proposals.room(), static_cast<int>(key), bytes);
  proposals.propose({.key = key, .signature = 7}, 0, bytes);
}

void move(NoteExchange& notes) {
  notes.send_notes();
  const auto moved = notes.move();
  ASSERT_TRUE(static_cast<bool>(moved)) << moved.error().what();
  if (notes.heard()) notes.refuse();
}

/// Rank 0 has proposed to rank 2, which has, too; and listens to rank 1 for another set.
TEST(NoteExchange, a_broken_link_hides_no_notes_on_others) {
  Ends to_1(0, 1);
  Ends to_2(0, 2);
  NoteExchange notes;
  NoteExchange far;
  const auto other = end_of({{}, on(to_1.here)}, 0, notes, 1);
  const auto mine = end_of({{}, on(to_2.here)}, 0, notes, 2);
  const auto theirs = end_of({on(to_2.there), {}}, 1, far, 2);
  propose(*mine, 1);
  propose(*theirs, 1);
  notes.send_notes();
  move(far);
  to_1.there.reset();
  other->close();
  other->called(1);
  EXPECT_FALSE(static_cast<bool>(notes.move())) << "rank 1 has gone";
  EXPECT_EQ(mine->outcome(), Outcome::Agreed);
  move(far);
  EXPECT_EQ(theirs->outcome(), Outcome::Agreed);
}

/// What comes for another set on a link whose peer has published here would wake this rank for
/// ever.
TEST(NoteExchange, a_link_that_is_polled_is_read_sometime) {
  Ends to_1(0, 1);
  Ends to_2(0, 2);
  Ends to_3(0, 3);
  NoteExchange notes;
  NoteExchange far;
  const auto mine = end_of({{}, on(to_1.here), on(to_2.here)}, 0, notes, 1);
  const auto other = end_of({{}, on(to_1.here), on(to_3.here)}, 0, notes, 2);
  const auto theirs = end_of({on(to_1.there), {}}, 1, far, 1);
  const auto their_other = end_of({on(to_1.there), {}}, 1, far, 2);
  propose(*mine, 1);
  propose(*theirs, 1);
  move(far);
  for (int i = 0; i < 5; ++i) move(notes);
  propose(*their_other, 9);
  move(far);
  for (int i = 0; i < 20; ++i) move(notes);
  pollfd wanted = to_1.here->wants();
  ASSERT_GE(wanted.fd, 0);
  EXPECT_EQ(::poll(&wanted, 1, 0), 0) << "nothing is left to read";
}

/// Ranks 0, 1 and 2, each on a host of its own; what rank 0 sends to rank 2 stands still. Rank 2
/// refuses two rounds by what it hears from rank 1, so rank 0 goes on.
TEST(NoteExchange, a_slot_is_written_again_while_its_note_waits) {
  Ends one(0, 1);
  Ends slow(0, 2, 4096);
  Ends two(1, 2);
  NoteExchange notes_a;
  NoteExchange notes_b;
  NoteExchange notes_c;
  const auto a = end_of({{}, on(one.here), on(slow.here)}, 0, notes_a, 1);
  const auto b = end_of({on(one.there), {}, on(two.here)}, 1, notes_b, 1);
  const auto c = end_of({on(slow.there), on(two.there), {}}, 2, notes_c, 1);
  const std::vector<std::byte> first(std::size_t{70} << 10);
  slow.here->post_note(99, first);  // of a set that rank 2 does not know any more
  two.there->listen(true);
  slow.there->listen(true);
  // Rank 2 sends to both, and reads what comes from rank 1 alone.
  const auto move_c = [&] {
    notes_c.refuse();
    notes_c.send_notes();
    for (PeerLink* const link : {slow.there.get(), two.there.get()}) {
      ASSERT_TRUE(static_cast<bool>(link->pump_out()));
    }
    ASSERT_TRUE(static_cast<bool>(two.there->pump_in()));
  };
  const auto all_move = [&] {
    for (int i = 0; i < 40; ++i) {
      move(notes_a);
      move(notes_b);
      move_c();
    }
  };
  propose(*a, 1, 60 << 10);
  propose(*b, 1);
  propose(*c, 2);
  all_move();
  for (Proposals* const end : {a.get(), b.get(), c.get()}) {
    ASSERT_EQ(end->outcome(), Outcome::Refused);
  }
  a->settle();
  b->settle();
  c->close();
  c->settle();
  ASSERT_TRUE(slow.here->sending());
  propose(*b, 3);
  a->close();
  all_move();
  ASSERT_EQ(c->round(), 2U) << "declined";
  ASSERT_EQ(a->round(), 2U) << "declined";
  b->settle();
  a->reopen();
  all_move();
  ASSERT_TRUE(slow.here->sending()) << "the note of round 1 is still there";
  propose(*a, 4, 60 << 10);  // into the slot of round 1
  for (int i = 0; i < 200; ++i) {
    move(notes_a);
    const auto read = slow.there->pump_in();
    ASSERT_TRUE(static_cast<bool>(read)) << read.error().what();
  }
  EXPECT_FALSE(slow.here->sending());
}

TEST(NoteExchange, notes_of_a_set_that_has_gone_are_dropped) {
  Ends link(0, 1);
  NoteExchange notes;
  NoteExchange far;
  auto mine = end_of({{}, on(link.here)}, 0, notes, 5);
  const auto world = end_of({{}, on(link.here)}, 0, notes, 0);
  const auto theirs = end_of({on(link.there), {}}, 1, far, 5);
  const auto their_world = end_of({on(link.there), {}}, 1, far, 0);
  propose(*theirs, 1);
  propose(*their_world, 2);
  move(far);
  mine.reset();
  propose(*world, 2);
  move(notes);
  EXPECT_EQ(world->outcome(), Outcome::Agreed);
}

}  // namespace
}  // namespace farandole::testing
