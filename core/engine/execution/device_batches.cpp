#include "engine/execution/device_batches.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "backends/operation.h"
#include "collectives/integer_average.h"

namespace farandole {

namespace {

constexpr std::size_t kWays = kDeviceWays.size();

const std::string kSettings = "the settings of the job say so";

bool on_host_only(const DeviceBatches::Batch& batch) {
  return batch.collective.host_only ||
         averages_integers(*batch.tasks.front().signature, batch.host.members().size());
}

/// What a member asks for: nothing, a row of registry.h, or to be staged.
using Wish = std::int8_t;
constexpr Wish kNothing = -1;

Wish wish_of(const std::string& option) noexcept {
  if (option.empty()) return kNothing;
  const auto rows = device_backends();
  const auto row = std::ranges::find(rows, option, &DeviceBackendRow::name);
  return static_cast<Wish>(row - rows.begin());  // behind the last one: staged
}

/// What a member says before it is decided who serves the set.
struct Word {
  std::int32_t has_device = 0;
  std::int32_t joined = 0;
  DeviceIdentity device{};
  std::array<Wish, kWays> wishes{};
};
static_assert(std::is_trivially_copyable_v<Word>);

Error asked_in_vain(std::string_view name, const std::string& why) {
  const std::string what(name);
  return {.code = Code::Backend,
          .message = what + " was asked for (HOROVOD_GPU_OPERATIONS=" + what +
                     ", or that of the collective), but cannot serve: " + why};
}

std::shared_ptr<EngineDevice> device_of(const DeviceBatches::Batch& batch) {
  for (const auto& entry : batch.entries) {
    if (entry && entry->device != nullptr) return entry->device;
  }
  return nullptr;
}

/// Runs a collective that reads or writes tensors itself on copies of them.
std::unique_ptr<Operation> run_on_host(DeviceBackend& backend, const DeviceBatches::Batch& batch) {
  std::vector<HostedTensor> tensors;
  for (const Task& task : batch.tasks) {
    if (task.signature->bytes() == 0) continue;
    const Shape shape = shape_of_result(*task.signature, backend.members());
    auto out = output_of(task, shape);
    if (!out) return std::make_unique<FailedOperation>(std::move(out).error());
    tensors.push_back({.in = task.in,
                       .in_bytes = task.signature->bytes(),
                       .out = *out,
                       .out_bytes = static_cast<std::size_t>(element_count(shape)) *
                                    size_of(task.signature->dtype)});
  }
  return backend.run_on_host(std::move(tensors), [batch](const std::vector<std::byte*>& copies) {
    auto copy = copies.begin();
    for (Task& task : batch.tasks) {
      if (task.signature->bytes() != 0) task.in = task.out = *copy++;
    }
    return batch.collective.start(batch.host, batch.tasks);
  });
}

void fail(const Entry& entry, Error reason, std::string message) {
  if (!entry.work->error) entry.work->error = Error::wrap(std::move(reason), std::move(message));
}

}  // namespace

/// The members agree, open what is to serve, and run their first batch.
class DeviceBatches::Opening final : public Operation {
 public:
  Opening(DeviceBatches& owner, Set& set, Batch batch)
      : owner_(owner),
        set_(set),
        batch_(batch),
        device_(device_of(batch)),
        all_(static_cast<std::size_t>(batch.host.members().size())) {
    std::ranges::transform(owner_.options_.ways, own_.wishes.begin(), wish_of);
    own_.joined = std::ranges::none_of(batch.entries, [](const auto& entry) { return !!entry; });
    if (device_ != nullptr) {
      own_.has_device = 1;
      if (auto id = device_->context().uuid()) own_.device = *id;
    }
    step_ = gather_values(batch_.host, own_, all_);
  }
  ~Opening() override { owner_.opening_ = nullptr; }

  Result<Step> step() override {
    auto step = step_->step();
    if (!step || *step != Step::Done || phase_ == Phase::Running) return step;
    if (phase_ == Phase::Agreeing) {
      // Who has joined will be back with a device: then they agree again.
      set_.agreed = std::ranges::none_of(all_, [](const Word& w) { return w.joined != 0; });
      phase_ = Phase::Opening;
    } else {
      auto& opened = static_cast<DeviceOpening&>(*step_);
      set_.choices[row_].backend = opened.take();
      set_.choices[row_].why_not = opened.problem();
      owner_.opening_ = nullptr;
      ++row_;
    }
    step_.reset();
    step_ = open_next();
    return Step::Advanced;
  }

  std::vector<Rank> waiting_for() const override { return step_->waiting_for(); }
  std::optional<TimePoint> due() const override { return step_->due(); }
  std::string_view path() const override { return step_->path(); }
  std::optional<Error> refusal() const override { return step_->refusal(); }

 private:
  enum class Phase : std::uint8_t { Agreeing, Opening, Running };

  /// Opens the next backend that is to serve the set; after the last one, runs the batch.
  std::unique_ptr<Operation> open_next() {
    const auto rows = device_backends();
    for (; row_ < rows.size(); ++row_) {
      Choice& choice = set_.choices[row_];
      choice = compare(static_cast<Wish>(row_));
      const DeviceSet set = members();
      choice.why_not = is_needed(choice) ? rows[row_].obstacle(set) : kSettings;
      if (!choice.why_not.empty()) continue;
      auto opening = rows[row_].open(set, owner_.options_);
      owner_.opening_ = opening.get();
      return opening;
    }
    phase_ = Phase::Running;
    owner_.say(set_, batch_.host.members());
    return owner_.run(set_, batch_);
  }

  [[nodiscard]] DeviceSet members() {
    DeviceSet set{.host = batch_.host,
                  .staged = staged(set_, batch_.host, device_),
                  .device = device_,
                  .devices = {}};
    for (const Word& word : all_) {
      set.devices.push_back(word.has_device != 0 ? std::optional(word.device) : std::nullopt);
    }
    return set;
  }

  /// What the members have asked for.
  [[nodiscard]] Choice compare(Wish row) const {
    Choice choice;
    for (std::size_t way = 0; way < kWays; ++way) {
      const auto wish = [&](const Word& w) { return w.wishes[way]; };
      choice.wanted[way] = std::ranges::any_of(all_, [&](Wish w) { return w == row; }, wish);
      choice.allowed[way] =
          std::ranges::all_of(all_, [&](Wish w) { return w == row || w == kNothing; }, wish);
    }
    return choice;
  }

  /// Alone there is nothing to exchange, but who asks for a backend gets it: one device can try it.
  [[nodiscard]] bool is_needed(const Choice& choice) const {
    const bool by_default = device_backends()[row_].by_default && all_.size() > 1;
    for (std::size_t way = 0; way < kWays; ++way) {
      if (choice.allowed[way] && (choice.wanted[way] || by_default)) return true;
    }
    return false;
  }

  DeviceBatches& owner_;
  Set& set_;
  Batch batch_;
  std::shared_ptr<EngineDevice> device_;
  Word own_;
  std::vector<Word> all_;  // by member
  Phase phase_ = Phase::Agreeing;
  std::size_t row_ = 0;              // to be opened
  std::unique_ptr<Operation> step_;  // ends before what it writes
};

/// One line for each way, for the whole set.
void DeviceBatches::say(const Set& set, const Members& members) const {
  if (members.self != 0 || !set.agreed) return;
  for (std::size_t row = 0; row < set.choices.size(); ++row) {
    const Choice& choice = set.choices[row];
    if (choice.backend != nullptr) {
      log_.write(LogLevel::Info, choice.backend->describe());
    } else if (device_backends()[row].by_default && members.size() > 1 &&
               choice.why_not != kSettings) {
      log_.write(LogLevel::Info,
                 "tensors on devices travel through pinned host memory: " + choice.why_not);
    }
  }
}

std::unique_ptr<Operation> DeviceBatches::start(const Batch& batch) {
  Set& set = sets_[batch.process_set];
  if (set.agreed) return run(set, batch);
  return std::make_unique<Opening>(*this, set, batch);
}

DeviceBackend& DeviceBatches::staged(Set& set, Backend& host,
                                     const std::shared_ptr<EngineDevice>& device) {
  auto& backend = set.staged[device.get()];
  if (backend == nullptr) backend = open_staged(host, device);
  return *backend;
}

Result<DeviceBatches::Row> DeviceBatches::choose(const Set& set, const Batch& batch) {
  const Signature& signature = *batch.tasks.front().signature;
  const std::size_t way = way_of(signature.kind);
  const auto rows = device_backends();
  for (std::size_t row = 0; row < rows.size() && batch.host.members().size() > 1; ++row) {
    const Choice& choice = set.choices[row];
    if (!choice.wanted[way] || !rows[row].concerns(signature.kind)) continue;
    if (choice.allowed[way] && choice.backend != nullptr) continue;
    return asked_in_vain(rows[row].name, choice.allowed[way] ? choice.why_not : kSettings);
  }
  if (on_host_only(batch)) return Row();
  const Reduction reduction{.dtype = signature.dtype,
                            .op = signature.op,
                            .prescale = signature.prescale,
                            .postscale = signature.postscale};
  for (std::size_t row = 0; row < rows.size(); ++row) {
    const Choice& choice = set.choices[row];
    if (choice.backend != nullptr && choice.allowed[way] &&
        (choice.wanted[way] || rows[row].by_default) &&
        choice.backend->serves(signature.kind, reduction)) {
      return Row(row);
    }
  }
  return Row();
}

std::unique_ptr<Operation> DeviceBatches::run(Set& set, const Batch& batch) {
  auto chosen = choose(set, batch);
  if (!chosen) return std::make_unique<FailedOperation>(std::move(chosen).error());
  const Row row = *chosen;
  const auto device = device_of(batch);
  if (device) device->collect();
  serving_ = row ? set.choices[*row].backend.get() : &staged(set, batch.host, device);
  if (row) {
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
    if (!serving_->takes(*entry->device)) {
      return failed_operation(
          Code::InvalidArgument,
          "'" + entry->name + "' is on device " + std::to_string(entry->device->context().index()) +
              ", but this rank exchanges by " + std::string(device_backends()[row.value()].name) +
              " on device " + std::to_string(serving_->device()->context().index()));
    }
  }
  if (!row && on_host_only(batch)) return run_on_host(*serving_, batch);
  return batch.collective.start(*serving_, batch.tasks);
}

/// What is not staged works on memory of its device only.
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

std::string_view DeviceBatches::doing() const noexcept {
  if (opening_ != nullptr) return opening_->doing();
  return serving_ != nullptr ? serving_->doing() : "";
}

void DeviceBatches::close(std::int32_t process_set) noexcept {
  const auto set = sets_.find(process_set);
  if (set == sets_.end()) return;
  for (const Choice& choice : set->second.choices) {
    if (choice.backend) choice.backend->close();
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
  if (gone.empty()) return;
  for (Choice& choice : gone.mapped().choices) {
    if (choice.backend == nullptr) continue;
    if (auto end = choice.backend->outlives()) {
      retired_.push_back({.backend = std::move(choice.backend), .end = std::move(end)});
    }
  }
}

/// Those of sets that are gone, too.
template <class Visitor>
void DeviceBatches::each_backend(Visitor visit) const {
  for (const auto& [id, set] : sets_) {
    for (const Choice& choice : set.choices) {
      if (choice.backend) visit(*choice.backend);
    }
  }
  for (const Retired& retired : retired_) visit(*retired.backend);
}

bool DeviceBatches::settle(TimePoint deadline) {
  bool fine = true;
  each_backend([&](DeviceBackend& backend) { fine = backend.settle(deadline) && fine; });
  return fine;
}

void DeviceBatches::abort() noexcept {
  each_backend([](DeviceBackend& backend) { backend.abort(); });
}

void DeviceBatches::abandon() noexcept {
  static_cast<void>(new std::map<std::int32_t, Set>(std::move(sets_)));
  static_cast<void>(new std::vector<HostBuffer>(std::move(zeros_)));
  static_cast<void>(new decltype(retired_)(std::move(retired_)));
}

}  // namespace farandole
