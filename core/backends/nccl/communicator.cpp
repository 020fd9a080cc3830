#include "backends/nccl/communicator.h"

#include <span>

#include "backends/nccl/nccl.h"

namespace farandole {

NcclCommunicator::~NcclCommunicator() {
  if (comm_ == nullptr || aborted_) return;
  const DeviceContext::Current current(device_->context());
  library_->destroy(comm_);
}

Result<void> NcclCommunicator::open(int size, const NcclId& id, int rank) {
  const DeviceContext::Current current(device_->context());
  NcclConfig config;
  return check(library_->open(&comm_, size, id, rank, &config), "cannot connect the ranks");
}

Result<void> NcclCommunicator::check(NcclStatus status, const char* what) const {
  if (status == kNcclSuccess || status == kNcclInProgress) return {};
  std::string text = "NCCL " + std::string(what);
  if (library_->error_text != nullptr) text += ": " + std::string(library_->error_text(status));
  if (library_->last_error != nullptr) {
    const char* const last = library_->last_error(comm_);
    if (last != nullptr && *last != '\0') text += " (" + std::string(last) + ")";
  }
  return Error{.code = Code::Backend,
               .message = text +
                          ". NCCL_DEBUG=INFO makes NCCL say more; "
                          "HOROVOD_GPU_OPERATIONS=STAGED does without it"};
}

Result<bool> NcclCommunicator::settled() const {
  NcclStatus state = kNcclSuccess;
  if (auto asked = check(library_->async_error(comm_, &state), "has failed"); !asked) {
    return std::move(asked).error();
  }
  if (auto fine = check(state, "has failed"); !fine) return std::move(fine).error();
  return state == kNcclSuccess;
}

void NcclCommunicator::abort() noexcept {
  if (comm_ == nullptr || std::exchange(aborted_, true)) return;
  const DeviceContext::Current current(device_->context());
  library_->abort(comm_);
}

std::string obstacle_to_nccl(const DeviceSet& set) {
  std::string without = set.without_device();
  if (!without.empty()) return without;
  const auto& ranks = set.host.members().ranks;
  for (std::size_t m = 0; m < set.devices.size(); ++m) {
    for (std::size_t other = 0; other < m; ++other) {
      if (set.devices[other] != set.devices[m]) continue;
      return "ranks " + std::to_string(ranks[other]) + " and " + std::to_string(ranks[m]) +
             " share a device, which NCCL refuses";
    }
  }
  return {};
}

NcclConnecting::NcclConnecting(const DeviceSet& set, const DeviceOptions& options)
    : host_(set.host),
      device_(set.device),
      early_(options.async_completion),
      versions_(set.devices.size()) {
  if (auto library = load_nccl(options.nccl_library)) {
    library_ = std::move(*library);
    version_ = library_->version_code;
  } else {
    missing_ = library.error().what();
  }
  step_ = gather_values(host_, version_, versions_);
}

NcclConnecting::~NcclConnecting() {
  if (communicator_) communicator_->abort();
}

std::string_view NcclConnecting::doing() const noexcept {
  return communicator_ ? "NCCL connects the ranks (NCCL_DEBUG=INFO makes it say more)" : "";
}

std::string NcclConnecting::obstacle() const {
  const Members& members = host_.members();
  const auto name_of = [&](std::size_t member) {
    return "rank " + std::to_string(members.ranks[member]);
  };
  for (std::size_t m = 0; m < versions_.size(); ++m) {
    if (versions_[m] == 0) {
      const bool here = static_cast<int>(m) == members.self;
      return name_of(m) + " has no NCCL" + (here ? ": " + missing_ : "");
    }
    if (versions_[m] != versions_[0]) {
      return name_of(m) + " has NCCL " + nccl_version(versions_[m]) + ", but " + name_of(0) +
             " has " + nccl_version(versions_[0]);
    }
  }
  return {};
}

Result<Step> NcclConnecting::step() {
  if (phase_ == Phase::Connecting) return settle();
  auto step = step_->step();
  if (!step || *step != Step::Done) return step;
  return phase_ == Phase::Comparing ? name() : connect();
}

Result<Step> NcclConnecting::name() {
  step_.reset();
  problem_ = obstacle();
  if (!problem_.empty()) return Step::Done;
  phase_ = Phase::Naming;
  if (host_.members().self == 0) {
    const DeviceContext::Current current(device_->context());
    const NcclCommunicator nobody(library_, device_);
    if (auto named = nobody.check(library_->unique_id(&id_), "cannot name the set"); !named) {
      return std::move(named).error();
    }
  }
  auto bytes = std::as_writable_bytes(std::span(&id_, 1));
  step_ = host_.start(Broadcast{bytes, bytes, 0});
  return Step::Advanced;
}

Result<Step> NcclConnecting::connect() {
  step_.reset();
  phase_ = Phase::Connecting;
  communicator_ = std::make_unique<NcclCommunicator>(library_, device_);
  auto opened = communicator_->open(host_.members().size(), id_, host_.members().self);
  if (!opened) return std::move(opened).error();
  return Step::Advanced;
}

Result<Step> NcclConnecting::settle() {
  auto settled = communicator_->settled();
  if (!settled) return std::move(settled).error();
  if (!*settled) {
    due_ = Clock::now() + kNcclConnectLook;
    return Step::Blocked;
  }
  due_.reset();
  auto made = NcclBackend::make(host_, std::move(communicator_), early_);
  if (!made) return std::move(made).error();
  backend_ = std::move(*made);
  return Step::Done;
}

std::unique_ptr<DeviceOpening> open_nccl(const DeviceSet& set, const DeviceOptions& options) {
  return std::make_unique<NcclConnecting>(set, options);
}

}  // namespace farandole
