/// Decisions, messages and frames of the failure detector, with time as an argument: a rank whose
/// neighbours are ends of sockets.

#include "engine/failure/detector.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <map>

#include "engine/failure/cause.h"
#include "engine/failure/survey.h"
#include "transport/control_channel.h"

namespace farandole {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr TimePoint kStart = TimePoint(hours(1));

struct FakeOwner final : FailureDetector::Owner {
  bool orderly_end() override { return over; }
  Needs needs(Rank) override { return {.owed = owed, .proposed = proposed}; }
  void finish_what_has_come() override {
    ++finished;
    if (while_finishing) while_finishing();
  }
  void abort(const Error& cause, std::optional<Rank> from) override {
    causes.push_back(cause);
    told_by = from;
  }

  bool over = false;
  std::vector<Negotiator::Pending> owed;
  std::string proposed;
  int finished = 0;
  std::function<void()> while_finishing;
  std::vector<Error> causes;
  std::optional<Rank> told_by;
};

/// Three ranks on hosts of their own: ranks 1 and 2 report to rank 0.
class Detection {
 public:
  explicit Detection(Rank self, HeartbeatOptions heartbeat = {})
      : peers(self, 3, {{0}, {1}, {2}}, {"a", "b", "c"}) {
    for (Rank rank = 0; rank < 3; ++rank) {
      if (rank == self) continue;
      const bool neighbour = self == 0 || rank == 0;
      auto [mine, theirs] = ends();
      auto [data, other_data] = ends();
      std::vector<Fd> streams;
      streams.push_back(std::move(data));
      peers.add_network_peer(rank, neighbour ? std::move(mine) : Fd(), std::move(streams));
      if (neighbour) others.try_emplace(rank, *Socket::adopt(std::move(theirs), self));
      kept.push_back(std::move(other_data));
    }
    const auto opened = peers.open();
    EXPECT_TRUE(static_cast<bool>(opened)) << (opened ? "" : opened.error().what());
    dispatcher.emplace(peers.backend(), nullptr, seconds(30));
    detector.emplace(
        FailureDetector::Options{.heartbeat = heartbeat, .operation_timeout = seconds(30)}, peers,
        phase, log, *dispatcher, owner);
  }

  static std::pair<Fd, Fd> ends() {
    int pair[2] = {-1, -1};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    return {Fd(pair[0]), Fd(pair[1])};
  }

  /// Frames sent to that neighbour since the last call.
  std::vector<std::vector<std::byte>> sent_to(Rank rank) {
    std::vector<std::vector<std::byte>> all;
    for (;;) {
      const auto message = others.at(rank).receive();
      if (!message || !*message) return all;
      all.emplace_back((*message)->begin(), (*message)->end());
    }
  }
  /// The loss of a rank, as a connection shows it.
  void lose(Rank rank, Evidence evidence, TimePoint now) {
    detector->report_loss(rank, lost_error(peers, rank, Loss::ConnectionEnded), evidence, now);
  }
  /// The text of the one cause.
  std::string told() {
    EXPECT_EQ(owner.causes.size(), 1U);
    return owner.causes.empty() ? "" : owner.causes.back().message;
  }
  /// Looks whenever that is due. Lines of the log are added to `said`.
  void look_until(TimePoint end) {
    ::testing::internal::CaptureStderr();
    for (auto next = detector->next(); next && *next < end && owner.causes.empty();
         next = detector->next()) {
      detector->look(*next);
    }
    said += ::testing::internal::GetCapturedStderr();
  }

  Peers peers;
  std::map<Rank, SocketChannel> others;
  std::vector<Fd> kept;
  Phase phase;
  Log log{0, LogLevel::Warning, true};
  FakeOwner owner;
  std::optional<Dispatcher> dispatcher;
  std::optional<FailureDetector> detector;
  std::string said;
};

const std::string kGone = "rank 1 on host b is gone: its connection has ended";
const std::string kLook = ". Look at its own output for the reason";

TEST(FailureDetector, says_what_a_lost_rank_was_needed_for) {
  const auto told = [](const std::function<void(Detection&)>& prepare) {
    Detection here(0);
    prepare(here);
    here.lose(1, Evidence::Certain, kStart);
    return here.told();
  };
  EXPECT_EQ(told([](Detection&) {}), kGone + ", while nobody waited for it" + kLook);
  EXPECT_EQ(told([](Detection& here) { here.phase.ended = true; }),
            kGone + ", during the shutdown" + kLook);
  EXPECT_EQ(told([](Detection& here) { here.owner.proposed = "allreduce.p"; }),
            kGone + ", while others waited for it in allreduce.p" + kLook);
  const auto owe = [](int count) {
    return [count](Detection& here) {
      for (int i = 0; i < count; ++i) {
        here.owner.owed.push_back({.name = "t" + std::to_string(i), .missing = {1, 2}});
      }
    };
  };
  EXPECT_EQ(told(owe(2)), kGone + ", while others waited for it in t0, t1" + kLook);
  EXPECT_EQ(told(owe(6)), kGone + ", while others waited for it in t0, t1, t2, t3, t4, t5" + kLook);
  EXPECT_EQ(told(owe(8)),
            kGone + ", while others waited for it in t0, t1, t2, t3, t4, t5 and 2 more" + kLook);
}

TEST(FailureDetector, tells_programs_what_the_lost_rank_was_needed_for) {
  Detection owed(0);
  owed.owner.owed = {{.name = "first", .missing = {1, 2}}, {.name = "second", .missing = {1}}};
  owed.lose(1, Evidence::Certain, kStart);
  EXPECT_EQ(owed.owner.causes.at(0).tensor, "first");
  EXPECT_EQ(owed.owner.causes.at(0).missing, (std::vector<Rank>{1, 2}));
  Detection proposed(0);
  proposed.owner.proposed = "allreduce.p";
  proposed.lose(1, Evidence::Certain, kStart);
  EXPECT_EQ(proposed.owner.causes.at(0).tensor, "allreduce.p");
  EXPECT_EQ(proposed.owner.causes.at(0).missing, std::vector<Rank>{1});
  Detection nothing(0);
  nothing.lose(1, Evidence::Certain, kStart);
  EXPECT_TRUE(nothing.owner.causes.at(0).missing.empty());
  Detection within(0);
  Error error = lost_error(within.peers, 1, Loss::ConnectionEnded);
  error.tensor = "allreduce.x";
  within.owner.owed = {{.name = "later", .missing = {1}}};
  within.detector->report_loss(1, error, Evidence::Certain, kStart);
  EXPECT_EQ(within.told(), kGone + ", in the middle of allreduce.x" + kLook);
  EXPECT_EQ(within.owner.causes.at(0).missing, std::vector<Rank>{1});
}

TEST(FailureDetector, other_failures_are_told_as_they_are) {
  Detection here(0);
  const Error error{.code = Code::Timeout, .message = "stuck", .peer = 2};
  here.detector->report_failure(error, Evidence::Certain, kStart);
  EXPECT_EQ(here.told(), "stuck");
  EXPECT_EQ(here.owner.finished, 0) << "no rank was lost";
}

/// An operation of all ranks is under way, and the others bring nothing.
void start_sum(Detection& here, std::vector<float>& values) {
  auto signature = std::make_shared<Signature>();
  signature->shape = {static_cast<std::int64_t>(values.size())};
  auto entry = std::make_unique<Entry>();
  entry->name = "allreduce.x";
  entry->signature = signature;
  entry->in = entry->out = reinterpret_cast<std::byte*>(values.data());
  Dispatcher::Batch batch;
  batch.signatures.push_back(signature);
  batch.entries.push_back(std::move(entry));
  batch.position = {Position::Stream::Dispatches, 1};
  here.dispatcher->enqueue(std::move(batch));
  for (auto step = here.dispatcher->step(kStart); *step == Step::Advanced;) {
    step = here.dispatcher->step(kStart);
  }
  ASSERT_TRUE(here.dispatcher->running());
}

TEST(FailureDetector, names_the_operation_under_way_only_where_a_rank_is_lost) {
  std::vector<float> values(4);
  Detection loss(0);
  start_sum(loss, values);
  loss.lose(1, Evidence::Certain, kStart);
  EXPECT_EQ(loss.owner.causes.at(0).tensor, "allreduce.x");
  Detection other(0);
  start_sum(other, values);
  other.detector->report_failure({.code = Code::Internal, .message = "out of step", .peer = 1},
                                 Evidence::Certain, kStart);
  EXPECT_EQ(other.told(), "out of step");
  EXPECT_EQ(other.owner.causes.at(0).tensor, "");
}

/// One rank is busy elsewhere the first time. The next time it is asked anew, and has stopped.
TEST(FailureDetector, asks_again_about_an_operation_that_others_may_still_come_to) {
  std::vector<float> values(4);
  Detection here(0);
  start_sum(here, values);
  const auto asked = [&] {
    std::vector<Rank> ranks;
    for (const Rank rank : {1, 2}) {
      for (const auto& frame : here.sent_to(rank)) {
        const auto message = decode_survey(frame);
        if (message && !message->standing) ranks.push_back(message->to);
      }
    }
    return ranks;
  };
  const auto answer = [&](Duration quiet, TimePoint now) {
    for (const Rank rank : asked()) {
      (void)here.detector->take(
          rank,
          encode_survey({.from = rank,
                         .to = 0,
                         .position = here.dispatcher->position(),
                         .standing = Standing{.quiet = quiet, .waits_for = {}}}),
          now);
    }
  };
  TimePoint now = kStart + seconds(30);
  ASSERT_TRUE(here.dispatcher->overdue(now));
  here.detector->overdue(now);
  answer(seconds(1), now);
  EXPECT_TRUE(here.owner.causes.empty());
  now += seconds(29);
  EXPECT_EQ(here.dispatcher->deadline(), now);
  here.detector->overdue(now);
  answer(seconds(30), now);
  EXPECT_NE(here.told().find("'allreduce.x' was started by all ranks"), std::string::npos);
}

TEST(FailureDetector, rank_0_waits_for_better_evidence_as_long_as_that_may_take) {
  for (const auto& [evidence, patience] : {std::pair(Evidence::Data, milliseconds(100)),
                                           std::pair(Evidence::Control, milliseconds(50))}) {
    Detection here(0);
    here.lose(1, evidence, kStart);
    EXPECT_TRUE(here.detector->open());
    EXPECT_TRUE(here.owner.causes.empty());
    EXPECT_FALSE(here.detector->decide(kStart + patience - milliseconds(1)));
    here.lose(2, evidence, kStart + milliseconds(1));  // perhaps because of the first
    EXPECT_TRUE(here.detector->decide(kStart + patience));
    EXPECT_EQ(here.owner.causes.at(0).peer, 1);
  }
}

TEST(FailureDetector, a_rank_below_sends_evidence_up_and_waits_for_the_decision) {
  Detection here(2);
  here.lose(1, Evidence::Data, kStart);
  const auto sent = here.sent_to(0);
  ASSERT_EQ(sent.size(), 1U);
  const auto evidence = decode_cause(sent[0]);
  ASSERT_TRUE(evidence);
  EXPECT_EQ(evidence->evidence, Evidence::Data);
  EXPECT_EQ(evidence->error.peer, 1);
  EXPECT_FALSE(here.detector->decide(kStart + seconds(5)));
  here.lose(1, Evidence::Data, kStart + seconds(5));  // no news
  EXPECT_TRUE(here.sent_to(0).empty());
  Error decision = lost_error(here.peers, 0, Loss::ProcessEnded);
  const auto frame = encode_cause(decision);
  EXPECT_TRUE(here.detector->take(0, frame, kStart + seconds(5)));
  EXPECT_EQ(here.told(), "rank 0 on host a is gone: its process has ended");
  EXPECT_EQ(here.owner.told_by, 0);
}

TEST(FailureDetector, a_rank_that_hears_nothing_decides_by_itself) {
  Detection uncertain(2);
  uncertain.lose(1, Evidence::Data, kStart);
  EXPECT_FALSE(uncertain.detector->decide(kStart + milliseconds(5199)));
  EXPECT_TRUE(uncertain.detector->decide(kStart + milliseconds(5200)));
  Detection certain(2);
  certain.lose(1, Evidence::Certain, kStart);
  EXPECT_FALSE(certain.detector->decide(kStart + milliseconds(199)));
  EXPECT_TRUE(certain.detector->decide(kStart + milliseconds(200)));
  Detection orphan(2);  // there is nobody to wait for
  orphan.lose(0, Evidence::Certain, kStart);
  EXPECT_EQ(orphan.owner.causes.at(0).peer, 0);
  EXPECT_FALSE(orphan.owner.told_by);
  Detection late(2);
  late.lose(1, Evidence::Data, kStart);
  late.lose(0, Evidence::Control, kStart);  // the connection that the decision would come by
  EXPECT_TRUE(late.detector->decide(kStart + milliseconds(50)));
}

TEST(FailureDetector, evidence_from_below_counts_as_that_of_this_rank) {
  Detection here(0);
  const auto frame = encode_cause(lost_error(here.peers, 2, Loss::ProcessEnded), Evidence::Data);
  EXPECT_TRUE(here.detector->take(1, frame, kStart));
  EXPECT_EQ(here.owner.finished, 1);
  EXPECT_TRUE(here.owner.causes.empty());
  EXPECT_TRUE(here.detector->decide(kStart + milliseconds(100)));
  EXPECT_EQ(here.owner.causes.at(0).peer, 2);
  const std::byte other[] = {std::byte{1}};
  EXPECT_FALSE(here.detector->take(1, other, kStart));
}

TEST(FailureDetector, what_comes_of_a_loss_is_no_evidence) {
  Detection here(0);
  here.owner.while_finishing = [&] {
    here.lose(2, Evidence::Certain, kStart);
    here.detector->report_failure({.code = Code::Timeout, .message = "late"}, Evidence::Certain,
                                  kStart);
    EXPECT_TRUE(here.detector->more_failed());
  };
  here.lose(1, Evidence::Certain, kStart);
  EXPECT_EQ(here.owner.finished, 1);
  EXPECT_EQ(here.owner.causes.at(0).peer, 1);
  EXPECT_EQ(here.owner.causes.size(), 1U);
}

TEST(FailureDetector, nobody_is_lost_when_nobody_is_needed) {
  Detection at_once(0);
  at_once.owner.over = true;
  at_once.lose(1, Evidence::Certain, kStart);
  EXPECT_EQ(at_once.owner.finished, 0);
  Detection after_the_last(0);
  after_the_last.owner.while_finishing = [&] { after_the_last.owner.over = true; };
  after_the_last.lose(1, Evidence::Certain, kStart);
  Detection while_waiting(0);
  while_waiting.lose(1, Evidence::Data, kStart);
  while_waiting.owner.over = true;
  EXPECT_TRUE(while_waiting.detector->decide(kStart));
  EXPECT_FALSE(while_waiting.detector->open());
  Detection failed(0);
  failed.phase.failed = true;
  failed.lose(1, Evidence::Certain, kStart);
  for (Detection* here : {&at_once, &after_the_last, &while_waiting, &failed}) {
    EXPECT_TRUE(here->owner.causes.empty());
    EXPECT_FALSE(here->detector->open());
  }
}

TEST(FailureDetector, tells_how_a_connection_ended_if_it_was_not_closed) {
  Detection here(0);
  Error reset{.code = Code::PeerLost, .message = "reset by peer", .peer = 1};
  reset.loss = Loss::Other;
  reset.tensor = "allreduce.x";
  here.detector->report_loss(1, reset, Evidence::Control, kStart);
  EXPECT_TRUE(here.detector->decide(kStart + milliseconds(100)));
  EXPECT_EQ(here.told(), kGone + " (reset by peer), in the middle of allreduce.x" + kLook);
  Detection malformed(0);
  malformed.detector->report_loss(1, {.code = Code::Internal, .message = "bad header"},
                                  Evidence::Certain, kStart);
  EXPECT_EQ(malformed.owner.causes.at(0).code, Code::PeerLost);
  EXPECT_EQ(malformed.owner.causes.at(0).peer, 1);
  EXPECT_NE(malformed.owner.causes.at(0).what().find("control connection to rank 1 on host b"),
            std::string::npos)
      << malformed.owner.causes.at(0).what();
}

TEST(FailureDetector, a_broken_link_between_ranks_that_live_is_called_that) {
  Detection here(0);
  Error broken{.code = Code::PeerLost, .message = "Connection timed out", .peer = 1};
  broken.tensor = "allreduce.x";
  here.owner.owed = {{.name = "later", .missing = {1}}};
  here.detector->report_loss(1, broken, Evidence::Data, kStart);
  EXPECT_TRUE(here.detector->decide(kStart + milliseconds(100)));
  EXPECT_EQ(here.told(),
            "the connection between rank 0 on host a and rank 1 on host b has failed: Connection "
            "timed out, in the middle of allreduce.x. As far as is known both ranks run. Is the "
            "network between their hosts cut, or does a firewall end connections?");
  EXPECT_EQ(here.owner.causes.at(0).peer, 1);
  EXPECT_EQ(here.owner.causes.at(0).missing, std::vector<Rank>{1});
  Detection dead(0);
  dead.detector->report_loss(1, broken, Evidence::Data, kStart);
  dead.lose(1, Evidence::Certain, kStart + milliseconds(50));
  EXPECT_TRUE(dead.told().starts_with("rank 1 on host b is gone")) << dead.told();
}

TEST(FailureDetector, a_rank_that_has_closed_its_descriptors_names_itself) {
  Detection here(0);
  std::vector<pollfd> watched;
  here.detector->watch(watched);
  ASSERT_FALSE(watched.empty());
  const int file = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  ASSERT_GE(::dup2(file, watched.back().fd), 0);  // what a script does that closes them all
  ::close(file);
  here.lose(1, Evidence::Control, kStart);
  EXPECT_EQ(here.owner.causes.at(0).peer, 0);
  EXPECT_NE(here.told().find("rank 0 on host a is gone: it has closed the descriptors"),
            std::string::npos);
}

TEST(Beats, go_to_every_neighbour_in_each_interval) {
  Detection here(0, {.warning = seconds(3), .limit = seconds(5)});
  here.detector->start(kStart);
  EXPECT_EQ(here.detector->next(), kStart);
  here.detector->look(kStart);
  for (const Rank rank : {1, 2}) {
    const auto sent = here.sent_to(rank);
    ASSERT_EQ(sent.size(), 1U);
    EXPECT_EQ(sent[0], std::vector<std::byte>{kBeatFrame});
  }
  here.detector->look(kStart + milliseconds(499));
  EXPECT_TRUE(here.sent_to(1).empty());
  here.detector->look(kStart + milliseconds(500));
  EXPECT_EQ(here.sent_to(1).size(), 1U);
}

TEST(Beats, a_message_is_a_sign_of_life_and_a_beat_is_nothing_more) {
  Detection here(0);
  here.detector->start(kStart);
  const std::byte message[] = {std::byte{1}, std::byte{2}};
  EXPECT_FALSE(here.detector->heard(1, message, kStart));
  EXPECT_TRUE(here.detector->heard(1, {&kBeatFrame, 1}, kStart));
}

/// The process runs all the time, however long nothing is heard.
void run_silently(Detection& here, TimePoint end, const std::vector<Rank>& alive) {
  for (TimePoint now = kStart; now < end && here.owner.causes.empty(); now += milliseconds(250)) {
    for (const Rank rank : alive) (void)here.detector->heard(rank, {&kBeatFrame, 1}, now);
    here.look_until(now);
  }
}

TEST(Beats, warn_of_a_silent_rank_and_then_lose_it) {
  Detection here(0);
  here.detector->start(kStart);
  run_silently(here, kStart + seconds(9), {2});
  EXPECT_NE(here.said.find("no sign of life from rank 1 on host b for 3 s: it counts as lost after "
                           "5 s"),
            std::string::npos)
      << here.said;
  EXPECT_EQ(here.said.find("rank 2"), std::string::npos) << here.said;
  EXPECT_EQ(here.told().rfind("rank 1 on host b is lost: no sign of life for 5 s (its process is "
                              "stopped, its host is switched off, or one of the two hosts is cut "
                              "off from the network)",
                              0),
            0U)
      << here.told();
  EXPECT_GE(here.owner.causes.at(0).waited_s, 5.0);
  EXPECT_LT(here.owner.causes.at(0).waited_s, 5.6);
}

TEST(Beats, tell_that_a_rank_has_come_back) {
  Detection here(0);
  here.detector->start(kStart);
  run_silently(here, kStart + milliseconds(3600), {2});
  (void)here.detector->heard(1, {&kBeatFrame, 1}, kStart + milliseconds(3600));
  here.look_until(kStart + milliseconds(4300));
  EXPECT_NE(here.said.find("rank 1 on host b is alive again"), std::string::npos) << here.said;
  EXPECT_TRUE(here.owner.causes.empty());
}

TEST(Beats, a_pause_of_this_process_is_told_and_blamed_on_nobody) {
  Detection here(0);
  here.detector->start(kStart);
  here.look_until(kStart + milliseconds(600));
  ::testing::internal::CaptureStderr();
  here.detector->look(kStart + seconds(60));
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("this process did not run for 59"), std::string::npos) << said;
  EXPECT_TRUE(here.owner.causes.empty());
}

TEST(Beats, are_off_without_a_limit) {
  Detection here(0, {.limit = Duration::zero()});
  here.detector->start(kStart);
  EXPECT_FALSE(here.detector->next());
}

TEST(Beats, lose_nobody_once_the_world_is_over) {
  Detection here(0);
  here.detector->start(kStart);
  here.phase.closed = true;
  run_silently(here, kStart + seconds(9), {});
  EXPECT_TRUE(here.owner.causes.empty());
  EXPECT_TRUE(here.said.empty()) << here.said;
}

}  // namespace
}  // namespace farandole
