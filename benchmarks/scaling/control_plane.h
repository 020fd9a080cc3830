/// The control plane of a large job in one thread: the real negotiators, and a model of what is
/// between them.
///
/// Every rank is a negotiator that does one thing at a time. A message costs its sender and its
/// receiver time, waits for its turn at both ends of the network, and travels. The time that the
/// negotiator itself takes is measured while it runs, or left out. Time is a number; what is
/// pending waits in a queue by time.
#pragma once

#include <time.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <queue>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/control/negotiator.h"

namespace farandole::scaling {

/// Microseconds, and bytes per microsecond.
struct Network {
  double latency = 5.0;  ///< between hosts, on the way
  double message =
      2.5;  ///< for each end of a message between hosts: a system call and its interrupt
  double rate = 125.0;         ///< of a host's link, in each direction
  double local_latency = 0.1;  ///< between ranks of a host, through shared memory
  double local_message = 0.1;
  double processor = 1.0;  ///< how often the measured time of the negotiator counts; 0: not at all
};

/// What a packet carries besides the message: Ethernet, IP and TCP with time stamps, our length.
inline constexpr double kHeaderBytes = 82.0;

struct Load {
  std::uint64_t messages_in = 0, messages_out = 0, bytes_in = 0, bytes_out = 0;
  double processor = 0.0;  ///< microseconds in the negotiator
  [[nodiscard]] std::uint64_t messages() const { return messages_in + messages_out; }
};

struct Step {
  double first = 0.0;  ///< from the last arrival to the first rank's last dispatch, in microseconds
  double last = 0.0;   ///< … to the last rank's
  std::vector<Load> loads;  ///< by rank, between hosts only
  std::vector<Load> local;  ///< by rank, inside hosts
};

class ControlPlane {
 public:
  /// `sets`: tensors are reduced in process sets and not in the world, each in that of the rank's
  /// host and in that of the ranks of its index, as a model is divided and data are.
  ControlPlane(int hosts, int ranks_per_host, const Network& network, bool sets = false)
      : network_(network), per_host_(ranks_per_host), sets_(sets) {
    std::vector<std::vector<Rank>> groups;
    for (Rank rank = 0; rank < hosts * ranks_per_host; ++rank) {
      if (rank % ranks_per_host == 0) groups.emplace_back();
      groups.back().push_back(rank);
    }
    NegotiatorOptions options = this->options();
    if (sets) options.process_sets = divided(groups);
    ranks_.resize(static_cast<std::size_t>(hosts * ranks_per_host));
    leaving_.resize(static_cast<std::size_t>(hosts));
    arriving_.resize(static_cast<std::size_t>(hosts));
    for (Rank rank = 0; rank < size(); ++rank) {
      at(rank).negotiator =
          std::make_unique<Negotiator>(groups, std::vector<std::string>(), rank, options);
    }
  }

  [[nodiscard]] int size() const { return static_cast<int>(ranks_.size()); }

  /// All ranks submit the same tensors and wait for them. With a straggler, the last rank comes
  /// when the others have waited for long; else all come at once.
  Step run(std::span<const std::string> tensors, bool straggler) {
    step_ = {};
    step_.loads.resize(ranks_.size());
    step_.local.resize(ranks_.size());
    for (Member& member : ranks_) member.left = tensors.size() * (sets_ ? 2 : 1);
    now_ += kBetween;
    double begin = now_;
    const Rank late = size() - 1;
    for (Rank rank = 0; rank < size(); ++rank) {
      if (!straggler || rank != late) submit(rank, tensors, begin);
    }
    if (straggler) {
      deliver_all();
      now_ += kBetween;
      begin = now_;
      submit(late, tensors, begin);
    }
    deliver_all();
    bool first = true;
    for (const Member& member : ranks_) {
      if (member.left != 0) return {};  // it would never end: the caller sees empty loads
      step_.last = std::max(step_.last, member.done - begin);
      if (first || member.done - begin < step_.first) step_.first = member.done - begin;
      first = false;
    }
    return std::move(step_);
  }

 private:
  static constexpr double kBetween = 1e5;  // microseconds: everything of the last step is over

  using Bytes = std::shared_ptr<const std::vector<std::byte>>;
  struct Arrival {
    double time;
    std::uint64_t order;
    Rank from, to;
    Bytes message;
    bool operator>(const Arrival& other) const {
      return time != other.time ? time > other.time : order > other.order;
    }
  };

  struct Member {
    std::unique_ptr<Negotiator> negotiator;
    std::uint64_t tickets = 0;
    std::size_t left = 0;          // tensors of this step that have not been dispatched here
    double free = 0.0;             // when it can do the next thing
    std::vector<Arrival> mailbox;  // what has come while it was not free
    double done = 0.0;
  };
  static NegotiatorOptions options() {
    NegotiatorOptions made;
    made.stall_warning = Duration::zero();
    made.deadlock = Duration::zero();
    return made;
  }
  /// Sets 1, 2 … are the hosts, those behind them the indices in a host.
  static std::vector<std::vector<Rank>> divided(const std::vector<std::vector<Rank>>& groups) {
    std::vector<std::vector<Rank>> sets = groups;
    for (std::size_t index = 0; index < groups.front().size(); ++index) {
      sets.emplace_back();
      for (const auto& group : groups) sets.back().push_back(group[index]);
    }
    return sets;
  }
  [[nodiscard]] std::vector<std::int32_t> sets_of(Rank rank) const {
    if (!sets_) return {0};
    const auto hosts = static_cast<std::int32_t>(leaving_.size());
    return {1 + rank / per_host_, 1 + hosts + rank % per_host_};
  }
  Member& at(Rank rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] std::size_t host_of(Rank rank) const {
    return static_cast<std::size_t>(rank / per_host_);
  }
  static TimePoint point(double microseconds) {
    return TimePoint(std::chrono::duration_cast<Duration>(
        std::chrono::duration<double, std::micro>(1e9 + microseconds)));
  }
  static double processor_time() {
    timespec spent{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &spent);
    return static_cast<double>(spent.tv_sec) * 1e6 + static_cast<double>(spent.tv_nsec) * 1e-3;
  }

  template <typename Act>
  void act(Rank rank, double start, Act&& what) {
    Member& member = at(rank);
    const double before = network_.processor > 0 ? processor_time() : 0.0;
    what(*member.negotiator, point(start));
    double spent = 0.0;
    if (network_.processor > 0) spent = network_.processor * (processor_time() - before);
    step_.loads[static_cast<std::size_t>(rank)].processor += spent;
    member.free = start + spent;
    for (const Dispatch& dispatch : effects_.dispatches) {
      member.left -= std::min(member.left, dispatch.entries.size());
      member.done = member.free;
    }
    send_all(rank);
    effects_.clear();
  }

  void submit(Rank rank, std::span<const std::string> tensors, double time) {
    Signature signature;
    signature.shape = {1000};
    act(rank, std::max(time, at(rank).free), [&](Negotiator& negotiator, TimePoint now) {
      for (const std::string& name : tensors) {
        for (const std::int32_t set : sets_of(rank)) {
          const Key key{.process_set = set,
                        .generation = negotiator.process_set(set)->generation,
                        .name = name,
                        .kind = {}};
          const std::uint64_t ticket = ++at(rank).tickets;
          (void)static_cast<bool>(negotiator.submit_group({&key, 1}, {&signature, 1}, {&ticket, 1},
                                                          false, now, effects_));
        }
      }
      negotiator.mark_all_waited(now, effects_);
    });
  }

  void send_all(Rank from) {
    Bytes shared;
    std::size_t begin = 0;
    std::size_t end = 0;
    for (const Effects::Send& send : effects_.sends) {
      if (!shared || send.begin != begin || send.end != end) {
        const auto data = effects_.bytes.begin();
        begin = send.begin;
        end = send.end;
        shared = std::make_shared<const std::vector<std::byte>>(
            data + static_cast<std::ptrdiff_t>(begin), data + static_cast<std::ptrdiff_t>(end));
      }
      this->send(from, send.to, shared);
    }
  }

  void send(Rank from, Rank to, const Bytes& message) {
    Member& sender = at(from);
    const bool local = host_of(from) == host_of(to);
    Load& load = (local ? step_.local : step_.loads)[static_cast<std::size_t>(from)];
    ++load.messages_out;
    load.bytes_out += message->size();
    sender.free += local ? network_.local_message : network_.message;
    double arrives = sender.free;
    if (local) {
      arrives += network_.local_latency;
    } else {
      const double wire = (static_cast<double>(message->size()) + kHeaderBytes) / network_.rate;
      double& out = leaving_[host_of(from)];
      double& in = arriving_[host_of(to)];
      out = std::max(out, sender.free) + wire;
      in = std::max(in, out - wire + network_.latency) + wire;  // cut through, if the link is free
      arrives = in;
    }
    queue_.push({arrives, ++order_, from, to, message});
  }

  /// A rank that is free takes all messages that are there, and answers them together.
  void deliver_all() {
    while (!queue_.empty()) {
      const Arrival next = queue_.top();
      queue_.pop();
      now_ = std::max(now_, next.time);
      Member& member = at(next.to);
      const bool waits = !member.mailbox.empty();
      if (next.message != nullptr) {
        member.mailbox.push_back(next);
        if (waits) continue;  // it will look once it is free
      }
      if (next.time < member.free) {
        queue_.push({member.free, ++order_, next.to, next.to, nullptr});
      } else {
        look(next.to, next.time);
      }
    }
    for (const Member& member : ranks_) now_ = std::max(now_, member.free);
  }

  void look(Rank rank, double time) {
    double start = time;
    std::vector<Arrival> come = std::exchange(at(rank).mailbox, {});
    for (const Arrival& one : come) {
      const bool local = host_of(one.from) == host_of(rank);
      Load& load = (local ? step_.local : step_.loads)[static_cast<std::size_t>(rank)];
      ++load.messages_in;
      load.bytes_in += one.message->size();
      start += local ? network_.local_message : network_.message;
    }
    act(rank, start, [&](Negotiator& negotiator, TimePoint now) {
      for (const Arrival& one : come) {
        (void)static_cast<bool>(negotiator.take(one.from, *one.message, now, effects_));
      }
      negotiator.answer(now, effects_);
    });
  }

  Network network_;
  int per_host_;
  bool sets_;
  std::vector<Member> ranks_;
  std::vector<double> leaving_, arriving_;  // by host: when its link is free again
  std::priority_queue<Arrival, std::vector<Arrival>, std::greater<>> queue_;
  std::uint64_t order_ = 0;
  double now_ = 0.0;
  Effects effects_;
  Step step_;
};

/// Names as a network's gradients have them.
inline std::vector<std::string> tensor_names(int count) {
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) {
    names.push_back("allreduce.layer" + std::to_string(i / 3) + ".block." + std::to_string(i % 3) +
                    ".weight.gradient");
  }
  return names;
}

}  // namespace farandole::scaling
