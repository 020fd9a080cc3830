/// Ranks of one host as threads of one process over one mapping, so that the thread sanitizer sees
/// every access of all of them.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "backends/shm/shm.h"
#include "patience.h"
#include "transport/fd.h"
#include "transport/shm_segment.h"

namespace farandole::testing {

/// What a rank does while it cannot go on.
enum class Wait { Yield, Sleep };

struct ShmWorldOptions {
  int size = 2;
  ShmTuning tuning{};
  std::uint32_t first_sequence = 0;  ///< where all counters stand at the start
  Wait wait = Wait::Yield;
  bool cross_memory = false;  ///< ranks may read each other's memory
};

class ShmWorld {
 public:
  explicit ShmWorld(ShmWorldOptions options)
      : options_(options), each_((segment_bytes(options.size) + 4095) / 4096 * 4096) {
    // Zero, and most of it never touched.
    const std::size_t total = each_ * static_cast<std::size_t>(options.size);
    void* const memory = ::mmap(nullptr, total, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    memory_ = {static_cast<std::byte*>(memory), Unmap{total}};
    for (int rank = 0; rank < options.size; ++rank) {
      segments_.push_back(
          ShmSegment::share({memory_.get() + each_ * static_cast<std::size_t>(rank), each_}));
      engine_bells_.emplace_back(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
      start_at(view(rank), options.first_sequence);
      if (options.cross_memory) {
        tokens_.push_back(MemoryToken::make());
        if (!tokens_.back()) throw std::bad_alloc();
        tokens_.back()->publish(view(rank).card());
      }
    }
  }

  [[nodiscard]] int size() const noexcept { return options_.size; }
  [[nodiscard]] ShmView view(int rank) const {
    return {segments_[static_cast<std::size_t>(rank)].bytes(), options_.size};
  }
  [[nodiscard]] ShmSegment& segment(int rank) { return segments_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] int bell_fd(int rank) const {
    return engine_bells_[static_cast<std::size_t>(rank)].get();
  }
  [[nodiscard]] Doorbell bell(int rank) const { return {&view(rank).bell(), bell_fd(rank), -1}; }
  /// Global numbers differ from set ranks, so that mixing them up shows.
  [[nodiscard]] static Rank global(int rank) noexcept { return 100 + 7 * rank; }

  [[nodiscard]] Members members(int self) const {
    Members members;
    members.self = self;
    members.groups.emplace_back();
    for (int rank = 0; rank < size(); ++rank) {
      members.ranks.push_back(global(rank));
      members.groups[0].push_back(rank);
    }
    return members;
  }
  [[nodiscard]] std::vector<ShmMember> shm_members() const {
    std::vector<ShmMember> result;
    const PeerMemory memory = options_.cross_memory ? PeerMemory::own() : PeerMemory();
    for (int rank = 0; rank < size(); ++rank) {
      ShmHeap* const heap = heaps_.empty() ? nullptr : heaps_[static_cast<std::size_t>(rank)].get();
      result.push_back({view(rank), rank, bell(rank), heap, memory});
    }
    return result;
  }
  /// Gives every rank memory for tensors that all reach; before the first backend is made.
  void make_heaps(std::size_t bytes) {
    for (int rank = 0; rank < size(); ++rank) {
      heap_memory_.push_back(std::make_unique<std::byte[]>(bytes));
      heaps_.push_back(std::make_unique<ShmHeap>(std::span(heap_memory_.back().get(), bytes)));
    }
  }
  [[nodiscard]] ShmHeap& heap(int rank) const { return *heaps_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] std::unique_ptr<ShmBackend> backend(int self) const {
    return std::make_unique<ShmBackend>(members(self), shm_members(), pipes(self), ShmChannelUse{},
                                        options_.tuning);
  }
  /// What the backends of all process sets of a rank share.
  [[nodiscard]] std::shared_ptr<ShmPipes> pipes(int self) const {
    return std::make_shared<ShmPipes>(members(self).ranks, shm_members(), self);
  }

  /// Runs body(rank, backend) on one thread for each rank and waits for all.
  void run(const std::function<void(int, ShmBackend&)>& body) const {
    std::vector<std::unique_ptr<ShmBackend>> backends;
    for (int rank = 0; rank < size(); ++rank) backends.push_back(backend(rank));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size(); ++rank) {
      threads.emplace_back([&, rank] { body(rank, *backends[static_cast<std::size_t>(rank)]); });
    }
    for (std::thread& thread : threads) thread.join();
  }

  /// Steps until all are done, waiting as the world says.
  [[nodiscard]] Result<void> drive(int self, const std::vector<Operation*>& operations) const {
    const TimePoint deadline = Clock::now() + kPatience;
    std::vector<bool> done(operations.size());
    std::size_t open = operations.size();
    bool announced = false;  // that this rank is about to sleep
    Rest rest;
    while (open > 0) {
      bool moved = false;
      for (std::size_t i = 0; i < operations.size(); ++i) {
        if (done[i]) continue;
        auto step = operations[i]->step();
        if (!step) return std::move(step).error();
        moved |= *step != Step::Blocked;
        if (*step != Step::Done) continue;
        done[i] = true;
        --open;
      }
      if (moved) {
        announced = false;
        rest.moved();
        announce(self, Sleeper::Nobody);
        continue;
      }
      bool too_late = Clock::now() > deadline;
      if (options_.wait == Wait::Yield) {
        rest.in_vain();
      } else if (!announced) {
        announce(self, Sleeper::EngineThread);
        announced = true;  // and look once more
      } else {
        too_late |= !sleep(self, deadline);
        announced = false;
      }
      if (too_late) {
        Error error;
        error.code = Code::Timeout;
        error.message = "the test ran out of patience";
        for (std::size_t i = 0; i < operations.size(); ++i) {
          if (!done[i]) error.missing = operations[i]->waiting_for();
        }
        return error;
      }
    }
    announce(self, Sleeper::Nobody);
    return {};
  }
  [[nodiscard]] Result<void> drive(int self, std::unique_ptr<Operation> operation) const {
    return drive(self, {operation.get()});
  }

  /// As if the channel and the rings had been used for a long time.
  static void start_at(const ShmView& view, std::uint32_t sequence) {
    ShmFlags& flags = view.flags(0);
    for (auto* value :
         {&flags.small.value, &flags.filled.value, &flags.reduced.value, &flags.drained.value}) {
      value->store(sequence);
    }
    for (int reader = 0; reader < view.local_size(); ++reader) {
      for (const RingMemory& ring : {view.pipe_to(reader), view.messages_to(reader)}) {
        ring.head->written.store(sequence);
        ring.head->read.store(sequence);
      }
    }
  }

 private:
  struct Unmap {
    std::size_t bytes;
    void operator()(std::byte* memory) const { ::munmap(memory, bytes); }
  };

  void announce(int self, Sleeper sleeper) const {
    if (options_.wait == Wait::Yield) return;
    view(self).bell().sleeper.store(static_cast<std::uint32_t>(sleeper));
  }
  /// False if nobody rang in time: then a wake-up was lost.
  [[nodiscard]] bool sleep(int self, TimePoint deadline) const {
    pollfd bell{bell_fd(self), POLLIN, 0};
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (::poll(&bell, 1, static_cast<int>(std::max<std::int64_t>(left, 0))) == 0) return false;
    std::uint64_t count = 0;
    return ::read(bell.fd, &count, sizeof count) == sizeof count;
  }

  ShmWorldOptions options_;
  std::size_t each_;
  std::unique_ptr<std::byte, Unmap> memory_;
  std::vector<std::unique_ptr<std::byte[]>> heap_memory_;
  std::vector<std::unique_ptr<ShmHeap>> heaps_;
  std::vector<ShmSegment> segments_;
  std::vector<Fd> engine_bells_;
  std::vector<Result<MemoryToken>> tokens_;
};

}  // namespace farandole::testing
