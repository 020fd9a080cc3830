#include "backends/peer/peer.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <variant>

#include "backends/buffers/spans.h"
#include "devices/device_context.h"
#include "rounding.h"

namespace farandole {

namespace {

constexpr std::size_t kSlot = PeerBuffers::kSlotBytes;

}  // namespace

PeerCopying::PeerCopying(PeerBackend& backend, PeerPlan plan)
    : backend_(backend),
      device_(*backend.device()),
      plan_(std::move(plan)),
      chunks_(ceil_div(plan_.longest, kSlot)) {}

PeerCopying::~PeerCopying() {
  if (started_ && !over_) backend_.interrupted();
}

Result<void> PeerCopying::start() {
  started_ = true;
  for (const PeerPlan::Copy& copy : plan_.own) {
    if (copy.in.data() == copy.out) continue;
    auto copied =
        device_.context().copy(copy.out, copy.in.data(), copy.in.size(), device_.to_device());
    if (!copied) return copied;
  }
  if (chunks_ == 0) return {};
  return fill(0);
}

/// Copies a chunk of this member into its slot, which nobody reads.
Result<void> PeerCopying::fill(std::size_t chunk) {
  std::byte* to = backend_.buffers().own(chunk);
  Result<void> copied;
  bool any = false;
  for_each_part(plan_.in, chunk * kSlot, (chunk + 1) * kSlot, [&](std::span<const std::byte> part) {
    if (!copied) return;
    copied = device_.context().copy(to, part.data(), part.size(), device_.to_host());
    to += part.size();
    any = true;
  });
  if (!copied || !any) return copied;
  auto end = device_.context().point(device_.to_host());
  if (!end) return std::move(end).error();
  filled_ = std::move(*end);
  return {};
}

/// Copies what this member needs of a chunk, which all members have filled.
Result<void> PeerCopying::read(std::size_t chunk) {
  bool any = false;
  for (const PeerPlan::Source& source : plan_.from) {
    const std::size_t length = total_bytes(source.out);
    const std::size_t begin = std::max(source.begin, chunk * kSlot);
    const std::size_t end = std::min(source.begin + length, (chunk + 1) * kSlot);
    if (begin >= end) continue;
    const std::byte* from = backend_.buffers().of(source.member, chunk) + begin % kSlot;
    Result<void> copied;
    for_each_part(
        source.out, begin - source.begin, end - source.begin, [&](std::span<std::byte> part) {
          if (!copied) return;
          copied = device_.context().copy(part.data(), from, part.size(), device_.to_device());
          from += part.size();
        });
    if (!copied) return copied;
    any = true;
  }
  if (!any) return {};
  auto end = device_.context().point(device_.to_device());
  if (!end) return std::move(end).error();
  read_ = std::move(*end);
  return {};
}

Result<std::shared_ptr<const DevicePoint>> PeerCopying::unfinished() {
  for (auto* const point : {&filled_, &read_}) {
    if (*point == nullptr) continue;
    auto reached = (*point)->reached();
    if (!reached) return std::move(reached).error();
    if (!*reached) return *point;
    point->reset();
  }
  return std::shared_ptr<const DevicePoint>();
}

Result<Step> PeerCopying::step() {
  if (!started_) {
    if (auto started = start(); !started) return std::move(started).error();
  }
  if (chunks_ == 0) {
    over_ = true;
    return Step::Done;
  }
  if (!meeting_) {
    auto point = unfinished();
    if (!point) return std::move(point).error();
    if (*point != nullptr) return wait_.wait(device_, *point);
    wait_.reset();
    meeting_ = backend_.host().start(Barrier{});
    return Step::Advanced;
  }
  auto met = meeting_->step();
  if (!met || *met != Step::Done) return met;
  meeting_.reset();
  const std::size_t chunk = met_++;
  if (chunk == chunks_) {
    over_ = true;
    return Step::Done;
  }
  if (auto reading = read(chunk); !reading) return std::move(reading).error();
  if (chunk + 1 < chunks_) {
    if (auto filling = fill(chunk + 1); !filling) return std::move(filling).error();
  }
  return Step::Advanced;
}

namespace {

constexpr auto kGrace = std::chrono::seconds(5);

/// The other members, from the next one on, so that not all read the same buffer at first.
std::vector<int> others_of(const Members& members) {
  std::vector<int> others;
  for (int i = 1; i < members.size(); ++i) others.push_back((members.self + i) % members.size());
  return others;
}

/// Where the bytes from each member to each lie is known once the members have told each other how
/// many they are.
class PeerAlltoall final : public Operation {
 public:
  PeerAlltoall(PeerBackend& backend, AlltoallPlan plan)
      : backend_(backend), plan_(std::move(plan)) {
    const std::size_t size = plan_.in.size();
    for (const auto& part : plan_.in) own_.push_back(part.size());
    all_.resize(size * size);
    GatherPlan sizes{.in = {std::as_bytes(std::span<const std::size_t>(own_))}, .out = {}};
    for (std::size_t m = 0; m < size; ++m) {
      sizes.out.push_back({std::as_writable_bytes(std::span(all_).subspan(m * size, size))});
    }
    step_ = backend_.host().start(std::move(sizes));
  }

  Result<Step> step() override {
    auto step = step_->step();
    if (!step || *step != Step::Done || copying_) return step;
    copying_ = true;
    step_ = std::make_unique<PeerCopying>(backend_, cut());
    return Step::Advanced;
  }
  std::vector<Rank> waiting_for() const override { return step_->waiting_for(); }
  std::optional<TimePoint> due() const override { return step_->due(); }

 private:
  /// Bytes from one member to another; nothing of a member's own goes through its buffer.
  [[nodiscard]] std::size_t bytes(std::size_t from, std::size_t to) const {
    return from == to ? 0 : all_[from * plan_.in.size() + to];
  }

  [[nodiscard]] PeerPlan cut() const {
    const std::size_t size = plan_.in.size();
    const auto self = static_cast<std::size_t>(backend_.members().self);
    PeerPlan cut;
    for (std::size_t m = 0; m < size; ++m) {
      std::size_t sum = 0;
      for (std::size_t to = 0; to < size; ++to) sum += bytes(m, to);
      cut.longest = std::max(cut.longest, sum);
      if (m != self) cut.in.push_back(plan_.in[m]);
    }
    for (const int other : others_of(backend_.members())) {
      const auto m = static_cast<std::size_t>(other);
      std::size_t begin = 0;
      for (std::size_t to = 0; to < self; ++to) begin += bytes(m, to);
      cut.from.push_back({.member = other, .begin = begin, .out = {plan_.out[m]}});
    }
    cut.own.push_back({.in = plan_.in[self], .out = plan_.out[self].data()});
    return cut;
  }

  PeerBackend& backend_;
  AlltoallPlan plan_;
  std::vector<std::size_t> own_;
  std::vector<std::size_t> all_;  // bytes from member to member
  bool copying_ = false;
  std::unique_ptr<Operation> step_;  // ends before what it writes
};

}  // namespace

PeerBackend::PeerBackend(Backend& host, DeviceBackend& rest, std::unique_ptr<PeerBuffers> buffers)
    : DeviceBackend(host.members()), host_(host), rest_(rest), buffers_(std::move(buffers)) {}

PeerBackend::~PeerBackend() {
  if (closed_ && !interrupted_) return;
  // The world has failed. Streams may still read buffers of others, and come after a kernel that
  // never ends.
  if (device()->settle(Clock::now() + kGrace)) {
    buffers_->close_unmet();
  } else {
    leave_behind(std::shared_ptr<PeerBuffers>(std::move(buffers_)));
  }
}

std::string PeerBackend::describe() const {
  return "where PEER is set, allgather, broadcast and alltoall of tensors on devices are copies "
         "from peer to peer";
}

/// Tensors are read on one stream and written on the other one.
Result<void> PeerBackend::follow(std::shared_ptr<const DevicePoint> point) {
  if (auto fine = point->precede(device()->to_host()); !fine) return fine;
  return point->precede(device()->to_device());
}

bool PeerBackend::on_host(const void* address) const noexcept {
  return address != nullptr && !device()->holds(address);
}

template <>
std::unique_ptr<Operation> PeerBackend::perform(GatherPlan plan) {
  // Where nothing lies says nothing: no rows may have an address beyond the end of what there is.
  const bool numbers = std::ranges::any_of(
      plan.in, [&](const auto& span) { return !span.empty() && on_host(span.data()); });
  if (numbers) return host_.start(std::move(plan));  // of the engine
  PeerPlan cut;
  for (const auto& out : plan.out) cut.longest = std::max(cut.longest, total_bytes(out));
  const auto& own = plan.out[static_cast<std::size_t>(members().self)];
  std::size_t at = 0;
  for (std::span<const std::byte> in : plan.in) {
    for_each_part(own, at, at + in.size(), [&](std::span<std::byte> out) {
      cut.own.push_back({.in = in.first(out.size()), .out = out.data()});
      in = in.subspan(out.size());
      at += out.size();
    });
  }
  cut.in = std::move(plan.in);
  for (const int other : others_of(members())) {
    const auto m = static_cast<std::size_t>(other);
    cut.from.push_back({.member = other, .begin = 0, .out = std::move(plan.out[m])});
  }
  return std::make_unique<PeerCopying>(*this, std::move(cut));
}

template <>
std::unique_ptr<Operation> PeerBackend::perform(AlltoallPlan plan) {
  if (auto refused = refuse(plan)) return refused;
  return std::make_unique<PeerAlltoall>(*this, std::move(plan));
}

template <>
std::unique_ptr<Operation> PeerBackend::perform(Broadcast verb) {
  const auto in = verb.in;
  const auto out = verb.out;
  const int root = verb.root;
  PeerPlan cut;
  cut.longest = out.size();
  if (members().self == root) {
    cut.in = {in};
    cut.own = {{.in = in, .out = out.data()}};
  } else {
    cut.from = {{.member = root, .begin = 0, .out = {out}}};
  }
  return std::make_unique<PeerCopying>(*this, std::move(cut));
}

template <>
std::unique_ptr<Operation> PeerBackend::perform(Barrier verb) {
  return host_.start(verb);
}

std::unique_ptr<Operation> PeerBackend::start(Verb verb) {
  return std::visit([this](auto& of) { return perform(std::move(of)); }, verb);
}

}  // namespace farandole
