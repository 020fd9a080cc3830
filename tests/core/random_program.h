/// Programs that all ranks run alike on several threads each, in their own time: every result is
/// compared with plain arithmetic.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cluster.h"

namespace farandole::testing {

/// What went wrong first, for all ranks: the others stop then. Outlives the engines.
struct Outcome {
  void keep(std::shared_ptr<void> memory) {
    const std::lock_guard lock(mutex);
    kept.push_back(std::move(memory));
  }
  std::string world;  ///< for errors
  std::mutex mutex;
  std::vector<std::shared_ptr<void>> kept;  ///< what engines may still write to
  std::atomic<bool> broken{false};
  std::atomic<std::uint64_t> operations{0};  ///< that ended as they should, on all ranks together
};

/// One thread of one rank. All ranks make the same one for a thread; what they do in their own
/// time depends on the rank as well.
class ProgramThread {
 public:
  /// `sets`: members by number, those of this rank and the others.
  ProgramThread(Engine& engine, Outcome& outcome, std::vector<std::vector<Rank>> sets,
                std::uint32_t seed, int thread)
      : engine_(engine),
        outcome_(outcome),
        sets_(std::move(sets)),
        thread_(thread),
        common_(seed * 31U + static_cast<std::uint32_t>(thread)),
        own_(common_() + static_cast<std::uint32_t>(engine.rank()) * 7919U) {}

  void run(int operations) {
    for (number_ = 0; number_ < operations && !outcome_.broken; ++number_) {
      begin();
      while (open_.size() > below(own_, 4)) end_one();
      if (below(own_, 16) == 0) std::this_thread::yield();
    }
    while (!open_.empty()) end_one();
  }

  /// One large allreduce after the other, all of one length and by one name: the first thread's, in
  /// all sets in turns, may be proposed; those of the others, of the world, take the regular way.
  /// Rests between them, so that a rank has nothing else under way now and then.
  void repeat(int operations, std::uint32_t count) {
    for (number_ = 0; number_ < operations && !outcome_.broken; ++number_) {
      // All ranks rest for long at the same step: else three of them hardly ever have nothing else.
      const std::uint32_t most_us = thread_ == 0 ? 500 : number_ % 8 == 7 ? 40000 : 5000;
      std::this_thread::sleep_for(std::chrono::microseconds(below(own_, most_us)));
      const std::size_t set =
          thread_ == 0 ? static_cast<std::size_t>(number_) / 2 % sets_.size() : 0;
      if (!std::ranges::binary_search(sets_[set], engine_.rank())) continue;
      Call call;
      Submission submission;
      submission.process_set = static_cast<std::int32_t>(set);
      reduce(call, submission, sets_[set], {count});
      call.name = "t" + std::to_string(thread_) + ".same." + std::to_string(count);
      submission.name = call.name;
      submission.mode = below(own_, 2) == 0 ? Mode::Awaited : Mode::Asynchronous;
      if (thread_ == 0) submission.mode = below(own_, 4) == 0 ? Mode::Callback : Mode::Blocking;
      auto handle = engine_.submit(std::move(submission));
      if (!handle) return fail(call, handle.error().what());
      call.handle = *handle;
      end(std::move(call));
    }
  }

 private:
  struct Call {
    std::string name;
    Handle handle = 0;
    std::vector<std::vector<float>> in;
    std::vector<std::vector<float>> out;
    std::vector<std::vector<float>> want;
    std::vector<std::int32_t> received;
  };

  static std::uint32_t below(std::mt19937& random, std::uint32_t end) { return random() % end; }

  /// What a rank brings: small whole numbers, so that sums are exact in any order.
  [[nodiscard]] float value(Rank rank, std::size_t at) const {
    return static_cast<float>((rank + 1) * (number_ % 89 + 1 + 100 * thread_)) +
           static_cast<float>(at % 13);
  }
  [[nodiscard]] std::vector<float> values(Rank rank, std::size_t count,
                                          std::size_t from = 0) const {
    std::vector<float> all(count);
    for (std::size_t i = 0; i < count; ++i) all[i] = value(rank, from + i);
    return all;
  }
  [[nodiscard]] std::vector<float> sum(const std::vector<Rank>& ranks, std::size_t count) const {
    std::vector<float> all(count);
    for (const Rank rank : ranks) {
      for (std::size_t i = 0; i < count; ++i) all[i] += value(rank, i);
    }
    return all;
  }

  void begin() {
    // The same on all ranks, whether they are in the set or not.
    constexpr std::uint32_t kSizes[] = {1, 17, 1000, 30000, 30000, 70000};
    const std::uint32_t kind = below(common_, 16);
    const std::uint32_t size = kSizes[below(common_, 6)];
    const std::uint32_t other = below(common_, 5) == 0 ? below(common_, sets_.size()) : 0;
    const std::uint32_t root = common_();
    const std::uint32_t name = below(common_, 2);
    const auto& ranks = sets_[other];
    if (!std::ranges::binary_search(ranks, engine_.rank())) return;
    Call call;
    Submission submission;
    submission.process_set = static_cast<std::int32_t>(other);
    if (kind < 9) {
      reduce(call, submission, ranks, {size});
    } else if (kind == 9) {
      submission.grouped = true;
      reduce(call, submission, ranks, {size, 5, size / 3 + 1});
    } else if (kind < 12) {
      broadcast(call, submission, size, ranks[root % ranks.size()]);
    } else if (kind == 12) {
      gather(call, submission, ranks, size);
    } else if (kind == 13) {
      exchange(call, submission, ranks, size, root);
    } else if (kind == 14) {
      scatter(call, submission, ranks, size);
    } else {
      barrier(submission);
    }
    call.name = "t" + std::to_string(thread_) + "." + std::to_string(other) + "." +
                std::to_string(kind) + "." + std::to_string(size) + "." + std::to_string(name);
    if (submission.kind == Kind::Broadcast) call.name += "." + std::to_string(submission.root);
    if (submission.kind == Kind::Alltoall) call.name += "." + std::to_string(root % 5);
    submit(std::move(call), std::move(submission));
  }

  static Tensor tensor(const std::vector<float>& in, std::vector<float>& out) {
    return {.in = reinterpret_cast<const std::byte*>(in.data()),
            .out = reinterpret_cast<std::byte*>(out.data()),
            .dtype = DType::Float32,
            .shape = {static_cast<std::int64_t>(in.size())}};
  }

  void reduce(Call& call, Submission& submission, const std::vector<Rank>& ranks,
              std::vector<std::uint32_t> counts) {
    submission.kind = Kind::Allreduce;
    for (const std::uint32_t count : counts) {
      call.in.push_back(values(engine_.rank(), count));
      call.out.emplace_back(count);
      call.want.push_back(sum(ranks, count));
    }
    for (std::size_t i = 0; i < counts.size(); ++i) {
      submission.tensors.push_back(tensor(call.in[i], call.out[i]));
    }
  }

  void broadcast(Call& call, Submission& submission, std::uint32_t count, Rank root) {
    submission.kind = Kind::Broadcast;
    submission.root = root;
    call.in.push_back(values(engine_.rank(), count));
    call.out.emplace_back(count);
    call.want.push_back(values(root, count));
    submission.tensors.push_back(tensor(call.in[0], call.out[0]));
  }

  void gather(Call& call, Submission& submission, const std::vector<Rank>& ranks,
              std::uint32_t size) {
    submission.kind = Kind::Allgather;
    const auto rows = [&](Rank rank) { return size / 4 + static_cast<std::uint32_t>(rank); };
    call.in.push_back(values(engine_.rank(), rows(engine_.rank())));
    call.want.emplace_back();
    for (const Rank rank : ranks) {
      const auto part = values(rank, rows(rank));
      call.want[0].insert(call.want[0].end(), part.begin(), part.end());
    }
    call.out.emplace_back();
    submission.tensors.push_back(tensor(call.in[0], call.out[0]));
    submission.tensors[0].out = nullptr;  // the engine allocates
  }

  /// Rows from one rank to another; none between some.
  [[nodiscard]] static std::uint32_t rows(Rank from, Rank to, std::uint32_t size,
                                          std::uint32_t salt) {
    return (static_cast<std::uint32_t>(from * 3 + to) + salt) % 3 * (size / 8 + 1);
  }
  void exchange(Call& call, Submission& submission, const std::vector<Rank>& ranks,
                std::uint32_t size, std::uint32_t salt) {
    salt %= 5;
    submission.kind = Kind::Alltoall;
    std::vector<std::int64_t> splits;
    std::size_t total = 0;
    for (const Rank rank : ranks) {
      splits.push_back(rows(engine_.rank(), rank, size, salt));
      total += static_cast<std::size_t>(splits.back());
    }
    call.in.push_back(values(engine_.rank(), total));
    call.out.emplace_back();
    call.want.emplace_back();
    for (const Rank from : ranks) {
      std::size_t begin = 0;
      for (const Rank to : ranks) {
        if (to == engine_.rank()) break;
        begin += rows(from, to, size, salt);
      }
      const auto part = values(from, rows(from, engine_.rank(), size, salt), begin);
      call.want[0].insert(call.want[0].end(), part.begin(), part.end());
    }
    call.received.resize(ranks.size());
    submission.tensors.push_back(tensor(call.in[0], call.out[0]));
    submission.tensors[0].out = nullptr;
    submission.tensors[0].splits = splits;
    submission.tensors[0].received = call.received.data();
  }

  void scatter(Call& call, Submission& submission, const std::vector<Rank>& ranks,
               std::uint32_t size) {
    submission.kind = Kind::Reducescatter;
    const std::size_t members = ranks.size();
    const std::size_t self =
        static_cast<std::size_t>(std::ranges::lower_bound(ranks, engine_.rank()) - ranks.begin());
    const std::size_t extra = size % members;
    const std::size_t begin = self * (size / members) + std::min(self, extra);
    const std::size_t count = size / members + (self < extra ? 1 : 0);
    call.in.push_back(values(engine_.rank(), size));
    const auto whole = sum(ranks, size);
    call.want.emplace_back(whole.begin() + static_cast<std::ptrdiff_t>(begin),
                           whole.begin() + static_cast<std::ptrdiff_t>(begin + count));
    call.out.emplace_back();
    submission.tensors.push_back(tensor(call.in[0], call.out[0]));
    submission.tensors[0].out = nullptr;
  }

  static void barrier(Submission& submission) { submission.kind = Kind::Barrier; }

  void submit(Call call, Submission submission) {
    if (submission.kind == Kind::Barrier) {
      if (thread_ != 0) return;  // matched by count: by one thread of each rank
    } else {
      submission.name = call.name;
    }
    // A name is in flight once.
    while (std::ranges::any_of(open_, [&](const Call& one) { return one.name == call.name; })) {
      end_one();
    }
    const std::uint32_t way = below(own_, 3);
    if (outcome_.broken) return;
    constexpr Mode kModes[] = {Mode::Blocking, Mode::Awaited, Mode::Asynchronous};
    submission.mode = kModes[way];
    const auto handle = engine_.submit(std::move(submission));
    if (handle && way == 2) engine_.poll(*handle);
    if (!handle) return fail(call, handle.error().what());
    call.handle = *handle;
    open_.push_back(std::move(call));
    if (way < 2) end_last();
  }

  void end_one() {
    const std::size_t at = below(own_, static_cast<std::uint32_t>(open_.size()));
    Call call = std::move(open_[at]);
    open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(at));
    end(std::move(call));
  }
  void end_last() {
    Call call = std::move(open_.back());
    open_.pop_back();
    end(std::move(call));
  }

  void end(Call call) {
    if (call.handle != 0) {
      const auto deadline = Clock::now() + std::chrono::seconds(60);
      std::optional<bool> done;
      do {
        done = engine_.wait(call.handle, Clock::now() + std::chrono::milliseconds(200));
      } while (done && !*done && Clock::now() < deadline && !outcome_.broken);
      if (outcome_.broken) return keep(std::move(call));
      if (!done || !*done) {
        fail(call, "no end");
        return keep(std::move(call));
      }
      const auto work = engine_.take(call.handle);
      if (work->error) return fail(call, work->error->what());
      for (std::size_t i = 0; i < work->outputs.size() && i < call.out.size(); ++i) {
        const auto& output = work->outputs[i];
        if (!call.out[i].empty() || call.want[i].empty()) continue;
        const auto* data = reinterpret_cast<const float*>(output.buffer.data());
        if (data != nullptr) call.out[i].assign(data, data + call.want[i].size());
      }
    }
    for (std::size_t i = 0; i < call.want.size(); ++i) {
      const auto wrong = std::ranges::mismatch(call.out[i], call.want[i]);
      if (wrong.in1 == call.out[i].end() && wrong.in2 == call.want[i].end()) continue;
      return fail(call, "wrong at " + std::to_string(wrong.in1 - call.out[i].begin()) + ": " +
                            (wrong.in1 == call.out[i].end() ? std::string("nothing")
                                                            : std::to_string(*wrong.in1)) +
                            " in place of " +
                            (wrong.in2 == call.want[i].end() ? std::string("nothing")
                                                             : std::to_string(*wrong.in2)));
    }
    ++outcome_.operations;
  }

  /// The engine may still write to it.
  void keep(Call call) { outcome_.keep(std::make_shared<Call>(std::move(call))); }

  void fail(const Call& call, const std::string& how) {
    if (outcome_.broken.exchange(true)) return;
    ADD_FAILURE() << outcome_.world << ", rank " << engine_.rank() << ", " << call.name
                  << ", operation " << number_ << " of thread " << thread_ << " ("
                  << outcome_.operations << " have ended as they should): " << how;
  }

  Engine& engine_;
  Outcome& outcome_;
  std::vector<std::vector<Rank>> sets_;
  int thread_;
  int number_ = 0;
  std::mt19937 common_;
  std::mt19937 own_;
  std::deque<Call> open_;
};

}  // namespace farandole::testing
