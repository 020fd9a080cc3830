#include "backends/foreign/foreign.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <variant>

#include "backends/buffers/piece_array.h"
#include "backends/buffers/spans.h"
#include "backends/foreign/session.h"

namespace farandole {

namespace {

/// The spans as one, if they follow each other in memory; else null.
template <typename Byte>
Byte* in_a_row(const std::vector<std::span<Byte>>& spans) {
  Byte* first = nullptr;
  Byte* next = nullptr;
  for (const auto& span : spans) {
    if (span.empty()) continue;
    if (first == nullptr) {
      first = span.data();
    } else if (span.data() != next) {
      return nullptr;
    }
    next = span.data() + span.size();
  }
  return first;
}

void gather(std::byte* packed, const std::vector<std::span<const std::byte>>& spans) {
  for (const auto& span : spans) {
    if (!span.empty()) std::memcpy(packed, span.data(), span.size());
    packed += span.size();
  }
}

void scatter(const std::vector<std::span<std::byte>>& spans, const std::byte* packed) {
  for (const auto& span : spans) {
    if (!span.empty()) std::memcpy(span.data(), packed, span.size());
    packed += span.size();
  }
}

/// Postscale where the result lies.
void scale(std::byte* data, std::size_t count, const Reduction& reduction) {
  if (reduction.postscale == 1.0) return;
  scale_copy(data, data, count, reduction.dtype, reduction.postscale);
}

/// Average is there on Bool only, as logical and.
ReduceOp foreign_op(const Reduction& reduction) {
  return reduction.op == ReduceOp::Average ? ReduceOp::Min : reduction.op;
}

std::vector<Rank> all_but(const Members& members, int self) {
  std::vector<Rank> others = members.ranks;
  others.erase(others.begin() + self);
  return others;
}

/// What lies in a row is read and written where it is; other inputs and outputs are packed.
void carry(ForeignSession& session, ForeignJob& job, std::vector<std::span<const std::byte>> ins,
           std::vector<std::span<std::byte>> outs) {
  const std::size_t brought = total_bytes(ins);
  const std::size_t comes = total_bytes(outs);
  const std::byte* const in = in_a_row(ins);
  std::byte* const out = in_a_row(outs);
  const bool pack = in == nullptr && brought != 0;
  const bool unpack = out == nullptr && comes != 0;
  const std::size_t packed_bytes = pack ? brought : 0;
  job.staging = session.staging(packed_bytes + (unpack ? comes : 0));
  std::byte* const packed = job.staging.get();
  std::byte* const came = packed + packed_bytes;
  job.call.in = {pack ? packed : in, brought};
  job.call.out = {unpack ? came : out, comes};
  if (pack) job.before = [packed, ins = std::move(ins)] { gather(packed, ins); };
  if (unpack) job.after = [came, outs = std::move(outs)] { scatter(outs, came); };
}

}  // namespace

std::string_view name_of(ForeignVerb verb) noexcept {
  constexpr std::array<std::string_view, kVerbs> names{"send",       "recv",      "allreduce",
                                                       "allgatherv", "broadcast", "reducescatterv",
                                                       "alltoallv",  "barrier"};
  return names[static_cast<std::size_t>(verb)];
}

ForeignBackends::ForeignBackends(std::shared_ptr<ForeignClass> kind,
                                 std::shared_ptr<Blocking> executor)
    : kind_(std::move(kind)), executor_(std::move(executor)), aborts_(std::make_shared<Aborts>()) {}

bool ForeignBackends::settle(Duration patience) { return aborts_->settle(patience); }

std::string ForeignBackends::describe_stuck() const {
  return std::string(name()) +
         " is stuck: a verb has not come to its end, also after abort(). It is left behind, and "
         "may still write to the tensors it was given; end the process";
}

bool ForeignBackends::stuck() {
  const Lock lock(mutex_);
  return std::ranges::any_of(sessions_, [](const std::weak_ptr<ForeignSession>& weak) {
    const auto session = weak.lock();
    return session != nullptr && session->stuck();
  });
}

std::unique_ptr<Backend> ForeignBackends::open(Members members) {
  auto session = std::make_shared<ForeignSession>(kind_, members, executor_, aborts_);
  {
    const Lock lock(mutex_);
    std::erase_if(sessions_, [](const auto& each) { return each.expired(); });
    sessions_.push_back(session);
  }
  session->open();
  return std::make_unique<ForeignBackend>(std::move(members), std::move(session));
}

void ForeignBackends::close() {
  const Lock lock(mutex_);
  for (const auto& each : sessions_) {
    if (const auto session = each.lock()) session->close();
  }
}

void ForeignBackends::abort() {
  const Lock lock(mutex_);
  for (const auto& each : sessions_) {
    if (const auto session = each.lock()) session->abort();
  }
}

ForeignBackend::ForeignBackend(Members members, std::shared_ptr<ForeignSession> session)
    : Backend(std::move(members)), session_(std::move(session)) {}

ForeignBackend::~ForeignBackend() { session_->close(); }

std::string_view ForeignBackend::name() const noexcept { return session_->kind().name(); }

bool ForeignBackend::reduces(ForeignVerb verb, const Reduction& reduction) const {
  return session_->kind().has(verb) &&
         session_->kind().reduces(reduction.dtype, foreign_op(reduction));
}

std::unique_ptr<Operation> ForeignBackend::send(int peer, std::span<const std::byte> data) {
  auto job = std::make_shared<ForeignJob>();
  job->call.verb = ForeignVerb::Send;
  job->call.peer = peer;
  job->call.in = data;
  return session_->start(std::move(job), {members().ranks[static_cast<std::size_t>(peer)]});
}

std::unique_ptr<Operation> ForeignBackend::recv(int peer, std::span<std::byte> data) {
  auto job = std::make_shared<ForeignJob>();
  job->call.verb = ForeignVerb::Recv;
  job->call.peer = peer;
  job->call.out = data;
  return session_->start(std::move(job), {members().ranks[static_cast<std::size_t>(peer)]});
}

/// One tensor is reduced where its result goes; several are packed.
template <>
std::unique_ptr<Operation> ForeignBackend::perform(Allreduce verb) {
  const auto& pieces = verb.pieces;
  const Reduction& reduction = verb.reduction;
  if (auto refused = refuse(verb)) return refused;
  if (!reduces(ForeignVerb::Allreduce, reduction))
    return Backend::start(Allreduce{pieces, reduction});
  auto array = std::make_shared<PieceArray>(pieces, reduction.dtype);
  auto job = std::make_shared<ForeignJob>();
  job->call.verb = ForeignVerb::Allreduce;
  job->call.dtype = reduction.dtype;
  job->call.op = foreign_op(reduction);
  if (array->pieces().size() == 1) {
    const Piece piece = array->pieces().front();
    job->call.out = {piece.out, array->bytes()};
    job->before = [piece, reduction] {
      if (piece.in == piece.out && reduction.prescale == 1.0) return;
      scale_copy(piece.out, piece.in, piece.count, reduction.dtype, reduction.prescale);
    };
    job->after = [piece, reduction] { scale(piece.out, piece.count, reduction); };
  } else {
    job->staging = session_->staging(array->bytes());
    std::byte* const packed = job->staging.get();
    job->call.out = {packed, array->bytes()};
    job->before = [array, packed, reduction] {
      if (array->count() != 0) array->pack(packed, 0, array->count(), reduction.prescale);
    };
    job->after = [array, packed, reduction] {
      if (array->count() == 0) return;
      scale(packed, array->count(), reduction);
      array->unpack(packed, 0, array->count());
    };
  }
  return session_->start(std::move(job), all_but(members(), members().self));
}

template <>
std::unique_ptr<Operation> ForeignBackend::perform(GatherPlan plan) {
  if (!session_->kind().has(ForeignVerb::Allgatherv)) return Backend::start(std::move(plan));
  auto job = std::make_shared<ForeignJob>();
  job->call.verb = ForeignVerb::Allgatherv;
  std::vector<std::span<std::byte>> outs;
  for (const auto& member : plan.out) {
    job->call.out_lengths.push_back(total_bytes(member));
    outs.insert(outs.end(), member.begin(), member.end());
  }
  carry(*session_, *job, std::move(plan.in), std::move(outs));
  return session_->start(std::move(job), all_but(members(), members().self));
}

template <>
std::unique_ptr<Operation> ForeignBackend::perform(AlltoallPlan plan) {
  if (!session_->kind().has(ForeignVerb::Alltoallv)) return Backend::start(std::move(plan));
  if (auto refused = refuse(plan)) return refused;
  auto job = std::make_shared<ForeignJob>();
  job->call.verb = ForeignVerb::Alltoallv;
  for (const auto& span : plan.in) job->call.in_lengths.push_back(span.size());
  for (const auto& span : plan.out) job->call.out_lengths.push_back(span.size());
  carry(*session_, *job, std::move(plan.in), std::move(plan.out));
  return session_->start(std::move(job), all_but(members(), members().self));
}

/// The verb takes one array with the parts of member 0 first. So parts of several tensors are put
/// in that order, unless they are in it already.
template <>
std::unique_ptr<Operation> ForeignBackend::perform(Reducescatter verb) {
  const auto& pieces = verb.pieces;
  const Reduction& reduction = verb.reduction;
  if (auto refused = refuse(verb)) return refused;
  if (!reduces(ForeignVerb::Reducescatterv, reduction))
    return Backend::start(Reducescatter{pieces, reduction});
  const std::size_t element = size_of(reduction.dtype);
  auto parts = std::make_shared<std::vector<PieceArray>>(
      parts_by_owner(pieces, reduction.dtype, members().size(), members().self));
  auto job = std::make_shared<ForeignJob>();
  job->call.verb = ForeignVerb::Reducescatterv;
  job->call.dtype = reduction.dtype;
  job->call.op = foreign_op(reduction);
  std::size_t count = 0;
  for (const PieceArray& part : *parts) {
    job->call.out_lengths.push_back(part.bytes());
    count += part.count();
  }
  const std::size_t own = (*parts)[static_cast<std::size_t>(members().self)].count();
  const bool one = pieces.size() == 1;
  const bool pack = !one || reduction.prescale != 1.0;
  const std::size_t packed_bytes = pack ? count * element : 0;
  job->staging = session_->staging(packed_bytes + (one ? 0 : own * element));
  std::byte* const packed = job->staging.get();
  std::byte* const mine = one ? pieces.front().out : packed + packed_bytes;
  job->call.in = {pack ? packed : pieces.front().in, count * element};
  job->call.out = {mine, own * element};
  if (pack) {
    job->before = [parts, packed, element, reduction] {
      std::byte* at = packed;
      for (const PieceArray& part : *parts) {
        if (part.count() != 0) part.pack(at, 0, part.count(), reduction.prescale);
        at += part.count() * element;
      }
    };
  }
  const auto self = static_cast<std::size_t>(members().self);
  job->after = [parts, self, mine, own, one, reduction] {
    if (own == 0) return;
    scale(mine, own, reduction);
    if (!one) (*parts)[self].unpack(mine, 0, own);
  };
  return session_->start(std::move(job), all_but(members(), members().self));
}

template <>
std::unique_ptr<Operation> ForeignBackend::perform(Broadcast verb) {
  const auto in = verb.in;
  const auto out = verb.out;
  const int root = verb.root;
  if (!session_->kind().has(ForeignVerb::Broadcast))
    return Backend::start(Broadcast{in, out, root});
  auto job = std::make_shared<ForeignJob>();
  job->call.verb = ForeignVerb::Broadcast;
  job->call.peer = root;
  job->call.out = out;
  if (members().self == root && in.data() != out.data() && !in.empty()) {
    job->before = [in, out] { std::memcpy(out.data(), in.data(), in.size()); };
  }
  return session_->start(std::move(job), all_but(members(), members().self));
}

template <>
std::unique_ptr<Operation> ForeignBackend::perform(Barrier /*verb*/) {
  if (!session_->kind().has(ForeignVerb::Barrier)) return Backend::start(Barrier{});
  auto job = std::make_shared<ForeignJob>();
  job->call.verb = ForeignVerb::Barrier;
  return session_->start(std::move(job), all_but(members(), members().self));
}

std::unique_ptr<Operation> ForeignBackend::start(Verb verb) {
  return std::visit([this](auto& of) { return perform(std::move(of)); }, verb);
}

Result<std::unique_ptr<Backend>> open_foreign(Members members, int /*channel*/,
                                              const Resources& resources) {
  return resources.foreign(std::move(members));
}

}  // namespace farandole
