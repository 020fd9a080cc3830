// What is not reduced: broadcast, allgather and barrier by host.
#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "backends/buffers/spans.h"
#include "backends/hierarchical/collectives.h"
#include "backends/hierarchical/hosts.h"
#include "rounding.h"

namespace farandole {
namespace {

/// Cuts runs of bytes into rounds, and those into what each carrier carries; the same on every
/// member.
class Cut {
 public:
  /// `longest`: of the runs.
  Cut(const HostBackends& through, std::size_t longest) noexcept
      : small_(through.small()),
        share_(small_ ? longest : through.share_bytes),
        round_(small_ ? longest : share_ * static_cast<std::size_t>(through.plan.carriers)),
        rounds_(longest == 0 ? 0 : ceil_div(longest, round_)) {}

  [[nodiscard]] std::size_t rounds() const noexcept { return rounds_; }
  /// Bytes of a round.
  [[nodiscard]] std::size_t round() const noexcept { return round_; }

  template <typename Byte>
  [[nodiscard]] std::vector<std::span<Byte>> part(const SpanList<Byte>& run, std::size_t round,
                                                  int carrier) const {
    const auto before = small_ ? 0 : static_cast<std::size_t>(carrier);
    return run.part(round * round_ + before * share_, share_);
  }

 private:
  bool small_;
  std::size_t share_;
  std::size_t round_;
  std::size_t rounds_;
};

template <typename Byte>
std::vector<std::span<const std::byte>> reading(const std::vector<std::span<Byte>>& spans) {
  return {spans.begin(), spans.end()};
}

template <typename Byte>
void append(std::vector<std::span<Byte>>& to, const std::vector<std::span<Byte>>& more) {
  to.insert(to.end(), more.begin(), more.end());
}

/// Bytes that carriers have got in a round go to everybody else on their host.
class Spreading : public HostRounds {
 protected:
  Spreading(const HostBackends& through, std::size_t longest)
      : HostRounds(Cut(through, longest).rounds()), through_(through), cut_(through, longest) {}

  /// `part(carrier)`: what that one got.
  template <typename Part>
  std::unique_ptr<Operation> spread(Part part) {
    const HostPlan& plan = through_.plan;
    if (through_.local == nullptr || (through_.small() && plan.all_carry())) return nullptr;
    const int bringing = through_.small() ? 1 : plan.carriers;
    GatherPlan gather;
    bool any = false;
    for (int member = 0; member < plan.here; ++member) {
      gather.out.emplace_back();
      if (member >= bringing) continue;
      gather.out.back() = part(member);
      any = any || !gather.out.back().empty();
    }
    if (!any) return nullptr;
    gather.in = reading(gather.out[static_cast<std::size_t>(plan.index)]);
    return through_.local->start(std::move(gather));
  }

  const HostBackends through_;
  const Cut cut_;
};

/// The root's host first has it in its own memory; its carriers send each its part.
class HierarchicalBroadcast final : public Spreading {
 public:
  HierarchicalBroadcast(const HostBackends& through, std::span<const std::byte> in,
                        std::span<std::byte> out, int host, int index)
      : Spreading(through, out.size()), in_(in), out_({out}), host_(host), index_(index) {
    if (!here()) in_ = {};
  }

 private:
  [[nodiscard]] bool here() const noexcept { return through_.plan.host == host_; }
  [[nodiscard]] bool root() const noexcept { return here() && through_.plan.index == index_; }

  [[nodiscard]] std::span<const std::byte> source(std::span<std::byte> out) const {
    const auto begin = static_cast<std::size_t>(out.data() - out_.part(0, 1).front().data());
    return in_.subspan(begin, out.size());
  }

  std::unique_ptr<Operation> before(std::size_t round) override {
    if (!here() || through_.local == nullptr) return nullptr;
    const std::span<std::byte> out = out_.part(round * cut_.round(), cut_.round()).front();
    return through_.local->start(Broadcast{root() ? source(out) : out, out, index_});
  }

  std::unique_ptr<Operation> across(std::size_t round) override {
    if (through_.carriers == nullptr) return nullptr;
    const auto part = cut_.part(out_, round, through_.plan.index);
    if (part.empty()) return nullptr;
    const bool alone = root() && through_.local == nullptr;  // nobody has filled its output yet
    return through_.carriers->start(
        Broadcast{alone ? source(part.front()) : part.front(), part.front(), host_});
  }

  std::unique_ptr<Operation> after(std::size_t round) override {
    if (here()) return nullptr;
    return spread([&](int carrier) { return cut_.part(out_, round, carrier); });
  }

  std::span<const std::byte> in_;  // of the root
  const SpanList<std::byte> out_;
  const int host_;  // of the root
  const int index_;
};

/// A host's block is what its members bring, one after another. It is gathered in the host first;
/// then hosts exchange blocks.
class HierarchicalAllgather final : public Spreading {
 public:
  HierarchicalAllgather(const HostBackends& through, const std::vector<std::vector<int>>& groups,
                        GatherPlan plan, std::size_t longest)
      : Spreading(through, longest), in_(std::move(plan.in)) {
    for (const auto& group : groups) {
      std::vector<std::span<std::byte>> block;
      const bool own = blocks_.size() == static_cast<std::size_t>(through.plan.host);
      for (const int member : group) {
        auto& out = plan.out[static_cast<std::size_t>(member)];
        append(block, out);
        if (own) here_.emplace_back(std::move(out));
      }
      blocks_.emplace_back(std::move(block));
    }
  }

 private:
  [[nodiscard]] std::size_t own() const noexcept {
    return static_cast<std::size_t>(through_.plan.host);
  }

  std::unique_ptr<Operation> before(std::size_t round) override {
    const std::size_t begin = round * cut_.round();
    if (through_.local == nullptr || begin >= blocks_[own()].bytes()) return nullptr;
    const std::size_t end = begin + cut_.round();
    GatherPlan gather;
    std::size_t start = 0;  // of a member's bytes in the block
    for (const SpanList<std::byte>& member : here_) {
      const std::size_t first = std::max(begin, start) - start;
      const std::size_t past = std::max(end, start) - start;
      if (gather.out.size() == static_cast<std::size_t>(through_.plan.index)) {
        gather.in = in_.part(first, past - first);
      }
      gather.out.push_back(member.part(first, past - first));
      start += member.bytes();
    }
    return through_.local->start(std::move(gather));
  }

  std::unique_ptr<Operation> across(std::size_t round) override {
    if (through_.carriers == nullptr) return nullptr;
    const int carrier = through_.plan.index;
    GatherPlan gather;
    bool any = false;
    for (const SpanList<std::byte>& block : blocks_) {
      gather.out.push_back(cut_.part(block, round, carrier));
      any = any || !gather.out.back().empty();
    }
    if (!any) return nullptr;
    const bool alone = through_.local == nullptr;
    gather.in = alone ? cut_.part(in_, round, carrier) : reading(gather.out[own()]);
    return through_.carriers->start(std::move(gather));
  }

  std::unique_ptr<Operation> after(std::size_t round) override {
    return spread([&](int carrier) {
      std::vector<std::span<std::byte>> parts;
      for (std::size_t host = 0; host < blocks_.size(); ++host) {
        if (host != own()) append(parts, cut_.part(blocks_[host], round, carrier));
      }
      return parts;
    });
  }

  const SpanList<const std::byte> in_;
  std::vector<SpanList<std::byte>> blocks_;  // by host
  std::vector<SpanList<std::byte>> here_;    // by member of the own host
};

class HierarchicalBarrier final : public HostRounds {
 public:
  explicit HierarchicalBarrier(const HostBackends& through) : HostRounds(1), through_(through) {}

 private:
  [[nodiscard]] std::unique_ptr<Operation> meet() const {
    return through_.local == nullptr ? nullptr : through_.local->start(Barrier{});
  }
  std::unique_ptr<Operation> before(std::size_t) override { return meet(); }
  std::unique_ptr<Operation> across(std::size_t) override {
    return through_.carriers == nullptr ? nullptr : through_.carriers->start(Barrier{});
  }
  /// Who is no carrier has heard of the other hosts from nobody.
  std::unique_ptr<Operation> after(std::size_t) override {
    return through_.plan.all_carry() ? nullptr : meet();
  }

  const HostBackends through_;
};

}  // namespace

std::unique_ptr<Operation> hierarchical_allgather(const HostBackends& through,
                                                  const std::vector<std::vector<int>>& groups,
                                                  GatherPlan plan, std::size_t longest) {
  return std::make_unique<HierarchicalAllgather>(through, groups, std::move(plan), longest);
}

std::unique_ptr<Operation> hierarchical_broadcast(const HostBackends& through,
                                                  std::span<const std::byte> in,
                                                  std::span<std::byte> out, int host, int index) {
  return std::make_unique<HierarchicalBroadcast>(through, in, out, host, index);
}

std::unique_ptr<Operation> hierarchical_barrier(const HostBackends& through) {
  return std::make_unique<HierarchicalBarrier>(through);
}

}  // namespace farandole
