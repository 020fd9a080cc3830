/// What must hold in every history with process sets: sets that overlap, come and go, while ranks
/// submit in orders of their own, disagree, join, die and leave. Each seed is one history.

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>

#include "simulator.h"

namespace farandole::test {
namespace {

using std::chrono::microseconds;

/// One thing that a rank does. True: done, go on; false: it has to wait.
using Action = std::function<bool(Simulator&, Rank)>;

/// The sets as the plan of a history sees them.
struct Model {
  std::map<std::int32_t, std::vector<Rank>> live;
  std::vector<std::int32_t> freed;
  std::int32_t next = 1;

  [[nodiscard]] bool has(const std::vector<Rank>& ranks) const {
    return std::ranges::any_of(live, [&](const auto& set) { return set.second == ranks; });
  }
  void add(const std::vector<Rank>& ranks) {
    std::int32_t id = next;
    if (freed.empty()) {
      ++next;
    } else {
      id = freed.front();
      freed.erase(freed.begin());
    }
    live[id] = ranks;
  }
  void remove(std::int32_t id) {
    live.erase(id);
    freed.push_back(id);
  }
};

/// What is expected of an operation, by its name, which begins with this.
constexpr std::string_view kRuns = "run.", kDiffers = "differ.", kHole = "hole.",
                           kJoined = "joined.";

class History {
 public:
  History(Simulator& sim, bool with_joins) : sim_(sim), with_joins_(with_joins) {
    std::vector<Rank> world(static_cast<std::size_t>(sim.size()));
    std::iota(world.begin(), world.end(), 0);
    model_.live[0] = world;
    programs_.resize(world.size());
  }

  void plan(int steps) {
    for (int step = 0; step < steps; ++step) {
      const bool join = with_joins_ && sim_.chance(0.3);
      std::vector<Rank> early;
      if (join) {
        for (Rank rank = 0; rank < sim_.size(); ++rank) {
          if (sim_.chance(0.3)) early.push_back(rank);
        }
        for (Rank rank : early) then(rank, joins());
      }
      plan_operations(step, early);
      if (join) {
        for (Rank rank = 0; rank < sim_.size(); ++rank) {
          if (std::ranges::find(early, rank) == early.end()) then(rank, joins());
        }
        for (Rank rank = 0; rank < sim_.size(); ++rank) then(rank, waits_for_joins(rounds_ + 1));
        ++rounds_;
      }
      plan_change();
    }
  }
  void plan_end() {
    while (model_.live.size() > 1) plan_removal(std::prev(model_.live.end())->first);
  }

  /// All ranks do what they have to, at paces of their own. `stop` is asked between two actions.
  void run(const std::function<bool()>& stop = [] { return false; }) {
    int idle = 0;
    while (!stop()) {
      std::vector<Rank> busy;
      for (Rank rank = 0; rank < sim_.size(); ++rank) {
        if (sim_.at(rank).alive && !programs_[static_cast<std::size_t>(rank)].empty()) {
          busy.push_back(rank);
        }
      }
      if (busy.empty()) return;
      if (sim_.chance(0.5)) sim_.deliver_one();
      if (sim_.chance(0.05)) {
        sim_.now += microseconds(300);
        sim_.tick(static_cast<Rank>(sim_.pick(static_cast<std::size_t>(sim_.size()))));
      }
      const Rank rank = busy[sim_.pick(busy.size())];
      auto& program = programs_[static_cast<std::size_t>(rank)];
      if (program.front()(sim_, rank)) {
        program.pop_front();
        idle = 0;
      } else if (++idle > 20 * sim_.size()) {
        sim_.settle();
        if (idle > 40 * sim_.size()) return;  // for ever: somebody has died
      }
    }
  }

  void expect_the_planned() {
    std::map<std::string, std::string> outcomes;  // by set, name and use
    for (Rank rank = 0; rank < sim_.size(); ++rank) {
      const auto& state = sim_.at(rank);
      ASSERT_TRUE(programs_[static_cast<std::size_t>(rank)].empty()) << "rank " << rank;
      ASSERT_FALSE(state.fatal) << state.fatal->message;
      ASSERT_TRUE(state.negotiator->pending().empty());
      ASSERT_EQ(state.negotiator->process_sets(), model_.live);
      ASSERT_EQ(state.joined_last, sim_.at(0).joined_last);
      ASSERT_EQ(state.joined_last.size(), static_cast<std::size_t>(rounds_));
      std::map<std::string, int> uses;
      for (const auto& [ticket, one] : state.submissions) {
        const std::string name = one.key.name.empty() ? "#" : one.key.name;
        ASSERT_NE(one.outcome, Outcome::Pending) << name;
        const std::string text = one.outcome == Outcome::Dispatched ? "" : one.error.message;
        if (name.starts_with(kRuns)) {
          ASSERT_EQ(text, "") << name;
        }
        if (name.starts_with(kDiffers)) {
          ASSERT_EQ(one.error.code, Code::Mismatch) << name << text;
        }
        if (name.starts_with(kHole)) {
          const bool by_join = with_joins_ && text.find("with Join") != std::string::npos;
          ASSERT_TRUE(by_join || text.starts_with("Process set has been removed")) << name << text;
        }
        if (name.starts_with(kJoined)) {
          ASSERT_NE(text.find("not supported with Join"), std::string::npos) << name << text;
        }
        const std::string id = numbered("", one.key.generation) + "/" + name +
                               numbered("/", static_cast<std::int64_t>(one.key.number));
        const std::string use = id + numbered("/", ++uses[id]);
        const auto [known, fresh] = outcomes.try_emplace(use, text);
        ASSERT_EQ(known->second, text) << use;
      }
    }
    sim_.check_order();
    expect_the_same_changes();
  }

  void expect_the_same_changes() {
    const auto changes_of = [&](Rank rank) {
      std::vector<std::string> texts;
      for (const auto& change : sim_.at(rank).changes) {
        if (!change) continue;
        texts.push_back(numbered(change->added ? "+" : "-", change->id) +
                        numbered("/", change->generation) + numbered(" of ", change->ranks.size()));
      }
      return texts;
    };
    std::vector<std::string> longest;
    for (Rank rank = 0; rank < sim_.size(); ++rank) {
      if (auto mine = changes_of(rank); mine.size() > longest.size()) longest = mine;
    }
    for (Rank rank = 0; rank < sim_.size(); ++rank) {
      const auto mine = changes_of(rank);
      ASSERT_TRUE(std::equal(mine.begin(), mine.end(), longest.begin()));
      if (sim_.at(rank).alive) {
        ASSERT_EQ(mine.size(), longest.size());
      }
    }
  }

 private:
  void then(Rank rank, Action action) {
    programs_[static_cast<std::size_t>(rank)].push_back(std::move(action));
  }

  static Action joins() {
    return [](Simulator& sim, Rank rank) {
      sim.join(rank);
      return true;
    };
  }
  static Action waits_for_joins(int rounds) {
    return [rounds](Simulator& sim, Rank rank) {
      return sim.at(rank).joined_last.size() >= static_cast<std::size_t>(rounds);
    };
  }
  static Action submits(std::int32_t set, std::string name, Signature signature, bool waited) {
    return [set, name, signature, waited](Simulator& sim, Rank rank) {
      if (signature.kind == Kind::Barrier) {
        sim.submit_counted(rank, signature, set);
      } else {
        const Key key = sim.key_in(rank, set, name);
        for (const auto& [ticket, one] : sim.at(rank).submissions) {
          if (one.outcome == Outcome::Pending && one.key == key) return false;
        }
        sim.submit(rank, key, signature, waited);
      }
      if (sim.chance(0.2)) sim.mark_all_waited(rank);
      return true;
    };
  }
  static Action waits_for_changes() {
    return [](Simulator& sim, Rank rank) {
      return std::ranges::none_of(sim.at(rank).submissions, [](const auto& one) {
        return one.second.outcome == Outcome::Pending && is_set_change(one.second.signature.kind);
      });
    };
  }

  void plan_operations(int step, const std::vector<Rank>& joined) {
    std::map<Rank, std::vector<Action>> actions;
    const std::size_t count = 1 + sim_.pick(6);
    for (std::size_t i = 0; i < count; ++i) {
      auto at = model_.live.begin();
      std::advance(at, static_cast<std::ptrdiff_t>(sim_.pick(model_.live.size())));
      const auto& [set, members] = *at;
      const bool misses = std::ranges::any_of(
          members, [&](Rank rank) { return std::ranges::find(joined, rank) != joined.end(); });
      Signature one = signature(Kind::Allreduce, {static_cast<std::int64_t>(1 + sim_.pick(3)), 8});
      if (sim_.chance(0.2)) one = signature(Kind::Allgather, {1, 8});
      Rank differs = -1, silent = -1;
      std::string_view what = kRuns;
      if (misses && (set != 0 || one.kind != Kind::Allreduce)) {
        what = kJoined;
      } else if (!misses && members.size() > 1 && sim_.chance(0.15)) {
        what = kDiffers;
        differs = members[sim_.pick(members.size())];
      } else if (!misses && set != 0 && members.size() > 1 && sim_.chance(0.15)) {
        what = kHole;
        silent = members[sim_.pick(members.size())];
      } else if (!misses && sim_.chance(0.15)) {
        one = signature(Kind::Barrier, {}, DType::UInt8);
      }
      // Some names come in every step and in many sets; what stays behind must not come again.
      const bool again = what == kRuns && sim_.chance(0.6);
      const std::string name =
          std::string(what) + numbered("", again ? -1 : step) + numbered(".", i);
      for (Rank rank : members) {
        if (rank == silent || std::ranges::find(joined, rank) != joined.end()) continue;
        Signature mine = one;
        if (rank == differs) mine.dtype = DType::Int32;
        actions[rank].push_back(submits(set, name, mine, sim_.chance(0.4)));
      }
    }
    for (auto& [rank, all] : actions) {
      std::ranges::shuffle(all, sim_.random);
      for (Action& action : all) then(rank, std::move(action));
    }
  }

  void plan_change() {
    if (model_.live.size() > 1 && sim_.chance(0.4)) {
      auto at = std::next(model_.live.begin());
      std::advance(at, static_cast<std::ptrdiff_t>(sim_.pick(model_.live.size() - 1)));
      plan_removal(at->first);
      return;
    }
    std::vector<Rank> members;
    for (Rank rank = 0; rank < sim_.size(); ++rank) {
      if (sim_.chance(0.5)) members.push_back(rank);
    }
    if (members.empty()) return;
    if (!model_.has(members)) model_.add(members);
    for (Rank rank = 0; rank < sim_.size(); ++rank) {
      then(rank, [members](Simulator& sim, Rank self) {
        sim.add_set(self, members);
        return true;
      });
      then(rank, waits_for_changes());
    }
  }
  void plan_removal(std::int32_t set) {
    model_.remove(set);
    for (Rank rank = 0; rank < sim_.size(); ++rank) {
      then(rank, [set](Simulator& sim, Rank self) {
        sim.remove_set(self, set);
        return true;
      });
      then(rank, waits_for_changes());
    }
  }

  Simulator& sim_;
  const bool with_joins_;
  Model model_;
  int rounds_ = 0;
  std::vector<std::deque<Action>> programs_;  // by rank
};

class SetHistory : public testing::TestWithParam<int> {
 protected:
  static constexpr int kHistories = 50;  // per parameter: a test of one each would be slow to list

  /// Runs `body` on many worlds; a failure names the seed.
  static void each(int max_size, const std::function<void(Simulator&)>& body) {
    for (int i = 0; i < kHistories && !HasFailure(); ++i) {
      const int seed = GetParam() * kHistories + i;
      SCOPED_TRACE(numbered("seed ", seed));
      Simulator source({{0}}, {}, static_cast<std::uint64_t>(seed) * 7919 + 29);
      const int size = 1 + static_cast<int>(source.pick(static_cast<std::size_t>(max_size)));
      NegotiatorOptions options = random_options(source);
      Simulator sim(random_groups(source, size), options, static_cast<std::uint64_t>(seed));
      body(sim);
    }
  }
};

TEST_P(SetHistory, every_operation_ends_as_planned_in_one_order) {
  each(14, [](Simulator& sim) {
    History history(sim, false);
    history.plan(6);
    history.plan_end();
    history.run();
    sim.settle();
    history.expect_the_planned();
  });
}

TEST_P(SetHistory, joins_in_between_change_only_what_needs_those_who_joined) {
  each(10, [](Simulator& sim) {
    History history(sim, true);
    history.plan(6);
    history.plan_end();
    history.run();
    sim.settle();
    history.expect_the_planned();
  });
}

TEST_P(SetHistory, a_shutdown_at_any_time_ends_everything) {
  each(12, [](Simulator& sim) {
    History history(sim, true);
    history.plan(5);
    std::size_t left = sim.pick(400);
    history.run([&] { return left-- == 0; });
    sim.shutdown(static_cast<Rank>(sim.pick(static_cast<std::size_t>(sim.size()))));
    sim.settle();
    for (const auto& state : sim.ranks) {
      ASSERT_TRUE(state.closed);
      ASSERT_EQ(state.join_ticket, 0U) << "a join was forgotten";
      for (const auto& [ticket, one] : state.submissions) {
        ASSERT_NE(one.outcome, Outcome::Pending) << one.key.name;
      }
      ASSERT_EQ(state.negotiator->process_sets(), sim.at(0).negotiator->process_sets());
    }
    sim.check_order();
    history.expect_the_same_changes();
  });
}

TEST_P(SetHistory, a_death_at_any_time_leaves_the_others_in_one_order) {
  each(12, [](Simulator& sim) {
    History history(sim, true);
    history.plan(5);
    std::size_t left = sim.pick(300);
    const auto victim = static_cast<Rank>(sim.pick(static_cast<std::size_t>(sim.size())));
    history.run([&] {
      if (left-- == 0) sim.kill(victim);
      return false;
    });
    sim.settle();
    sim.check_order();
  });
}

TEST_P(SetHistory, hostile_bytes_do_no_harm) {
  each(8, [](Simulator& sim) {
    History history(sim, false);
    history.plan(4);
    std::size_t left = sim.pick(200);
    history.run([&] { return left-- == 0; });
    sim.hostile = true;
    Effects effects;
    for (const auto& [edge, queue] : sim.edges) {
      for (const auto& message : queue) {
        for (int copy = 0; copy < 10; ++copy) {
          auto bytes = message;
          for (std::size_t flips = 1 + sim.pick(3); flips > 0; --flips) {
            bytes[sim.pick(bytes.size())] =
                static_cast<std::byte>(sim.chance(0.5) ? sim.pick(12) : sim.pick(256));
          }
          (void)receive(*sim.at(edge.second).negotiator, edge.first, bytes, sim.now, effects);
          sim.at(edge.second).negotiator->tick(sim.now, effects);
          effects.clear();
        }
        (void)receive(*sim.at(edge.second).negotiator, edge.first, message, sim.now, effects);
        effects.clear();
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Seeds, SetHistory, testing::Range(0, 12));

}  // namespace
}  // namespace farandole::test
