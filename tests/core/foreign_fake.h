/// A backend as if from another language: messages in memory, with every kind of trouble on
/// request.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "backends/foreign_backends.h"

namespace farandole::testing {

/// What all ranks of a test have in common.
struct FakeWorld {
  std::set<ForeignVerb> verbs{ForeignVerb::Send, ForeignVerb::Recv};
  bool knows_floats = true;
  Duration delay = Duration::zero();  ///< of every verb, asleep
  Rank fails = -1;                    ///< its allreduce fails
  Rank waits = -1;                    ///< its allreduce waits until abort()
  Rank stuck = -1;                    ///< its allreduce sleeps until `released`

  std::mutex mutex;  // guards what follows
  std::condition_variable changed;
  std::map<std::tuple<std::vector<Rank>, int, int>, std::deque<std::vector<std::byte>>> wires;
  std::map<std::vector<Rank>, std::vector<std::vector<std::byte>>> boards;
  std::map<Rank, std::vector<std::string>> called;  ///< by rank: set and verb, in order
  int opened = 0;
  int closed = 0;
  int aborted = 0;
  bool released = false;

  void release() {
    const std::lock_guard lock(mutex);
    released = true;
    changed.notify_all();
  }
};

class FakeBackend final : public Foreign {
 public:
  FakeBackend(std::shared_ptr<FakeWorld> world, Members members)
      : world_(std::move(world)), members_(std::move(members)) {
    const std::lock_guard lock(world_->mutex);
    ++world_->opened;
  }

  std::unique_ptr<Operation> call(const ForeignCall& call) override {
    return std::make_unique<Call>(*this, call);
  }
  Result<void> close() override {
    const std::lock_guard lock(world_->mutex);
    ++world_->closed;
    return {};
  }
  void abort() noexcept override {
    const std::lock_guard lock(world_->mutex);
    ++world_->aborted;
    aborted_ = true;
    world_->changed.notify_all();
  }

 private:
  class Call final : public Operation {
   public:
    Call(FakeBackend& backend, const ForeignCall& call) : backend_(backend), call_(call) {}

    Result<Step> step() override {
      FakeWorld& world = *backend_.world_;
      const Members& members = backend_.members_;
      const Rank me = members.ranks[static_cast<std::size_t>(members.self)];
      if (world.delay > Duration::zero()) std::this_thread::sleep_for(world.delay);
      std::unique_lock lock(world.mutex);
      if (!begun_) {
        begun_ = true;
        std::string said(name_of(call_.verb));
        for (const Rank rank : members.ranks) said += " " + std::to_string(rank);
        world.called[me].push_back(std::move(said));
      }
      switch (call_.verb) {
        case ForeignVerb::Send:
          world.wires[{members.ranks, members.self, call_.peer}].emplace_back(call_.in.begin(),
                                                                              call_.in.end());
          return Step::Done;
        case ForeignVerb::Recv: {
          auto& wire = world.wires[{members.ranks, call_.peer, members.self}];
          if (wire.empty()) return Step::Blocked;
          if (wire.front().size() != call_.out.size()) {
            return Error{.code = Code::Backend, .message = "a message of another length"};
          }
          if (!call_.out.empty()) {
            std::memcpy(call_.out.data(), wire.front().data(), call_.out.size());
          }
          wire.pop_front();
          return Step::Done;
        }
        case ForeignVerb::Allreduce:
          if (me == world.fails) return Error{.code = Code::Backend, .message = "no luck today"};
          if (me == world.waits) {
            world.changed.wait(lock, [this] { return backend_.aborted_; });
            return Error{.code = Code::Backend, .message = "woken"};
          }
          if (me == world.stuck) {
            world.changed.wait(lock, [&world] { return world.released; });
            std::memset(call_.out.data(), 0, call_.out.size());  // as who does not know does
            return Step::Done;
          }
          return reduce(world.boards[members.ranks]);
        default:
          return Error{.code = Code::Backend, .message = "there is no such verb"};
      }
    }

   private:
    /// Everybody puts its own on the board; who finds all of them sums up. The last one wipes it.
    Result<Step> reduce(std::vector<std::vector<std::byte>>& board) {
      const auto size = static_cast<std::size_t>(backend_.members_.size());
      const auto self = static_cast<std::size_t>(backend_.members_.self);
      board.resize(2 * size);  // contributions, and marks of those that have read
      if (!put_) {
        if (!board[self].empty() || !board[size + self].empty()) return Step::Blocked;
        board[self].assign(call_.out.begin(), call_.out.end());
        put_ = true;
      }
      const auto there = [&](std::size_t m) { return board[m].size() == call_.out.size(); };
      for (std::size_t m = 0; m < size; ++m) {
        if (!there(m)) return Step::Blocked;
      }
      std::vector<float> sum(call_.out.size() / sizeof(float));
      for (std::size_t m = 0; m < size; ++m) {
        for (std::size_t i = 0; i < sum.size(); ++i) {
          float value = 0;
          std::memcpy(&value, board[m].data() + i * sizeof value, sizeof value);
          sum[i] += value;
        }
      }
      std::memcpy(call_.out.data(), sum.data(), call_.out.size());
      board[size + self].resize(1);
      if (std::all_of(board.begin() + static_cast<std::ptrdiff_t>(size), board.end(),
                      [](const auto& mark) { return !mark.empty(); })) {
        board.clear();
      }
      return Step::Done;
    }

    FakeBackend& backend_;
    ForeignCall call_;
    bool begun_ = false;
    bool put_ = false;
  };

  std::shared_ptr<FakeWorld> world_;
  Members members_;
  bool aborted_ = false;  // guarded by the world's mutex
};

class FakeClass final : public ForeignClass {
 public:
  explicit FakeClass(std::shared_ptr<FakeWorld> world) : world_(std::move(world)) {}
  std::string_view name() const noexcept override { return "Fake"; }
  bool has(ForeignVerb verb) const noexcept override { return world_->verbs.contains(verb); }
  bool reduces(DType dtype, ReduceOp op) const noexcept override {
    return world_->knows_floats && dtype == DType::Float32 && op == ReduceOp::Sum;
  }
  Result<std::shared_ptr<Foreign>> open(const Members& members) override {
    return std::shared_ptr<Foreign>(std::make_shared<FakeBackend>(world_, members));
  }

 private:
  std::shared_ptr<FakeWorld> world_;
};

}  // namespace farandole::testing
