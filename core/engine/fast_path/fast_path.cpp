#include "engine/fast_path/fast_path.h"

#include <array>
#include <cstring>
#include <vector>

#include "collectives/collective.h"
#include "engine/base/names.h"
#include "engine/base/patience.h"
#include "engine/base/pause.h"
#include "engine/control/fusion.h"
#include "engine/fast_path/call_frame.h"
#include "kernels/copy.h"
#include "kernels/kernels.h"

namespace rueda {

namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

/// Whoever is awaited for that long by a member that offers is asked to decline: then the caller
/// hears who waits for whom, and can warn.
constexpr auto kAskAfter = milliseconds(100);
/// How long a thread stays that need not. It belongs to a rank that is ahead of the others, so the
/// step ends no later for it; while to hand over, and to be told of the end, takes three wake-ups.
constexpr auto kMoment = microseconds(300);
/// How often to look before the engine's other work gets its turn: a few microseconds.
constexpr int kLooks = 64;
constexpr std::size_t kMostOffered = std::size_t{64} << 10;  // bytes
/// What a rank sends to all others together with what it says.
constexpr std::size_t kMostTold = std::size_t{48} << 10;  // bytes
constexpr std::size_t kMostTensors = 1024;
/// Contributions begin at multiples of this.
constexpr std::size_t kAligned = 32;

constexpr std::size_t aligned(std::size_t bytes) noexcept {
  return (bytes + kAligned - 1) / kAligned * kAligned;
}

static_assert(aligned(kMostTensors * sizeof(std::uint32_t)) + kMostOffered <= kOfferBytes);

}  // namespace

/// Nothing else is under way, and it is of a kind that can be offered.
bool FastPath::may_offer(const Request& request) const {
  const std::size_t count = request.tensors.size();
  const bool right_kind = request.kind == Kind::Barrier ||
                          (request.kind == Kind::Allreduce && request.op != ReduceOp::Adasum);
  const Effects& effects = parts_.negotiation.effects();
  return right_kind && !parts_.negotiation.failed() && parts_.submissions.unfinished() == 0 &&
         request.process_set == 0 && count != 0 && count <= kMostTensors &&
         !parts_.timeline.recording() && parts_.dispatcher.idle() && effects.dispatches.empty() &&
         !effects.joined_last;
}

std::optional<FastPath::Load> FastPath::load_of(const Request& request) const {
  if (request.kind == Kind::Barrier) return Load{};
  std::size_t bytes = 0;
  std::size_t room_bytes = 0;
  for (const TensorRequest& tensor : request.tensors) {
    const auto elements = element_count(tensor.shape);
    if (elements <= 0) return std::nullopt;
    const std::size_t length = static_cast<std::size_t>(elements) * size_of(tensor.dtype);
    bytes += length;
    room_bytes += aligned(length);
  }
  // Everybody reads what everybody brings: as on the small path, less of it the more there are.
  const auto size = static_cast<std::size_t>(offers_.size());
  const std::size_t most = offers_.remote() ? kMostTold + kMostTold / size : 4 * kMostOffered;
  return Load{.bytes = bytes, .large = room_bytes > kMostOffered || bytes * size > most};
}

/// What the others know the operation by, and all of its signature but the first tensor's.
void FastPath::name(const Request& request, const ProcessSet& world) {
  Key& key = offered_.key;
  Signature& signature = offered_.signature;
  const std::size_t count = request.tensors.size();
  const bool unnamed = request.name.empty();
  signature.group.name.clear();
  signature.group.size = 0;
  key.generation = world.generation;
  key.name.clear();
  key.kind = request.kind;
  if (request.kind == Kind::Barrier) {
    key = parts_.negotiation.negotiator()->counted_key(request.kind, world);
  } else if (!unnamed) {
    key.name.append(request.grouped ? "grouped_allreduce." : "allreduce.").append(request.name);
  }
  if (request.grouped) {
    signature.group.size = static_cast<std::uint32_t>(count);
    if (!unnamed) {
      signature.group.name.assign(key.name);
      key.name.append("_1of").append(std::to_string(count));  // it stands for all of them
    }
  }
  signature.kind = request.kind;
  signature.op = request.op;
  signature.root = request.root;
  signature.prescale = request.prescale;
  signature.postscale = request.postscale;
}

/// In numbers that all ranks know. False: there are none yet. `said`: of each tensor.
bool FastPath::spell(const Request& request, Offers::Tag& tag, std::uint32_t* said) {
  const Negotiator& negotiator = *parts_.negotiation.negotiator();
  const std::size_t count = request.tensors.size();
  Signature& signature = offered_.signature;
  tag.count = static_cast<std::uint32_t>(count);
  tag.position = negotiator.position();
  for (std::size_t i = 0; i < count; ++i) {
    const TensorRequest& tensor = request.tensors[i];
    if (i > 0 && tensor.dtype == signature.dtype && tensor.shape == signature.shape) {
      said[i] = said[i - 1];
      continue;
    }
    signature.dtype = tensor.dtype;
    signature.shape = tensor.shape;
    const auto known = i == 0 ? negotiator.shorthand(offered_.key, signature)
                              : negotiator.shorthand({}, signature);
    if (!known) return false;
    if (i == 0) tag.key = known->key;
    said[i] = known->signature;
  }
  tag.signature = said[0];
  return true;
}

bool FastPath::offer(Request& request) {
  const std::lock_guard lock(parts_.negotiation.mutex());
  if (!may_offer(request)) return false;
  const auto load = load_of(request);
  if (!load) return false;
  const ProcessSet& world = *parts_.negotiation.negotiator()->process_set(0);
  name(request, world);
  Offers::Tag tag;
  std::array<std::uint32_t, kMostTensors> said;
  if (!spell(request, tag, said.data())) return false;
  offers_.reopen();
  if (!offers_.may_offer()) return false;

  if (request.kind == Kind::Barrier) {
    tag.call = offered_.key.number;
  } else if (request.name.empty()) {
    request.call = parts_.submissions.next_unnamed(world.generation);
    tag.call = offered_.key.number = request.call;
  }
  offered_.request = &request;
  offered_.handle = parts_.submissions.next_handle();
  offered_.end = Offered::End::None;
  offered_.ask_at = TimePoint{};
  publish(request, tag, said.data(), *load);
  offered_.round = offers_.round();
  return true;
}

void FastPath::publish(const Request& request, const Offers::Tag& tag, const std::uint32_t* said,
                       const Load& load) {
  std::byte* const begin = offers_.room();
  std::byte* room = begin;
  const std::size_t said_bytes = request.grouped ? request.tensors.size() * sizeof *said : 0;
  std::memcpy(room, said, said_bytes);
  room += aligned(said_bytes);
  if (request.kind != Kind::Barrier && !load.large) {
    for (const TensorRequest& tensor : request.tensors) {
      const auto elements = static_cast<std::size_t>(element_count(tensor.shape));
      const std::size_t length = elements * size_of(tensor.dtype);
      if (request.prescale == 1.0) {
        copy_to_peers(room, tensor.in, length);
      } else {
        scale_copy(room, tensor.in, elements, tensor.dtype, request.prescale);
      }
      room += aligned(length);
    }
  }
  offered_.data_begin = aligned(said_bytes);
  offered_.bytes = load.bytes;
  offered_.large = load.large;
  offers_.offer(tag, said_bytes, static_cast<std::size_t>(room - begin));
}

Result<Handle> FastPath::see_through(bool stays) {
  await(stays);
  const std::lock_guard lock(parts_.negotiation.mutex());
  switch (offered_.end) {
    case Offered::End::Agreed:
      return Handle{0};
    case Offered::End::Failed:
      return offered_.error;
    case Offered::End::None:
      leave();
      break;
    case Offered::End::Moved:
      break;
  }
  return offered_.handle;
}

/// Stays with the offer for a moment, or until it has to look around.
void FastPath::await(bool stays) {
  if (offers_.remote() || !stays) {
    Patience patience(offers_.remote() ? 0 : kLooks);
    while (offers_.open()) {
      if (step({})) {
        patience.reset();
      } else if (!patience.wait()) {
        break;
      }
    }
  } else {
    for (int look = 0; look < kLooks && offers_.verdict() == Offers::Verdict::Open; ++look) pause();
    (void)step({});
  }
  if (!offers_.open()) return;
  const auto now = Clock::now();
  offered_.ask_at = now + kAskAfter;
  parts_.progress.until_held([&] { return !offers_.open(); }, now + (stays ? kBlink : kMoment));
}

/// The thread has to look around, or has something else to do; the engine goes on without it.
void FastPath::leave() {
  offered_.kept = std::move(*offered_.request);
  offered_.request = &offered_.kept;
  auto work = std::make_shared<Work>();
  work->handle = offered_.handle;
  work->name = full_name(offered_.key);
  work->outputs.resize(offered_.kept.tensors.size());
  work->on_done = std::move(offered_.kept.on_done);
  offered_.work = work;
  parts_.submissions.add(std::move(work));
}

bool FastPath::step(TimePoint now) {
  const bool moved = offers_.remote() && move(now);
  if (!offers_.open()) {
    if (!offers_.asked()) return moved;
    const std::lock_guard lock(parts_.negotiation.mutex());
    offers_.answer();
    return moved || !offers_.asked();
  }
  auto verdict = offers_.verdict();
  // Everybody has left without having offered this, or is gone.
  if (verdict == Offers::Verdict::Open && parts_.phase.has_closed()) {
    verdict = Offers::Verdict::Refused;
  }
  if (verdict == Offers::Verdict::Open) {
    if (offered_.ask_at != TimePoint{} && now >= offered_.ask_at) {
      offered_.ask_at = TimePoint{};
      offers_.ask();
      if (offers_.remote()) {
        pass_on(encode_call(offers_.round()), -1, parts_.peers, parts_.detector, now);
      }
    }
    return moved;
  }
  const std::lock_guard lock(parts_.negotiation.mutex());
  if (parts_.phase.has_ended()) parts_.negotiation.alert();  // maybe time to acknowledge
  settle(verdict == Offers::Verdict::Agreed);
  return true;
}

/// With the lock held: there is a verdict on the own offer.
void FastPath::settle(bool agreed) {
  if (agreed && !offered_.large) {
    take_results();
    offers_.settle();
    end(Offered::End::Agreed, {});
    release_held();
    return;
  }
  if (!agreed) offers_.close();
  offers_.settle();
  offered_.ask_at = TimePoint{};
  Request request = std::move(*offered_.request);
  Result<void> fine;
  auto draft = parts_.submissions.draft(request, offered_.work);
  if (!draft) {
    fine = std::move(draft).error();
  } else if (agreed) {
    start(*draft);
  } else {
    fine = parts_.submissions.negotiate(*draft, request);
  }
  release_held();  // behind what was agreed
  if (!fine) {
    end(Offered::End::Failed, std::move(fine).error());
    return;
  }
  offered_.handle = draft->work->handle;
  offered_.end = Offered::End::Moved;
  offered_.work.reset();
}

/// With the lock held: everybody's contribution becomes the result.
void FastPath::take_results() {
  const Request& request = *offered_.request;
  if (request.kind == Kind::Barrier) {
    parts_.negotiation.negotiator()->passed(offered_.key);
    return;
  }
  const auto members = static_cast<std::size_t>(offers_.size());
  std::vector<const std::byte*> sources(members);
  for (std::size_t q = 0; q < members; ++q) {
    sources[q] = offers_.room_of(static_cast<int>(q)) + offered_.data_begin;
  }
  for (const TensorRequest& tensor : request.tensors) {
    offered_.signature.dtype = tensor.dtype;
    const Reduction reduction = reduction_of(offered_.signature, offers_.size());
    const auto elements = static_cast<std::size_t>(element_count(tensor.shape));
    parts_.peers.backend().association().evaluate(tensor.out, sources, elements, reduction.dtype,
                                                  reduction.op, reduction.postscale);
    for (std::size_t q = 0; q < members; ++q) {
      sources[q] += aligned(elements * size_of(tensor.dtype));
    }
  }
  ++run_.operations;
  run_.bytes += offered_.bytes;
}

/// With the lock held: all ranks start it now, and nothing else is under way.
void FastPath::start(Submissions::Draft& draft) {
  std::vector<Ready> ready(draft.entries.size());
  for (std::size_t i = 0; i < ready.size(); ++i) {
    const Signature& signature = *draft.entries[i]->signature;
    ready[i] = {.signature = &signature, .bytes = signature.bytes(), .group = 1};
  }
  std::uint64_t part = 0;
  // Nobody says how to divide it, so nothing that ranks may set differently can matter.
  for (const auto& places : plan(ready, {.threshold_bytes = SIZE_MAX})) {
    Dispatcher::Batch batch;
    batch.position = {.stream = Position::Stream::Offers,
                      .number = (std::uint64_t{offered_.round} << 16) + ++part};
    for (const std::size_t i : places) {
      batch.signatures.push_back(draft.entries[i]->signature);
      batch.entries.push_back(std::move(draft.entries[i]));
    }
    parts_.dispatcher.enqueue(std::move(batch));
  }
  if (draft.fresh) parts_.submissions.add(draft.work);
}

/// With the lock held.
void FastPath::end(Offered::End end, Error error) {
  offered_.end = end;
  offered_.ask_at = TimePoint{};
  const auto work = std::move(offered_.work);
  if (work == nullptr) {
    offered_.error = std::move(error);
    return;
  }
  if (end == Offered::End::Failed) work->error = std::move(error);
  parts_.submissions.complete(work);
  parts_.progress.completed();
}

void FastPath::hold(Effects& decided, TimePoint now) {
  held_.append(decided);
  if (!offers_.open()) {
    release_held();
  } else if (!held_.empty() && offered_.ask_at != TimePoint{}) {
    offered_.ask_at = now;
  }
}

/// With the lock held, with no offer open.
void FastPath::release_held() { parts_.submissions.enqueue(held_, parts_.dispatcher); }

void FastPath::fail(const Error& error) {
  if (offers_.open()) {
    offers_.settle();
    end(Offered::End::Failed, error);
  }
  held_.clear();
}

void FastPath::count(std::map<std::string, PathCount, std::less<>>& paths) const {
  const std::lock_guard lock(parts_.negotiation.mutex());
  if (run_.operations == 0) return;
  const char* const way = parts_.peers.groups().size() > 1 ? "tcp.offer" : "shm.offer";
  PathCount& count = paths[parts_.peers.size() == 1 ? "local" : way];
  count.operations += run_.operations;
  count.bytes += run_.bytes;
}

std::string FastPath::offered_name() const {
  return offers_.open() ? full_name(offered_.key) : std::string();
}

/// A group is known by its first member.
bool FastPath::offers(const Key& key) const {
  return offers_.open() && !key.name.empty() && key.name == offered_.key.name;
}

/// What goes to other hosts and comes from there. True: something did.
bool FastPath::move(TimePoint now) {
  if (parts_.detector.open() || parts_.phase.has_failed()) return false;
  if (offers_.unsent()) {
    const std::lock_guard lock(parts_.negotiation.mutex());
    offers_.hand_over();
  } else if (!offers_.stirs() && !offers_.heard()) {
    return false;
  }
  auto moved = offers_.move();
  if (!moved) {
    const Rank peer = moved.error().peer;
    parts_.detector.lose(peer, std::move(moved).error(), Evidence::Data,
                         now == TimePoint{} ? Clock::now() : now);
    return true;
  }
  if (offers_.heard()) {
    const std::lock_guard lock(parts_.negotiation.mutex());
    offers_.refuse();
  }
  return *moved;
}

/// Who has not published in that round declines.
bool FastPath::take(std::span<const std::byte> frame, Rank from, TimePoint now) {
  const auto round = decode_call(frame);
  if (!round) return false;
  {
    const std::lock_guard lock(parts_.negotiation.mutex());
    offers_.called(*round);
  }
  pass_on(frame, from, parts_.peers, parts_.detector, now);
  return true;
}

}  // namespace rueda
