/// Operations that ranks agree on by themselves, without asking the caller: of small ones what is
/// said and the data go together; a large one starts once all have offered it. For what all of them
/// have negotiated before and somebody waits for, and only while they have nothing else under way;
/// all else takes the regular way.

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>

#include "collectives/collective.h"
#include "engine/base/names.h"
#include "engine/base/patience.h"
#include "engine/base/pause.h"
#include "engine/engine.h"
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
/// A blocking call looks up at least this often, so that its thread can see signals.
constexpr auto kBlink = milliseconds(100);
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

Result<Handle> Engine::run(Request& request) {
  if (in_child()) return forked();
  request.waited = true;
  const bool driving = progress_->take();
  bool offered = false;
  if (driving && peers_.offers() != nullptr) {
    const std::lock_guard lock(mutex_);
    offered = offer(request);
  }
  Result<Handle> handle = offered ? see_offer_through(true) : submit(std::move(request));
  if (!handle || *handle == 0) {
    if (driving) progress_->give_back();
    return handle;
  }
  const auto work = find(*handle);
  const auto done = [&] { return work->done.load(std::memory_order_acquire); };
  const TimePoint deadline = Clock::now() + kBlink;
  if (driving) {
    progress_->until_held(done, deadline);
    progress_->give_back();
  } else {
    progress_->until(done, deadline);
  }
  if (!done() || work->error || !take(*handle)) return handle;
  return Handle{0};
}

Result<Handle> Engine::launch(Request& request) {
  if (in_child()) return forked();
  const bool driving = peers_.offers() != nullptr &&
                       unfinished_.load(std::memory_order_relaxed) == 0 && progress_->take();
  bool offered = false;
  if (driving) {
    const std::lock_guard lock(mutex_);
    offered = offer(request);
  }
  Result<Handle> handle = offered ? see_offer_through(false) : submit(std::move(request));
  if (driving) progress_->give_back();
  return handle;
}

/// With mutex_ held, by the holder of the baton. False: it has to go the regular way.
bool Engine::offer(Request& request) {
  const bool counted = request.kind == Kind::Barrier;
  if (!counted && (request.kind != Kind::Allreduce || request.op == ReduceOp::Adasum)) return false;
  const std::size_t count = request.tensors.size();
  if (failed_ || unfinished_.load(std::memory_order_relaxed) != 0 || request.process_set != 0 ||
      count == 0 || count > kMostTensors || timeline_.recording() || !dispatcher_->idle() ||
      !effects_.dispatches.empty() || effects_.joined_last) {
    return false;
  }
  Offers& offers = *peers_.offers();
  std::size_t bytes = 0;
  std::size_t room_bytes = 0;
  if (!counted) {
    for (const TensorRequest& tensor : request.tensors) {
      const auto elements = element_count(tensor.shape);
      if (elements <= 0) return false;
      const std::size_t length = static_cast<std::size_t>(elements) * size_of(tensor.dtype);
      bytes += length;
      room_bytes += aligned(length);
    }
  }
  // Everybody reads what everybody brings: as on the small path, less of it the more there are.
  const auto size = static_cast<std::size_t>(offers.size());
  const std::size_t most = offers.remote() ? kMostTold + kMostTold / size : 4 * kMostOffered;
  const bool large = room_bytes > kMostOffered || bytes * size > most;

  const ProcessSet& world = *negotiator_->process_set(0);
  const bool unnamed = request.name.empty();
  Key& key = offered_.key;
  Signature& signature = offered_.signature;
  signature.group.name.clear();
  signature.group.size = 0;
  key.generation = world.generation;
  key.name.clear();
  key.kind = request.kind;
  if (counted) {
    key = negotiator_->counted_key(request.kind, world);
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
  Offers::Tag tag{.count = static_cast<std::uint32_t>(count), .position = negotiator_->position()};
  std::array<std::uint32_t, kMostTensors> said;
  for (std::size_t i = 0; i < count; ++i) {
    TensorRequest& tensor = request.tensors[i];
    if (i > 0 && tensor.dtype == signature.dtype && tensor.shape == signature.shape) {
      said[i] = said[i - 1];
      continue;
    }
    signature.dtype = tensor.dtype;
    signature.shape = tensor.shape;
    const auto known =
        i == 0 ? negotiator_->shorthand(key, signature) : negotiator_->shorthand({}, signature);
    if (!known) return false;
    if (i == 0) tag.key = known->key;
    said[i] = known->signature;
  }
  tag.signature = said[0];
  offers.reopen();
  if (!offers.may_offer()) return false;

  if (counted) {
    tag.call = key.number;
  } else if (unnamed) {
    tag.call = key.number = request.call = next_unnamed(world.generation);
  }
  std::byte* const begin = offers.room();
  std::byte* room = begin;
  const std::size_t said_bytes = request.grouped ? count * sizeof said[0] : 0;
  std::memcpy(room, said.data(), said_bytes);
  room += aligned(said_bytes);
  if (!counted && !large) {
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
  offered_.request = &request;
  offered_.data_begin = aligned(said_bytes);
  offered_.bytes = bytes;
  offered_.handle = ++last_handle_;
  offered_.end = Offered::End::None;
  offered_.ask_at = TimePoint{};
  offered_.large = large;
  offers.offer(tag, said_bytes, static_cast<std::size_t>(room - begin));
  offered_.round = offers.round();
  return true;
}

/// By the holder of the baton, who has just made the offer, and goes on to wait for its end if it
/// `stays`. 0: done; else the handle of an operation that is under way.
Result<Handle> Engine::see_offer_through(bool stays) {
  Offers& offers = *peers_.offers();
  if (offers.remote() || !stays) {
    Patience patience(offers.remote() ? 0 : kLooks);
    while (offers.open()) {
      if (step_offer({})) {
        patience.reset();
      } else if (!patience.wait()) {
        break;
      }
    }
  } else {
    for (int look = 0; look < kLooks && offers.verdict() == Offers::Verdict::Open; ++look) pause();
    (void)step_offer({});
  }
  if (offers.open()) {
    const auto now = Clock::now();
    offered_.ask_at = now + kAskAfter;
    progress_->until_held([&] { return !offers.open(); }, now + (stays ? kBlink : kMoment));
  }
  const std::lock_guard lock(mutex_);
  switch (offered_.end) {
    case Offered::End::Agreed:
      return Handle{0};
    case Offered::End::Moved:
      break;
    case Offered::End::Failed:
      return offered_.error;
    case Offered::End::None: {
      // The thread has to look around, or has something else to do; the engine goes on without it.
      offered_.kept = std::move(*offered_.request);
      offered_.request = &offered_.kept;
      auto work = std::make_shared<Work>();
      work->handle = offered_.handle;
      work->name = full_name(offered_.key);
      work->outputs.resize(offered_.kept.tensors.size());
      work->on_done = std::move(offered_.kept.on_done);
      offered_.work = work;
      works_.emplace(offered_.handle, std::move(work));
      unfinished_.fetch_add(1, std::memory_order_relaxed);
      break;
    }
  }
  return offered_.handle;
}

/// Settles the own offer if it can be, and answers to those who ask. True: something came of it.
bool Engine::step_offer(TimePoint now) {
  Offers& offers = *peers_.offers();
  const bool moved = offers.remote() && move_offers(now);
  if (!offers.open()) {
    if (!offers.asked()) return moved;
    const std::lock_guard lock(mutex_);
    offers.answer();
    return moved || !offers.asked();
  }
  auto verdict = offers.verdict();
  // Everybody has left without having offered this, or is gone.
  if (verdict == Offers::Verdict::Open && phase_.has_closed()) {
    verdict = Offers::Verdict::Refused;
  }
  if (verdict == Offers::Verdict::Open) {
    if (offered_.ask_at != TimePoint{} && now >= offered_.ask_at) {
      offered_.ask_at = TimePoint{};
      offers.ask();
      if (offers.remote()) pass_on(encode_call(offers.round()), -1, peers_, *detector_, now);
    }
    return moved;
  }
  const std::lock_guard lock(mutex_);
  if (phase_.has_ended()) {
    effects_pending_.store(true, std::memory_order_relaxed);  // maybe time to acknowledge
  }
  const bool agreed = verdict == Offers::Verdict::Agreed;
  if (agreed && !offered_.large) {
    take_agreed();
    offers.settle();
    end_offer(Offered::End::Agreed, {});
    release_held();
    return true;
  }
  if (!agreed) offers.close();
  offers.settle();
  offered_.ask_at = TimePoint{};
  Request request = std::move(*offered_.request);
  auto admitted = admit(request, offered_.work, agreed);
  release_held();  // behind what was agreed
  if (!admitted) {
    end_offer(Offered::End::Failed, std::move(admitted).error());
    return true;
  }
  offered_.handle = (*admitted)->handle;
  if (agreed) {
    if (offered_.work == nullptr) unfinished_.fetch_add(1, std::memory_order_relaxed);
  } else {
    note_submission(offered_.work == nullptr);
  }
  offered_.end = Offered::End::Moved;
  offered_.work.reset();
  return true;
}

/// With mutex_ held. While an own offer is open, what is decided meanwhile waits: the others may
/// agree on the offer at the position where it was made, so everything later comes after it.
/// Whoever is behind is asked at once, as others may wait for this rank in what is held.
void Engine::hold(Effects& decided, TimePoint now) {
  if (decided.joined_last) {
    held_.joined_last = decided.joined_last;
    held_.dispatches_before_join = held_.dispatches.size() + decided.dispatches_before_join;
  }
  if (held_.dispatches.empty()) {
    held_.dispatches.swap(decided.dispatches);
  } else {
    std::ranges::move(decided.dispatches, std::back_inserter(held_.dispatches));
  }
  const Offers* offers = peers_.offers();
  if (offers == nullptr || !offers->open()) {
    release_held();
  } else if (!held_.empty() && offered_.ask_at != TimePoint{}) {
    offered_.ask_at = now;
  }
}

/// With mutex_ held, with no offer open.
void Engine::release_held() {
  for (std::size_t i = 0; i <= held_.dispatches.size(); ++i) {
    if (held_.joined_last && i == held_.dispatches_before_join) enqueue_joined(*held_.joined_last);
    if (i < held_.dispatches.size()) enqueue(held_.dispatches[i]);
  }
  held_.clear();
}

/// What goes to other hosts and comes from there. True: something did.
bool Engine::move_offers(TimePoint now) {
  Offers& offers = *peers_.offers();
  if (detector_->open() || phase_.has_failed()) return false;
  if (offers.unsent()) {
    const std::lock_guard lock(mutex_);
    offers.hand_over();
  } else if (!offers.stirs() && !offers.heard()) {
    return false;
  }
  auto moved = offers.move();
  if (!moved) {
    const Rank peer = moved.error().peer;
    detector_->lose(peer, std::move(moved).error(), Evidence::Data,
                    now == TimePoint{} ? Clock::now() : now);
    return true;
  }
  if (offers.heard()) {
    const std::lock_guard lock(mutex_);
    offers.refuse();
  }
  return *moved;
}

/// Somebody has waited for long: who has not published in that round declines.
void Engine::called(std::span<const std::byte> frame, Rank from, TimePoint now) {
  Offers* const offers = peers_.offers();
  const auto round = decode_call(frame);
  if (offers == nullptr || !round) return;
  {
    const std::lock_guard lock(mutex_);
    offers->called(*round);
  }
  pass_on(frame, from, peers_, *detector_, now);
}

/// With mutex_ held: everybody's contribution becomes the result.
void Engine::take_agreed() {
  Offers& offers = *peers_.offers();
  const Request& request = *offered_.request;
  if (request.kind == Kind::Barrier) {
    negotiator_->passed(offered_.key);
    return;
  }
  const auto members = static_cast<std::size_t>(offers.size());
  std::vector<const std::byte*> sources(members);
  for (std::size_t q = 0; q < members; ++q) {
    sources[q] = offers.room_of(static_cast<int>(q)) + offered_.data_begin;
  }
  for (const TensorRequest& tensor : request.tensors) {
    offered_.signature.dtype = tensor.dtype;
    const Reduction reduction = reduction_of(offered_.signature, offers.size());
    const auto elements = static_cast<std::size_t>(element_count(tensor.shape));
    peers_.backend().association().evaluate(tensor.out, sources, elements, reduction.dtype,
                                            reduction.op, reduction.postscale);
    for (std::size_t q = 0; q < members; ++q) {
      sources[q] += aligned(elements * size_of(tensor.dtype));
    }
  }
  ++offers_run_.operations;
  offers_run_.bytes += offered_.bytes;
}

/// With mutex_ held.
void Engine::end_offer(Offered::End end, Error error) {
  offered_.end = end;
  offered_.ask_at = TimePoint{};
  const auto work = std::move(offered_.work);
  if (work == nullptr) {
    offered_.error = std::move(error);
    return;
  }
  if (end == Offered::End::Failed) work->error = std::move(error);
  complete(work);
  progress_->completed();
}

/// With mutex_ held. A group is known by its first member.
bool Engine::on_offer(const Key& key) {
  const Offers* offers = peers_.offers();
  return offers != nullptr && offers->open() && !key.name.empty() && key.name == offered_.key.name;
}

/// With mutex_ held, after the negotiator has moved. What has been dispatched here comes to its end
/// without those who are done with it; only what is still to be agreed on may need them.
void Engine::rest() {
  if (Offers* offers = peers_.offers();
      offers != nullptr && negotiator_->resting() && !failed_ && !timeline_.recording()) {
    offers->reopen();
  }
}

}  // namespace rueda
