/// One order of operations on all ranks, though what is proposed and what is dispatched come over
/// different connections, one of which is late.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>
#include <regex>
#include <thread>

#include "cluster.h"
#include "engine/failure/heartbeat.h"
#include "engine/fast_path/fast_path.h"
#include "relay.h"

namespace farandole::testing {
namespace {

using std::chrono::milliseconds;

/// Lets nothing through while it is shut.
class Valve {
 public:
  void shut() {
    held_ = 0;
    shut_ = true;
  }
  void open() { shut_ = false; }
  /// Bytes that stand before it.
  [[nodiscard]] std::size_t held() const { return held_; }
  [[nodiscard]] std::size_t passed() const { return passed_; }
  [[nodiscard]] Relay::Weather weather() {
    return [this](std::span<const std::byte> waiting) -> Relay::Turn {
      if (shut_) {
        held_ = waiting.size();
        return {.wait = milliseconds(1)};
      }
      passed_ += waiting.size();
      return {.bytes = waiting.size()};
    };
  }

 private:
  std::atomic<bool> shut_{false};
  std::atomic<std::size_t> passed_{0};
  std::atomic<std::size_t> held_{0};
};

/// Counts what the negotiators say to each other in one direction of a control connection.
class Talk {
 public:
  [[nodiscard]] std::size_t messages() const { return messages_; }
  [[nodiscard]] Relay::Weather weather() {
    return [this](std::span<const std::byte> waiting) -> Relay::Turn {
      for (const std::byte byte : waiting) read(byte);
      return {.bytes = waiting.size()};
    };
  }

 private:
  void read(std::byte byte) {
    if (head_ < 4) {
      left_ |= std::to_integer<std::size_t>(byte) << (8 * head_++);
      first_ = true;
      return;
    }
    if (std::exchange(first_, false) && byte != kAskFrame && byte != kBeatFrame) ++messages_;
    if (--left_ == 0) head_ = 0;
  }

  std::atomic<std::size_t> messages_{0};
  std::size_t left_ = 0;
  int head_ = 0;
  bool first_ = false;
};

/// Makes two ranks believe that they have proposed at one place in the order, though rank 1 has run
/// a dispatch before its proposal and rank 0 has not: each gets the note of the other with its own
/// position, and rank 0 gets it before the data of that dispatch. What the engines do then is what
/// a mistake in the order of operations would make them do.
class Forger {
 public:
  void arm() {
    noted_ = false;
    armed_ = true;
  }
  /// Everything goes its way, unless it is done.
  void disarm() { armed_ = false; }
  /// The note of rank 0 stands here.
  [[nodiscard]] bool noted() const { return noted_; }
  [[nodiscard]] bool done() const { return done_; }

  /// Of the data from rank 0 to rank 1.
  [[nodiscard]] Relay::Weather forth() {
    return [this](std::span<std::byte> waiting) -> Relay::Turn {
      const auto note = find_note(waiting);
      if (note && armed_ && !done_) {
        first_ = position(*note);
        noted_ = true;
        const auto before = static_cast<std::size_t>(note->data() - waiting.data());
        return {.wait = milliseconds(1), .bytes = before};
      }
      if (note && done_ && first_) {
        std::memcpy(note->data() + kPosition, &second_, sizeof second_);
      }
      if (note) first_.reset();
      return {.bytes = waiting.size()};
    };
  }

  /// Of the data from rank 1 to rank 0.
  [[nodiscard]] Relay::Weather back() {
    return [this](std::span<std::byte> waiting) -> Relay::Turn {
      if (!armed_ || done_) return {.bytes = waiting.size()};
      const auto note = find_note(waiting);
      if (!note || !first_) return {.wait = milliseconds(1)};
      second_ = position(*note);
      std::memcpy(note->data() + kPosition, &*first_, sizeof *first_);
      std::rotate(waiting.data(), note->data(), note->data() + note->size());
      done_ = true;
      return {.bytes = waiting.size()};
    };
  }

 private:
  static constexpr std::size_t kHeader = 24;
  static constexpr std::size_t kCount = kHeader + 4;      // of the tensors
  static constexpr std::size_t kPosition = kHeader + 24;  // of the proposal

  /// The first proposal among the whole messages in there.
  static std::optional<std::span<std::byte>> find_note(std::span<std::byte> bytes) {
    constexpr std::uint32_t kNote = 0x6e647552;
    while (bytes.size() >= kHeader) {
      std::uint64_t length = 0;
      std::memcpy(&length, bytes.data() + 8, sizeof length);
      if (length > bytes.size() - kHeader) break;
      const auto message = bytes.first(kHeader + length);
      std::uint32_t word = 0;
      std::memcpy(&word, message.data(), sizeof word);
      if (word == kNote && message.size() >= kPosition + sizeof(std::uint64_t)) {
        std::memcpy(&word, message.data() + kCount, sizeof word);
        if (word != 0) return message;
      }
      bytes = bytes.subspan(message.size());
    }
    return std::nullopt;
  }

  static std::uint64_t position(std::span<const std::byte> note) {
    std::uint64_t position = 0;
    std::memcpy(&position, note.data() + kPosition, sizeof position);
    return position;
  }

  std::atomic<bool> armed_{false};
  std::atomic<bool> noted_{false};
  std::atomic<bool> done_{false};
  std::optional<std::uint64_t> first_;  // position of the proposal of rank 0 that stands here
  std::uint64_t second_ = 0;            // of rank 1
};

/// Two hosts of one rank each, and what their tests have in common.
class TwoHosts : public ::testing::Test {
 protected:
  Talk down_;  // from rank 0, the coordinator
  Talk up_;    // to it
  Relay relay_;
  Cluster cluster_;

  TwoHosts(Relay::Weather forth, Relay::Weather back)
      : cluster_({{0}, {1}}, EngineOptions(), -1, {}, {}, [&](const Connection& connection) {
          return connection.control ? relay_.connect(down_.weather(), up_.weather())
                                    : relay_.connect(std::move(forth), std::move(back));
        }) {}

  /// Blocks until the engine has come to a state that nothing tells of.
  static void await(const std::function<bool()>& there) {
    const auto deadline = Clock::now() + std::chrono::seconds(20);
    while (!there()) {
      ASSERT_LT(Clock::now(), deadline);
      std::this_thread::sleep_for(milliseconds(1));
    }
  }

  /// The same of a state that may not come: now and then the engine's own thread is in the way of
  /// a proposal.
  static bool comes(const std::function<bool()>& there) {
    const auto deadline = Clock::now() + std::chrono::seconds(2);
    while (!there() && Clock::now() < deadline) std::this_thread::sleep_for(milliseconds(1));
    return there();
  }

  /// So that it is known, and can be proposed.
  void make_known(const std::string& name, std::size_t count) {
    cluster_.each([&](Rank, Engine& engine) {
      for (int i = 0; i < 2; ++i) expect_blocking(engine, name, count, 1.0F, 2.0F);
    });
  }

  static void expect_blocking(Engine& engine, const std::string& name, std::size_t count,
                              float value, float sum) {
    std::vector<float> values(count, value);
    Submission submission = allreduce_of(values, name);
    auto handle = engine.submit(blocking(std::move(submission)));
    ASSERT_TRUE(handle) << handle.error().what();
    if (*handle != 0) expect_finished(engine, *handle);
    for (const float got : values) ASSERT_EQ(got, sum) << name;
  }

  /// The same where the world may end.
  static void expect_right_or_failed(Engine& engine, const std::string& name, std::size_t count,
                                     float value, float sum) {
    std::vector<float> values(count, value);
    Submission submission = allreduce_of(values, name);
    auto handle = engine.submit(blocking(std::move(submission)));
    if (!handle) return;
    if (*handle != 0) {
      const auto work = finish(engine, *handle);
      if (!work || work->error) return;
    }
    for (const float got : values) ASSERT_EQ(got, sum) << name;
  }

  static void expect_finished(Engine& engine, Handle handle) {
    const auto work = finish(engine, handle);
    ASSERT_TRUE(work);
    ASSERT_FALSE(work->error) << work->error->what();
  }

  /// Of `values` of rank 1, by name y.
  static Handle start_broadcast(Engine& engine, std::vector<float>& values) {
    Submission submission = allreduce_of(values, "y", false);
    submission.kind = Kind::Broadcast;
    submission.root = 1;
    auto handle = engine.submit(std::move(submission));
    EXPECT_TRUE(handle);
    engine.mark_all_waited();
    return handle ? *handle : Handle{0};
  }
};

struct Valves {
  Valve valve_;                   // data, from rank 0 to rank 1
  Valve back_;                    // data, from rank 1 to rank 0
  std::atomic<int> proposed_{0};  // rounds in which notes were held back
};

/// What is said on the data connection can be held back.
class LateNotes : protected Valves, public TwoHosts {
 protected:
  LateNotes() : TwoHosts(valve_.weather(), back_.weather()) {}
};

struct Forged {
  Forger forger_;
};

class ForgedNotes : protected Forged, public TwoHosts {
 protected:
  ForgedNotes() : TwoHosts(forger_.forth(), forger_.back()) {}

  /// The world has ended here.
  static std::string failure(Engine& engine) {
    await([&] { return engine.failure().has_value(); });
    const auto error = engine.failure();
    return error ? error->what() : "";
  }
};

constexpr std::size_t kLarge = 30000;

/// Rank 1 knows that all have proposed x before it runs y; rank 0, that y was dispatched before it
/// knows that all have proposed x.
TEST_F(LateNotes, what_is_dispatched_behind_an_offer_comes_behind_it_on_every_rank) {
  make_known("x", kLarge);
  for (int round = 0; round < 5; ++round) {
    back_.shut();
    const std::size_t before = down_.messages();
    const std::size_t noted = valve_.passed();
    cluster_.each([&](Rank rank, Engine& engine) {
      std::jthread blocking(
          [&] { expect_blocking(engine, "x", kLarge, static_cast<float>(rank + 1), 3.0F); });
      // Rank 1 has rank 0's note; rank 0 waits for that of rank 1.
      if (!comes([&] { return valve_.passed() > noted && back_.held() > 0; })) back_.open();
      proposed_ += back_.held() > 0 ? 1 : 0;
      std::vector<float> late(kLarge, static_cast<float>(100 * (rank + 1)));
      auto handle = engine.submit(allreduce_of(late, "y", false));
      ASSERT_TRUE(handle);
      engine.mark_all_waited();
      if (rank == 0) {
        await([&] { return down_.messages() > before; });
        back_.open();
      }
      expect_finished(engine, *handle);
      blocking.join();
      for (const float got : late) ASSERT_EQ(got, 300.0F) << "y of round " << round;
    });
  }
  EXPECT_GT(proposed_, 0);
}

/// What rank 1 finishes without rank 0 must not make it believe that it proposes x at the same
/// place.
TEST_F(LateNotes, an_offer_that_was_made_behind_a_dispatch_is_not_the_one_made_before_it) {
  make_known("x", kLarge);
  for (int round = 0; round < 5; ++round) {
    valve_.shut();
    const std::size_t sent = back_.passed();
    cluster_.each([&](Rank rank, Engine& engine) {
      std::vector<float> late(kLarge, static_cast<float>(100 * rank));
      if (rank == 1) {
        expect_finished(engine, start_broadcast(engine, late));
        const std::size_t reported = up_.messages();
        std::jthread opener([&] {
          // The data of y, and a note; or a report, if the engine's own thread was in the way.
          await([&] {
            return back_.passed() > sent + kLarge * sizeof(float) + 56 || up_.messages() > reported;
          });
          valve_.open();
        });
        expect_blocking(engine, "x", kLarge, 2.0F, 3.0F);
        return;
      }
      std::jthread blocking([&] { expect_blocking(engine, "x", kLarge, 1.0F, 3.0F); });
      if (!comes([&] { return valve_.held() > 0; })) valve_.open();
      proposed_ += valve_.held() > 0 ? 1 : 0;
      expect_finished(engine, start_broadcast(engine, late));
      blocking.join();
      for (const float got : late) ASSERT_EQ(got, 100.0F) << "y of round " << round;
    });
  }
  EXPECT_GT(proposed_, 0);
}

/// Rank 0 runs x while what rank 1 brings is y, of the same length in messages.
TEST_F(ForgedNotes, two_operations_of_one_length_in_two_orders_are_an_error) {
  make_known("x", kLarge);
  std::string failures[2];
  for (int attempt = 0; attempt < 20 && !forger_.done(); ++attempt) {
    forger_.arm();
    cluster_.each([&](Rank rank, Engine& engine) {
      std::vector<float> late(kLarge, static_cast<float>(100 * rank));
      if (rank == 1) {
        expect_finished(engine, start_broadcast(engine, late));
        const std::size_t reported = up_.messages();
        std::jthread watcher([&] {
          await([&] { return forger_.done() || up_.messages() > reported; });
          forger_.disarm();
        });
        expect_right_or_failed(engine, "x", kLarge, 2.0F, 3.0F);
      } else {
        std::jthread blocking([&] { expect_right_or_failed(engine, "x", kLarge, 1.0F, 3.0F); });
        if (!comes([&] { return forger_.noted(); })) forger_.disarm();
        const auto work = finish(engine, start_broadcast(engine, late));
        blocking.join();
        if (work && !work->error) {
          for (const float got : late) ASSERT_EQ(got, 100.0F);
        }
      }
      if (forger_.done()) failures[rank] = failure(engine);
    });
  }
  ASSERT_TRUE(forger_.done()) << "no proposal in all attempts";
  EXPECT_EQ(failures[0], failures[1]);
  // Who found it, whose data they are, and both operations.
  const std::regex expected(
      "rank 0 on host host0: allreduce\\.x: rank 1 on host host1 brings data of dispatch [0-9]+, "
      "while this rank runs part 1 of what was agreed in round [0-9]+: .*");
  EXPECT_TRUE(std::regex_match(failures[0], expected)) << failures[0];
}

}  // namespace
}  // namespace farandole::testing
