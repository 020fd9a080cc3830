#include "backends/peer/buffers.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <random>
#include <string_view>
#include <utility>

#include "backends/peer/peer.h"

namespace farandole {

namespace {

/// A sentence that travels; empty: there is no problem. Longer ones are cut.
struct Sentence {
  std::array<char, 240> text{};
  void set(std::string_view words) noexcept {
    std::memcpy(text.data(), words.data(), std::min(words.size(), text.size() - 1));
  }
  [[nodiscard]] std::string_view get() const noexcept {
    return {text.data(), ::strnlen(text.data(), text.size())};
  }
};

/// Tells processes apart, also those of containers that count theirs alike.
const std::array<std::uint64_t, 2>& identity_of_process() {
  static const auto identity = [] {
    std::random_device random;
    std::array<std::uint64_t, 2> numbers{};
    for (auto& number : numbers) number = std::uint64_t{random()} << 32U | random();
    return numbers;
  }();
  return identity;
}

std::string cuda_version(int code) {
  return std::to_string(code / 1000) + "." + std::to_string(code % 1000 / 10);
}

Error impossible(std::string why) { return {.code = Code::Backend, .message = std::move(why)}; }

}  // namespace

struct PeerConnecting::Notice {
  std::array<std::uint64_t, 2> process{};
  std::uint64_t address = 0;  // of the buffer, in that process
  DriverIpcHandle handle{};
  std::int32_t driver = 0;  // CUDA's version
  Sentence problem;
};

struct PeerConnecting::Answer {
  Sentence problem;
};

std::string obstacle_to_peer(const DeviceSet& set) {
  const Members& members = set.host.members();
  if (members.size() == 1) return "this rank is alone";
  if (members.groups.size() > 1) {
    const auto rank = [&](std::size_t group) {
      return std::to_string(members.ranks[static_cast<std::size_t>(members.groups[group][0])]);
    };
    return "ranks " + rank(0) + " and " + rank(1) + " do not share the memory of a host";
  }
  return set.without_device();
}

PeerConnecting::PeerConnecting(DeviceSet set)
    : set_(std::move(set)),
      own_notice_(std::make_unique<Notice>()),
      notices_(set_.devices.size()),
      own_answer_(std::make_unique<Answer>()),
      answers_(set_.devices.size()) {
  own_notice_->process = identity_of_process();
  if (auto prepared = prepare(); !prepared) own_notice_->problem.set(prepared.error().what());
  step_ = gather_values(set_.host, *own_notice_, notices_);
}

PeerConnecting::~PeerConnecting() = default;

/// What this member needs by itself: to reach all devices, and a buffer.
Result<void> PeerConnecting::prepare() {
  DeviceContext& context = set_.device->context();
  auto version = context.driver_version();
  if (!version) return std::move(version).error();
  own_notice_->driver = *version;
  for (std::size_t m = 0; m < set_.devices.size(); ++m) {
    if (static_cast<int>(m) == set_.host.members().self) continue;
    auto reach = context.reach(*set_.devices[m]);
    if (!reach) return std::move(reach).error();
    if (*reach == Reach::Hidden) {
      return impossible("it does not see the device of " + set_.name_of(m) +
                        ", which CUDA_VISIBLE_DEVICES or the container hides from it");
    }
    if (*reach == Reach::None) {
      return impossible("its device " + std::to_string(context.index()) +
                        " cannot read the memory of that of " + set_.name_of(m));
    }
  }
  auto own = IpcBuffer::make(*set_.device, PeerBuffers::kBytes);
  if (!own) return std::move(own).error();
  own_ = std::move(*own);
  own_notice_->address = reinterpret_cast<std::uintptr_t>(own_->data());
  own_notice_->handle = own_->handle();
  return {};
}

Result<void> PeerConnecting::open() {
  others_.resize(notices_.size());
  for (std::size_t m = 0; m < notices_.size(); ++m) {
    if (static_cast<int>(m) == set_.host.members().self) continue;
    const Notice& notice = notices_[m];
    if (notice.process == own_notice_->process) {  // a handle works in other processes only
      others_[m].data = reinterpret_cast<const std::byte*>(notice.address);
      continue;
    }
    auto opened = OpenedIpcBuffer::open(set_.device->context().shared_from_this(), notice.handle);
    if (!opened) {
      return Error::wrap(std::move(opened).error(),
                         "it cannot read the memory of " + set_.name_of(m));
    }
    others_[m].data = (*opened)->data();
    others_[m].opened = std::move(*opened);
  }
  return {};
}

/// All members see the same notices and answers, and so the same problem.
std::string PeerConnecting::first_problem() const {
  for (std::size_t m = 0; m < notices_.size(); ++m) {
    for (const Sentence* said : {&notices_[m].problem, &answers_[m].problem}) {
      if (!said->get().empty()) return set_.name_of(m) + ": " + std::string(said->get());
    }
  }
  for (std::size_t m = 1; m < notices_.size(); ++m) {
    if (notices_[m].driver != notices_[0].driver) {
      return set_.name_of(m) + " has a driver for CUDA " + cuda_version(notices_[m].driver) +
             ", but " + set_.name_of(0) + " has one for " + cuda_version(notices_[0].driver);
    }
  }
  return {};
}

void PeerConnecting::answer() {
  phase_ = Phase::Answering;
  if (auto opened = open(); !opened) own_answer_->problem.set(opened.error().what());
  step_ = gather_values(set_.host, *own_answer_, answers_);
}

Result<Step> PeerConnecting::step() {
  auto step = step_->step();
  if (!step || *step != Step::Done) return step;
  switch (phase_) {
    case Phase::Telling:
      problem_ = first_problem();
      if (!problem_.empty()) return Step::Done;  // nobody has opened a buffer
      answer();
      return Step::Advanced;
    case Phase::Answering:
      problem_ = first_problem();
      if (problem_.empty()) {
        backend_ = std::make_unique<PeerBackend>(
            set_.host, set_.staged,
            std::make_unique<PeerBuffers>(set_.device, std::move(own_), std::move(others_)));
        return Step::Done;
      }
      others_.clear();
      phase_ = Phase::Closing;
      step_ = set_.host.start(Barrier{});  // then nobody has the own buffer open
      return Step::Advanced;
    case Phase::Closing:
      break;
  }
  return Step::Done;
}

std::unique_ptr<DeviceOpening> open_peer(const DeviceSet& set, const DeviceOptions& /*options*/) {
  return std::make_unique<PeerConnecting>(set);
}

}  // namespace farandole
