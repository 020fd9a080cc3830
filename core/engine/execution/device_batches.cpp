#include "engine/execution/device_batches.h"

#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>

#include "backends/failed_operation.h"
#include "backends/peer/connecting.h"
#include "collectives/integer_average.h"
#include "collectives/registry.h"
#include "engine/execution/whole_staging.h"

namespace farandole {

namespace {

constexpr std::size_t kWays = kDeviceWays.size();

const std::string kSettings = "the settings of the job say so";

enum class Wish : std::uint8_t { None, Nccl, Peer, Staged };

bool on_host_only(const DeviceBatches::Batch& batch) {
  return batch.collective.host_only ||
         averages_integers(*batch.tasks.front().signature, batch.host.members().size());
}

Wish wish_of(const std::string& option) noexcept {
  if (option.empty()) return Wish::None;
  if (option == "NCCL") return Wish::Nccl;
  return option == "PEER" ? Wish::Peer : Wish::Staged;
}

/// What a member says before it is decided who serves the set.
struct Word {
  std::int32_t has_device = 0;
  std::int32_t joined = 0;
  std::int32_t version = 0;  ///< of its NCCL; 0: none
  DeviceIdentity device{};
  std::array<Wish, kWays> wishes{};
};
static_assert(std::is_trivially_copyable_v<Word>);

Error asked_in_vain(const std::string& what, const std::string& why) {
  return {.code = Code::Backend,
          .message = what + " was asked for (HOROVOD_GPU_OPERATIONS=" + what +
                     ", or that of the collective), but cannot serve: " + why};
}

template <typename T>
GatherPlan gather(const T& own, std::vector<T>& all) {
  GatherPlan plan;
  plan.in = {std::as_bytes(std::span(&own, 1))};
  for (T& each : all) plan.out.push_back({std::as_writable_bytes(std::span(&each, 1))});
  return plan;
}

void fail(const Entry& entry, Error reason, std::string message) {
  if (!entry.work->error) entry.work->error = Error::wrap(std::move(reason), std::move(message));
}

}  // namespace

/// The members agree, connect if NCCL or copies between peers are to serve, and run their first
/// batch.
class DeviceBatches::Opening final : public Operation {
 public:
  Opening(DeviceBatches& owner, Set& set, Batch batch, std::shared_ptr<EngineDevice> device)
      : owner_(owner),
        set_(set),
        batch_(batch),
        device_(std::move(device)),
        all_(static_cast<std::size_t>(batch.host.members().size())) {
    for (std::size_t way = 0; way < kWays; ++way) {
      own_.wishes[way] = wish_of(owner_.options_.ways[way]);
    }
    own_.joined = std::ranges::none_of(batch.entries, [](const auto& entry) { return !!entry; });
    if (device_ != nullptr) {
      own_.has_device = 1;
      if (auto id = device_->context().uuid()) own_.device = *id;
      const auto other = [](Wish wish) { return wish == Wish::Peer || wish == Wish::Staged; };
      if (!std::ranges::all_of(own_.wishes, other)) look_for_nccl();
    }
    step_ = batch_.host.start(gather(own_, all_));
  }
  /// Members that are still to come never will: without them nothing but this ends.
  ~Opening() override {
    if (communicator_) communicator_->abort();
    owner_.connecting_ = false;
  }

  Result<Step> step() override {
    if (phase_ == Phase::Connecting) {
      auto settled = communicator_->settled();
      if (!settled) return std::move(settled).error();
      if (!*settled) {
        due_ = Clock::now() + kNcclConnectLook;
        return Step::Blocked;
      }
      due_.reset();
      owner_.connecting_ = false;
      auto made = NcclBackend::make(batch_.host, std::move(communicator_),
                                    owner_.options_.async_completion);
      if (!made) return std::move(made).error();
      set_.nccl = std::move(*made);
      return decide_peer();
    }
    auto step = step_->step();
    if (!step || *step != Step::Done) return step;
    switch (phase_) {
      case Phase::Agreeing:
        step_.reset();
        return decide();
      case Phase::Naming:
        step_.reset();
        return connect();
      case Phase::Opening:
        return take_buffers();
      case Phase::Connecting:
      case Phase::Running:
        break;
    }
    return Step::Done;
  }

  std::vector<Rank> waiting_for() const override {
    return step_ ? step_->waiting_for() : batch_.host.members().ranks;
  }
  std::optional<TimePoint> due() const override { return step_ ? step_->due() : due_; }
  std::string_view path() const override { return step_->path(); }
  std::optional<Error> refusal() const override { return step_->refusal(); }

 private:
  enum class Phase : std::uint8_t { Agreeing, Naming, Connecting, Opening, Running };

  void look_for_nccl() {
    auto library = load_nccl(owner_.options_.nccl_library);
    if (library) {
      library_ = std::move(*library);
      own_.version = library_->version_code;
    } else {
      problem_ = library.error().what();
    }
  }

  /// Why NCCL cannot serve this set; empty: it can. The same on all members, but for details.
  [[nodiscard]] std::string obstacle_to_nccl() const {
    const auto& ranks = batch_.host.members().ranks;
    for (std::size_t m = 0; m < all_.size(); ++m) {
      const std::string who = "rank " + std::to_string(ranks[m]);
      if (all_[m].has_device == 0) return without_device(m);
      if (all_[m].version == 0) {
        const bool here = static_cast<int>(m) == batch_.host.members().self;
        return who + " has no NCCL" + (here && !problem_.empty() ? ": " + problem_ : "");
      }
      if (all_[m].version != all_[0].version) {
        return who + " has NCCL " + nccl_version(all_[m].version) + ", but rank " +
               std::to_string(ranks[0]) + " has " + nccl_version(all_[0].version);
      }
      for (std::size_t other = 0; other < m; ++other) {
        if (all_[other].device == all_[m].device) {
          return "ranks " + std::to_string(ranks[other]) + " and " + std::to_string(ranks[m]) +
                 " share a device, which NCCL refuses";
        }
      }
    }
    return {};
  }

  [[nodiscard]] std::string without_device(std::size_t member) const {
    return "rank " + std::to_string(batch_.host.members().ranks[member]) +
           " takes part without a device";
  }

  /// Why no member can copy from another one, as far as all know it now.
  [[nodiscard]] std::string obstacle_to_peer() const {
    const Members& members = batch_.host.members();
    if (members.groups.size() > 1) {
      const auto rank = [&](std::size_t group) {
        return std::to_string(members.ranks[static_cast<std::size_t>(members.groups[group][0])]);
      };
      return "ranks " + rank(0) + " and " + rank(1) + " do not share the memory of a host";
    }
    for (std::size_t m = 0; m < all_.size(); ++m) {
      if (all_[m].has_device == 0) return without_device(m);
    }
    return {};
  }

  /// Fills in what the members have asked for; whether any way is left.
  bool compare(DeviceBatches::Choice& choice, Wish kind) const {
    for (std::size_t way = 0; way < kWays; ++way) {
      const auto wish = [&](const Word& w) { return w.wishes[way]; };
      choice.wanted[way] = std::ranges::any_of(all_, [&](Wish w) { return w == kind; }, wish);
      choice.allowed[way] =
          std::ranges::all_of(all_, [&](Wish w) { return w == kind || w == Wish::None; }, wish);
    }
    return std::ranges::any_of(choice.allowed, [](bool allowed) { return allowed; });
  }

  Result<Step> decide() {
    // Who has joined will be back with a device: then they agree again.
    set_.agreed = std::ranges::none_of(all_, [](const Word& w) { return w.joined != 0; });
    const bool any = compare(set_.by_nccl, Wish::Nccl);
    // Alone there is nothing to exchange, but who asks for NCCL gets it: one device can try it.
    const bool needless = all_.size() == 1 && std::ranges::count(set_.by_nccl.wanted, true) == 0;
    if (!any || needless) {
      set_.by_nccl.why_not = any ? "this rank is alone" : kSettings;
      return decide_peer();
    }
    set_.by_nccl.why_not = obstacle_to_nccl();
    if (!set_.by_nccl.why_not.empty()) return decide_peer();
    phase_ = Phase::Naming;
    if (batch_.host.members().self == 0) {
      const DeviceContext::Current current(device_->context());
      const NcclCommunicator nobody(library_, device_);
      if (auto named = nobody.check(library_->unique_id(&id_), "cannot name the set"); !named) {
        return std::move(named).error();
      }
    }
    auto bytes = std::as_writable_bytes(std::span(&id_, 1));
    step_ = batch_.host.start(Broadcast{bytes, bytes, 0});
    return Step::Advanced;
  }

  Result<Step> connect() {
    phase_ = Phase::Connecting;
    owner_.connecting_ = true;
    communicator_ = std::make_unique<NcclCommunicator>(library_, device_);
    auto opened =
        communicator_->open(batch_.host.members().size(), id_, batch_.host.members().self);
    if (!opened) return std::move(opened).error();
    return Step::Advanced;
  }

  /// Nobody copies from a peer who has not asked for it.
  Result<Step> decide_peer() {
    compare(set_.by_peer, Wish::Peer);
    bool any = false;
    for (std::size_t way = 0; way < kWays; ++way) {
      any = any || (set_.by_peer.wanted[way] && set_.by_peer.allowed[way]);
    }
    set_.by_peer.why_not = !any || all_.size() == 1 ? kSettings : obstacle_to_peer();
    if (!set_.by_peer.why_not.empty()) return run();
    phase_ = Phase::Opening;
    std::vector<DeviceIdentity> devices;
    for (const Word& word : all_) devices.push_back(word.device);
    auto connecting = std::make_unique<PeerConnecting>(batch_.host, device_, std::move(devices));
    buffers_ = connecting.get();
    step_ = std::move(connecting);
    return Step::Advanced;
  }

  Result<Step> take_buffers() {
    if (auto buffers = buffers_->take()) {
      set_.peer = std::make_unique<PeerBackend>(
          batch_.host, owner_.staged(set_, batch_.host, device_), std::move(buffers));
    } else {
      set_.by_peer.why_not = buffers_->problem();
    }
    return run();
  }

  Result<Step> run() {
    phase_ = Phase::Running;
    owner_.say(set_, batch_.host.members(), library_.get());
    step_ = owner_.run(set_, batch_);
    return Step::Advanced;
  }

  DeviceBatches& owner_;
  Set& set_;
  Batch batch_;
  std::shared_ptr<EngineDevice> device_;
  std::shared_ptr<const NcclLibrary> library_;
  std::string problem_;
  Word own_;
  std::vector<Word> all_;  // by member
  NcclId id_{};
  Phase phase_ = Phase::Agreeing;
  std::unique_ptr<NcclCommunicator> communicator_;  // while it connects
  std::optional<TimePoint> due_;                    // the same
  PeerConnecting* buffers_ = nullptr;               // step_, in that phase
  std::unique_ptr<Operation> step_;
};

/// One line for each way, for the whole set.
void DeviceBatches::say(const Set& set, const Members& members, const NcclLibrary* library) const {
  if (members.self != 0 || !set.agreed) return;
  if (set.nccl != nullptr) {
    log_.write(LogLevel::Info, "tensors on devices travel by NCCL " +
                                   nccl_version(library->version_code) + " from " + library->file);
  } else if (members.size() > 1 && set.by_nccl.why_not != kSettings) {
    log_.write(LogLevel::Info,
               "tensors on devices travel through pinned host memory: " + set.by_nccl.why_not);
  }
  if (set.peer != nullptr) {
    log_.write(LogLevel::Info,
               "where PEER is set, allgather, broadcast and alltoall of tensors on "
               "devices are copies from peer to peer");
  }
}

std::unique_ptr<Operation> DeviceBatches::start(const Batch& batch) {
  Set& set = sets_[batch.process_set];
  if (set.agreed) return run(set, batch);
  std::shared_ptr<EngineDevice> device;
  for (const auto& entry : batch.entries) {
    if (entry && device == nullptr) device = entry->device;
  }
  return std::make_unique<Opening>(*this, set, batch, std::move(device));
}

StagedBackend& DeviceBatches::staged(Set& set, Backend& host,
                                     const std::shared_ptr<EngineDevice>& device) {
  auto& backend = set.staged[device.get()];
  if (backend == nullptr) backend = std::make_unique<StagedBackend>(host, device);
  return *backend;
}

Result<DeviceBackend*> DeviceBatches::choose(const Set& set, const Batch& batch) {
  const Signature& signature = *batch.tasks.front().signature;
  const std::size_t way = way_of(signature.kind);
  const bool alone = batch.host.members().size() == 1;
  const bool peer_can = PeerBackend::serves(signature.kind) && !alone;
  for (const auto& [choice, what, can] :
       {std::tuple{&set.by_nccl, "NCCL", !alone}, std::tuple{&set.by_peer, "PEER", peer_can}}) {
    if (!can || !choice->wanted[way] || choice->serves(way)) continue;
    return asked_in_vain(what, choice->allowed[way] ? choice->why_not : kSettings);
  }
  if (on_host_only(batch)) return nullptr;
  if (set.by_peer.wanted[way] && peer_can) return set.peer.get();
  const bool nccl_can = set.nccl != nullptr && set.by_nccl.allowed[way] &&
                        NcclBackend::serves(signature.kind, signature.dtype, signature.op,
                                            signature.prescale, signature.postscale);
  return nccl_can ? set.nccl.get() : nullptr;
}

std::unique_ptr<Operation> DeviceBatches::run(Set& set, const Batch& batch) {
  auto chosen = choose(set, batch);
  if (!chosen) return std::make_unique<FailedOperation>(std::move(chosen).error());
  std::shared_ptr<EngineDevice> device;
  for (const auto& entry : batch.entries) {
    if (entry && device == nullptr) device = entry->device;
  }
  if (device) device->collect();
  const bool staged = *chosen == nullptr;
  serving_ = staged ? &this->staged(set, batch.host, device) : *chosen;
  if (!staged) {
    if (auto lent = lend_memory(*serving_, batch); !lent) {
      return std::make_unique<FailedOperation>(std::move(lent).error());
    }
  }
  const DevicePoint* last = nullptr;
  for (const auto& entry : batch.entries) {
    if (!entry || entry->ready == nullptr || entry->ready.get() == last) continue;
    last = entry->ready.get();
    if (auto fine = serving_->follow(entry->ready); !fine) {
      return std::make_unique<FailedOperation>(std::move(fine).error());
    }
    if (serving_ == set.nccl.get() && entry->device.get() != serving_->device()) {
      return failed_operation(Code::InvalidArgument,
                              "'" + entry->name + "' is on device " +
                                  std::to_string(entry->device->context().index()) +
                                  ", but this rank exchanges by NCCL on device " +
                                  std::to_string(serving_->device()->context().index()));
    }
  }
  if (staged && on_host_only(batch)) {
    return stage_whole(static_cast<StagedBackend&>(*serving_), batch.collective, batch.tasks);
  }
  return batch.collective.start(*serving_, batch.tasks);
}

/// NCCL works on memory of its device only, and between peers no byte needs the host.
Result<void> DeviceBatches::lend_memory(const DeviceBackend& backend, const Batch& batch) {
  zeros_.clear();
  for (std::size_t i = 0; i < batch.tasks.size(); ++i) {
    if (const auto& entry = batch.entries[i]) {
      entry->pool = backend.device()->memory_pool();
      continue;
    }
    Task& task = batch.tasks[i];
    const std::size_t bytes = task.signature->bytes();
    HostBuffer zeros = backend.device()->memory().take(bytes);
    if (zeros.data() == nullptr) {
      return Error{.code = Code::Backend,
                   .message = "no memory on the device for " + std::to_string(bytes) + " bytes"};
    }
    if (auto cleared = backend.device()->context().clear(zeros.data(), bytes, backend.stream());
        !cleared) {
      return cleared;
    }
    task.in = task.out = zeros.data();
    zeros_.push_back(std::move(zeros));
  }
  return {};
}

void DeviceBatches::end(std::span<const std::unique_ptr<Entry>> entries) {
  DeviceBackend* const served = std::exchange(serving_, nullptr);
  if (served == nullptr || served->device() == nullptr) return;
  for (HostBuffer& zeros : zeros_) served->device()->keep(std::move(zeros), served->stream());
  zeros_.clear();
  auto end = served->end();
  for (const auto& entry : entries) {
    if (!entry) continue;
    if (!end) {
      fail(*entry, Error(end.error()), "nobody can tell when '" + entry->name + "' is over");
      continue;
    }
    entry->work->ends.push_back(
        {.point = *end, .device = entry->device, .on_host = entry->streamless});
    if (auto ordered = (*end)->precede(entry->stream, entry->device->context()); !ordered) {
      fail(*entry, std::move(ordered).error(),
           "the stream that '" + entry->name + "' was submitted on cannot be made to wait for it");
    }
  }
}

void DeviceBatches::close(std::int32_t process_set) noexcept {
  if (const auto set = sets_.find(process_set); set != sets_.end() && set->second.peer) {
    set->second.peer->close();
  }
}

void DeviceBatches::close_all() noexcept {
  for (const auto& [id, set] : sets_) close(id);
}

void DeviceBatches::forget(std::int32_t process_set) {
  std::erase_if(retired_, [](const Retired& retired) {
    const auto reached = retired.end->reached();
    return !reached || *reached;
  });
  auto gone = sets_.extract(process_set);
  if (gone.empty() || gone.mapped().nccl == nullptr) return;
  if (auto end = gone.mapped().nccl->end()) {
    retired_.push_back({.nccl = std::move(gone.mapped().nccl), .end = std::move(*end)});
  }
}

bool DeviceBatches::settle(TimePoint deadline) {
  bool fine = true;
  for (auto& [id, set] : sets_) {
    if (set.nccl && !set.nccl->settle(deadline)) fine = false;
  }
  for (const Retired& retired : retired_) {
    if (!retired.nccl->settle(deadline)) fine = false;
  }
  return fine;
}

void DeviceBatches::abort() noexcept {
  for (auto& [id, set] : sets_) {
    if (set.nccl) set.nccl->abort();
  }
  for (const Retired& retired : retired_) retired.nccl->abort();
}

void DeviceBatches::abandon() noexcept {
  static_cast<void>(new std::map<std::int32_t, Set>(std::move(sets_)));
  static_cast<void>(new std::vector<HostBuffer>(std::move(zeros_)));
  static_cast<void>(new decltype(retired_)(std::move(retired_)));
}

}  // namespace farandole
