#include "backends/nccl/nccl.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>
#include <variant>

#include "backends/buffers/piece_array.h"
#include "backends/operation.h"
#include "devices/device_context.h"
#include "kernels/kernels.h"
#include "rounding.h"

namespace farandole {

NcclOperation::NcclOperation(NcclBackend& backend, Parts parts)
    : backend_(backend), parts_(std::move(parts)), points_(backend.take_points()) {}

/// If it is dropped before it is over, others may never come to it.
NcclOperation::~NcclOperation() {
  if (phase_ == Phase::Settling || phase_ == Phase::Running) backend_.abort();
  if (phase_ != Phase::Starting) {
    backend_.device()->keep(std::move(parts_.memory), backend_.stream());
  }
}

Result<void> NcclOperation::start() {
  const NcclCommunicator& communicator = backend_.communicator();
  const NcclLibrary& nccl = communicator.library();
  if (parts_.before) {
    if (auto done = parts_.before(); !done) return done;
  }
  const DeviceContext::Current current(backend_.device()->context());
  NcclStatus status = nccl.group_start();
  if (status == kNcclSuccess) {
    status = parts_.calls(nccl, communicator.get(), static_cast<DriverStream>(backend_.stream()));
    const NcclStatus ended = nccl.group_end();
    if (status == kNcclSuccess || status == kNcclInProgress) status = ended;
  }
  return communicator.check(status, "cannot start an operation");
}

Result<Step> NcclOperation::step() {
  switch (phase_) {
    case Phase::Starting:
      phase_ = Phase::Settling;
      if (auto started = start(); !started) return std::move(started).error();
      [[fallthrough]];
    case Phase::Settling: {
      auto settled = backend_.communicator().settled();
      if (!settled) return std::move(settled).error();
      if (!*settled) {
        due_ = Clock::now() + kNcclLook;
        return Step::Blocked;
      }
      due_.reset();
      if (parts_.after) {
        if (auto done = parts_.after(); !done) return std::move(done).error();
      }
      auto end = backend_.end();
      if (!end) return std::move(end).error();
      end_ = std::move(*end);
      phase_ = Phase::Running;
      [[fallthrough]];
    }
    case Phase::Running:
      return watch();
    case Phase::Over:
      break;
  }
  return Step::Done;
}

Result<Step> NcclOperation::watch() {
  auto over = end_->reached();
  if (!over) return std::move(over).error();
  if (*over || backend_.early()) {
    phase_ = Phase::Over;
    return Step::Done;
  }
  if (auto fine = backend_.communicator().settled(); !fine) return std::move(fine).error();
  const bool computes = std::ranges::any_of(points_, [](const auto& point) {
    const auto reached = point->reached();
    return reached && !*reached;
  });
  if (computes) return wait_.wait(*backend_.device(), end_);
  wait_.not_alone();
  if (auto watched = wait_.watch(*backend_.device(), end_); !watched) {
    return std::move(watched).error();
  }
  return Step::Blocked;
}

std::vector<Rank> NcclOperation::waiting_for() const { return backend_.members().ranks; }

namespace {

/// Up to here a tensor is packed with its neighbours: a copy costs less than what NCCL does for
/// each tensor of a group.
constexpr std::size_t kPacked = std::size_t{256} << 10;
constexpr std::size_t kAligned = 256;  // bytes
/// Of a set that is removed; an engine that ends waits before.
constexpr auto kGrace = std::chrono::seconds(5);
constexpr double kSameFactor = 1e-12;
constexpr int kNcclAverage = 4;  // ncclAvg

bool is_float(DType dtype) noexcept {
  return dtype == DType::Float16 || dtype == DType::BFloat16 || dtype == DType::Float32 ||
         dtype == DType::Float64;
}

void one(std::byte* out, DType dtype) noexcept {
  const auto put = [out](auto value) { std::memcpy(out, &value, sizeof value); };
  if (dtype == DType::Float16) put(std::uint16_t{0x3C00});
  if (dtype == DType::BFloat16) put(std::uint16_t{0x3F80});
  if (dtype == DType::Float32) put(1.0F);
  if (dtype == DType::Float64) put(1.0);
}

/// The first status that is no success.
class Statuses {
 public:
  void add(NcclStatus status) noexcept {
    if (first_ == kNcclSuccess) first_ = status;
  }
  [[nodiscard]] NcclStatus get() const noexcept { return first_; }

 private:
  NcclStatus first_ = kNcclSuccess;
};

}  // namespace

Result<std::unique_ptr<NcclBackend>> NcclBackend::make(
    Backend& host, std::unique_ptr<NcclCommunicator> communicator, bool early) {
  auto stream = DeviceStream::open(communicator->device()->context().shared_from_this());
  if (!stream) return std::move(stream).error();
  return std::make_unique<NcclBackend>(host, std::move(communicator), std::move(*stream), early);
}

NcclBackend::NcclBackend(Backend& host, std::unique_ptr<NcclCommunicator> communicator,
                         std::unique_ptr<DeviceStream> stream, bool early)
    : DeviceBackend(host.members()),
      host_(host),
      communicator_(std::move(communicator)),
      stream_(std::move(stream)),
      early_(early) {}

NcclBackend::~NcclBackend() {
  if (settle(Clock::now() + kGrace)) return;
  leave_behind(std::move(communicator_));
  leave_behind(std::move(stream_));
}

bool NcclBackend::settle(TimePoint deadline) {
  if (left_behind_) return false;
  left_behind_ = !done(communicator_->device()->context(), stream_->get(), deadline);
  return !left_behind_;
}

std::shared_ptr<const DevicePoint> NcclBackend::outlives() const {
  auto end = this->end();
  return end ? std::move(*end) : nullptr;
}

std::string NcclBackend::describe() const {
  const NcclLibrary& library = communicator_->library();
  return "tensors on devices travel by NCCL " + nccl_version(library.version_code) + " from " +
         library.file;
}

bool NcclBackend::serves(Kind kind, const Reduction& reduction) const noexcept {
  switch (kind) {
    case Kind::Allgather:
    case Kind::Broadcast:
    case Kind::Alltoall:
      return true;
    case Kind::Allreduce:
    case Kind::Reducescatter:
      break;
    default:
      return false;
  }
  if (!nccl_type(reduction.dtype)) return false;
  const bool plain = reduction.prescale == 1.0 && reduction.postscale == 1.0;
  if (reduction.op == ReduceOp::Sum) return plain || is_float(reduction.dtype);
  if (reduction.op == ReduceOp::Average) return is_float(reduction.dtype);
  return plain && nccl_op(reduction.op).has_value();
}

Result<void> NcclBackend::follow(std::shared_ptr<const DevicePoint> point) {
  if (auto fine = point->precede(stream()); !fine) return fine;
  points_.push_back(std::move(point));
  return {};
}

std::unique_ptr<Operation> NcclBackend::run(Calls calls) {
  return std::make_unique<NcclOperation>(
      *this,
      NcclOperation::Parts{.calls = std::move(calls), .before = {}, .after = {}, .memory = {}});
}

bool NcclBackend::on_host(const void* address) const noexcept {
  return address != nullptr && !device()->holds(address);
}

Result<int> NcclBackend::op_of(const Reduction& reduction) {
  // What comes before the sum and after it is one factor: NCCL multiplies before.
  const double factor = reduction.prescale * reduction.postscale;
  if (factor == 1.0 || reduction.op != ReduceOp::Sum) return *nccl_op(reduction.op);
  // 1 / n in a half type would be off by more than the division is.
  if (std::abs(factor * members().size() - 1.0) < kSameFactor) return kNcclAverage;
  const std::pair key{reduction.dtype, factor};
  for (const auto& [known, op] : factors_) {
    if (known == key) return op;
  }
  alignas(8) std::array<std::byte, 8> scalar{};
  one(scalar.data(), reduction.dtype);
  scale_copy(scalar.data(), scalar.data(), 1, reduction.dtype, factor);
  int op = 0;
  const DeviceContext::Current current(device()->context());
  const NcclStatus status = communicator_->library().premultiplied_sum(
      &op, scalar.data(), *nccl_type(reduction.dtype), kNcclHostScalar, communicator_->get());
  if (auto fine = communicator_->check(status, "cannot make an operator"); !fine) {
    return std::move(fine).error();
  }
  factors_.emplace_back(key, op);
  return op;
}

/// Small tensors are packed by copies on the stream, and reduced as one; large ones where they lie.
template <>
std::unique_ptr<Operation> NcclBackend::perform(Allreduce verb) {
  const auto& pieces = verb.pieces;
  const Reduction& reduction = verb.reduction;
  if (auto refused = refuse(verb)) return refused;
  auto op = op_of(reduction);
  if (!op) return std::make_unique<FailedOperation>(std::move(op).error());
  const std::size_t element = size_of(reduction.dtype);
  const int type = *nccl_type(reduction.dtype);
  std::vector<Piece> packed;
  std::vector<Piece> alone;
  std::size_t packed_bytes = 0;
  for (const Piece& piece : pieces) {
    const std::size_t bytes = piece.count * element;
    if (bytes == 0) continue;
    if (bytes <= kPacked && pieces.size() > 1) {
      packed.push_back(piece);
      packed_bytes += round_up(bytes, kAligned);
    } else {
      alone.push_back(piece);
    }
  }
  NcclOperation::Parts parts;
  std::byte* memory = nullptr;
  if (packed.size() == 1) alone.push_back(packed.front());
  if (packed.size() > 1) {
    parts.memory = device()->memory().take(packed_bytes);
    memory = parts.memory.data();
    if (memory == nullptr) {
      return failed_operation(Code::Backend, "no memory on the device for " +
                                                 std::to_string(packed_bytes) +
                                                 " bytes of small tensors");
    }
    const auto copy = [this, packed, memory, element](bool in) -> Result<void> {
      std::byte* at = memory;
      for (const Piece& piece : packed) {
        const std::size_t bytes = piece.count * element;
        auto done = in ? device()->context().copy(at, piece.in, bytes, stream())
                       : device()->context().copy(piece.out, at, bytes, stream());
        if (!done) return done;
        at += round_up(bytes, kAligned);
      }
      return {};
    };
    parts.before = [copy] { return copy(true); };
    parts.after = [copy] { return copy(false); };
  }
  const std::size_t packed_count = memory != nullptr ? packed_bytes / element : 0;
  parts.calls = [alone = std::move(alone), memory, packed_count, type, op = *op](
                    const NcclLibrary& nccl, NcclComm comm, DriverStream stream) {
    Statuses statuses;
    for (const Piece& piece : alone) {
      statuses.add(nccl.allreduce(piece.in, piece.out, piece.count, type, op, comm, stream));
    }
    if (packed_count > 0) {
      statuses.add(nccl.allreduce(memory, memory, packed_count, type, op, comm, stream));
    }
    return statuses.get();
  };
  return std::make_unique<NcclOperation>(*this, std::move(parts));
}

/// Rows may differ between members, so each member's bytes are a broadcast, all of them one group.
template <>
std::unique_ptr<Operation> NcclBackend::perform(GatherPlan plan) {
  const auto host_memory = [&](const auto& spans) {
    // Where nothing lies says nothing: no rows may have an address beyond the end of what there is.
    return std::ranges::any_of(
        spans, [&](const auto& span) { return !span.empty() && on_host(span.data()); });
  };
  if (host_memory(plan.in)) return host_.start(std::move(plan));  // numbers of the engine
  const auto self = static_cast<std::size_t>(members().self);
  return run(
      [plan = std::move(plan), self](const NcclLibrary& nccl, NcclComm comm, DriverStream stream) {
        Statuses statuses;
        for (std::size_t m = 0; m < plan.out.size(); ++m) {
          for (std::size_t t = 0; t < plan.out[m].size(); ++t) {
            const auto& out = plan.out[m][t];
            if (out.empty()) continue;
            const std::byte* const in = m == self ? plan.in[t].data() : out.data();
            statuses.add(nccl.broadcast(in, out.data(), out.size(), kNcclInt8, static_cast<int>(m),
                                        comm, stream));
          }
        }
        return statuses.get();
      });
}

/// Parts may differ by a row, so each member's part is a reduction to it, all of them one group.
template <>
std::unique_ptr<Operation> NcclBackend::perform(Reducescatter verb) {
  const auto& pieces = verb.pieces;
  const Reduction& reduction = verb.reduction;
  if (auto refused = refuse(verb)) return refused;
  auto op = op_of(reduction);
  if (!op) return std::make_unique<FailedOperation>(std::move(op).error());
  return run([pieces = std::vector<ScatterPiece>(pieces.begin(), pieces.end()), op = *op,
              type = *nccl_type(reduction.dtype), element = size_of(reduction.dtype)](
                 const NcclLibrary& nccl, NcclComm comm, DriverStream stream) {
    Statuses statuses;
    for (const ScatterPiece& piece : pieces) {
      for (std::size_t m = 0; m + 1 < piece.begins.size(); ++m) {
        const std::size_t count = piece.begins[m + 1] - piece.begins[m];
        if (count == 0) continue;
        statuses.add(nccl.reduce(piece.in + piece.begins[m] * element, piece.out, count, type, op,
                                 static_cast<int>(m), comm, stream));
      }
    }
    return statuses.get();
  });
}

template <>
std::unique_ptr<Operation> NcclBackend::perform(AlltoallPlan plan) {
  if (auto refused = refuse(plan)) return refused;
  return run([plan = std::move(plan)](const NcclLibrary& nccl, NcclComm comm, DriverStream stream) {
    Statuses statuses;
    for (std::size_t m = 0; m < plan.in.size(); ++m) {
      const int peer = static_cast<int>(m);
      if (!plan.in[m].empty()) {
        statuses.add(
            nccl.send(plan.in[m].data(), plan.in[m].size(), kNcclInt8, peer, comm, stream));
      }
      if (!plan.out[m].empty()) {
        statuses.add(
            nccl.receive(plan.out[m].data(), plan.out[m].size(), kNcclInt8, peer, comm, stream));
      }
    }
    return statuses.get();
  });
}

template <>
std::unique_ptr<Operation> NcclBackend::perform(Broadcast verb) {
  const auto in = verb.in;
  const auto out = verb.out;
  const int root = verb.root;
  const std::byte* const from = members().self == root ? in.data() : out.data();
  return run([from, out, root](const NcclLibrary& nccl, NcclComm comm, DriverStream stream) {
    if (out.empty()) return kNcclSuccess;
    return nccl.broadcast(from, out.data(), out.size(), kNcclInt8, root, comm, stream);
  });
}

template <>
std::unique_ptr<Operation> NcclBackend::perform(Barrier verb) {
  return host_.start(verb);
}

std::unique_ptr<Operation> NcclBackend::start(Verb verb) {
  return std::visit([this](auto& of) { return perform(std::move(of)); }, verb);
}

std::unique_ptr<Operation> NcclBackend::send(int peer, std::span<const std::byte> data) {
  return run([peer, data](const NcclLibrary& nccl, NcclComm comm, DriverStream stream) {
    if (data.empty()) return kNcclSuccess;
    return nccl.send(data.data(), data.size(), kNcclInt8, peer, comm, stream);
  });
}

std::unique_ptr<Operation> NcclBackend::recv(int peer, std::span<std::byte> data) {
  return run([peer, data](const NcclLibrary& nccl, NcclComm comm, DriverStream stream) {
    if (data.empty()) return kNcclSuccess;
    return nccl.receive(data.data(), data.size(), kNcclInt8, peer, comm, stream);
  });
}

}  // namespace farandole
