#include "backends/peer/connecting.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <random>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>

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

template <typename T>
std::unique_ptr<Operation> gather(Backend& host, const T& own, std::vector<T>& all) {
  static_assert(std::is_trivially_copyable_v<T>);
  GatherPlan plan;
  plan.in = {std::as_bytes(std::span(&own, 1))};
  for (T& each : all) plan.out.push_back({std::as_writable_bytes(std::span(&each, 1))});
  return host.start(std::move(plan));
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

PeerConnecting::PeerConnecting(Backend& host, std::shared_ptr<EngineDevice> device,
                               std::vector<DeviceIdentity> devices)
    : host_(host),
      device_(std::move(device)),
      devices_(std::move(devices)),
      own_notice_(std::make_unique<Notice>()),
      notices_(devices_.size()),
      own_answer_(std::make_unique<Answer>()),
      answers_(devices_.size()) {
  own_notice_->process = identity_of_process();
  if (auto prepared = prepare(); !prepared) own_notice_->problem.set(prepared.error().what());
  step_ = gather(host_, *own_notice_, notices_);
}

PeerConnecting::~PeerConnecting() = default;

std::string PeerConnecting::name_of(std::size_t member) const {
  return "rank " + std::to_string(host_.members().ranks[member]);
}

/// What this member needs by itself: to reach all devices, and a buffer.
Result<void> PeerConnecting::prepare() {
  DeviceContext& context = device_->context();
  auto version = context.driver_version();
  if (!version) return std::move(version).error();
  own_notice_->driver = *version;
  for (std::size_t m = 0; m < devices_.size(); ++m) {
    if (static_cast<int>(m) == host_.members().self) continue;
    auto reach = context.reach(devices_[m]);
    if (!reach) return std::move(reach).error();
    if (*reach == Reach::Hidden) {
      return impossible("it does not see the device of " + name_of(m) +
                        ", which CUDA_VISIBLE_DEVICES or the container hides from it");
    }
    if (*reach == Reach::None) {
      return impossible("its device " + std::to_string(context.index()) +
                        " cannot read the memory of that of " + name_of(m));
    }
  }
  auto own = IpcBuffer::make(*device_, PeerBuffers::kBytes);
  if (!own) return std::move(own).error();
  own_ = std::move(*own);
  own_notice_->address = reinterpret_cast<std::uintptr_t>(own_->data());
  own_notice_->handle = own_->handle();
  return {};
}

Result<void> PeerConnecting::open() {
  others_.resize(notices_.size());
  for (std::size_t m = 0; m < notices_.size(); ++m) {
    if (static_cast<int>(m) == host_.members().self) continue;
    const Notice& notice = notices_[m];
    if (notice.process == own_notice_->process) {  // a handle works in other processes only
      others_[m].data = reinterpret_cast<const std::byte*>(notice.address);
      continue;
    }
    auto opened = OpenedIpcBuffer::open(device_->context().shared_from_this(), notice.handle);
    if (!opened) {
      return Error::wrap(std::move(opened).error(), "it cannot read the memory of " + name_of(m));
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
      if (!said->get().empty()) return name_of(m) + ": " + std::string(said->get());
    }
  }
  for (std::size_t m = 1; m < notices_.size(); ++m) {
    if (notices_[m].driver != notices_[0].driver) {
      return name_of(m) + " has a driver for CUDA " + cuda_version(notices_[m].driver) + ", but " +
             name_of(0) + " has one for " + cuda_version(notices_[0].driver);
    }
  }
  return {};
}

void PeerConnecting::answer() {
  phase_ = Phase::Answering;
  if (auto opened = open(); !opened) own_answer_->problem.set(opened.error().what());
  step_ = gather(host_, *own_answer_, answers_);
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
        buffers_ = std::make_unique<PeerBuffers>(device_, std::move(own_), std::move(others_));
        return Step::Done;
      }
      others_.clear();
      phase_ = Phase::Closing;
      step_ = host_.start(Barrier{});  // then nobody has the own buffer open
      return Step::Advanced;
    case Phase::Closing:
      break;
  }
  return Step::Done;
}

}  // namespace farandole
