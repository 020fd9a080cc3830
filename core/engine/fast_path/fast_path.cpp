#include "engine/fast_path/fast_path.h"

#include <algorithm>
#include <array>

#include "engine/base/spin_wait.h"
#include "engine/base/wording.h"
#include "engine/control/fusion.h"

namespace farandole {

namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

/// Whoever is awaited for that long by a member that proposes something is asked to decline: then
/// the coordinator hears who waits for whom, and can warn.
constexpr auto kAskAfter = milliseconds(100);
/// How long a thread stays that need not. It belongs to a rank that is ahead of the others, so the
/// step ends no later for it; while to hand over, and to be told of the end, takes three wake-ups.
constexpr auto kMoment = microseconds(300);
/// The engine has to find memory for a result, or to ask for it.
bool lacks_memory(const Submission& submission) {
  return std::ranges::any_of(submission.tensors,
                             [](const Tensor& tensor) { return tensor.out == nullptr; });
}

}  // namespace

/// Nothing else is under way.
bool FastPath::may_propose(const Submission& submission) const {
  const std::size_t count = submission.tensors.size();
  const Effects& effects = parts_.negotiation.effects();
  return !parts_.negotiation.failed() && parts_.negotiation.negotiator()->resting() && !open() &&
         count <= Contributions::kMostTensors && !parts_.timeline.recording() &&
         std::ranges::none_of(submission.tensors, &Tensor::absent) && parts_.dispatcher.idle() &&
         effects.dispatches.empty() && !effects.joined_last;
}

/// What the others know the operation by, and all of its signature but the first tensor's.
void FastPath::name(const Submission& submission, const ProcessSet& set) {
  Key& key = proposed_.key;
  Signature& signature = contributions_.signature();
  const std::size_t count = submission.tensors.size();
  const bool unnamed = submission.name.empty();
  signature.group.name.clear();
  signature.group.size = 0;
  key.process_set = set.id;
  key.generation = set.generation;
  key.name.clear();
  key.kind = submission.kind;
  const Rules& rules = contributions_.collective().rules;
  if (rules.matched_by_count) {
    key = parts_.negotiation.negotiator()->counted_key(submission.kind, set);
  } else if (!unnamed) {
    if (submission.grouped) key.name.append("grouped_");
    key.name.append(rules.prefix).append(".").append(submission.name);
  }
  if (submission.grouped) {
    signature.group.size = static_cast<std::uint32_t>(count);
    if (!unnamed) {
      signature.group.name.assign(key.name);
      key.name.append("_1of").append(std::to_string(count));  // it stands for all of them
    }
  }
  signature.kind = submission.kind;
  signature.op = submission.op;
  signature.root = submission.root;
  signature.prescale = submission.prescale;
  signature.postscale = submission.postscale;
}

/// In numbers that all ranks know. False: there are none yet. `said`: of each tensor.
bool FastPath::spell(const Submission& submission, const ProcessSet& set, Proposals::Tag& tag,
                     std::uint32_t* said) {
  const Negotiator& negotiator = *parts_.negotiation.negotiator();
  const std::size_t count = submission.tensors.size();
  Signature& signature = contributions_.signature();
  tag.count = static_cast<std::uint32_t>(count);
  tag.position = negotiator.position(set);
  for (std::size_t i = 0; i < count; ++i) {
    const Tensor& tensor = submission.tensors[i];
    if (i > 0 && tensor.dtype == signature.dtype && tensor.shape == signature.shape) {
      said[i] = said[i - 1];
      continue;
    }
    signature.dtype = tensor.dtype;
    signature.shape = tensor.shape;
    const auto known = i == 0 ? negotiator.cached_ids(proposed_.key, signature)
                              : negotiator.cached_ids({}, signature);
    if (!known) return false;
    if (i == 0) {
      tag.key = known->key;
      proposed_.exchanges = known->exchanges;
    }
    said[i] = known->signature;
  }
  tag.signature = said[0];
  return true;
}

bool FastPath::propose(Submission& submission) {
  const EngineLock::Guard lock(parts_.negotiation.mutex());
  // Nothing may be begun while an earlier one is open, left by its caller.
  if (!may_propose(submission)) return false;
  Lane* const lane = lanes_.find(submission.process_set);
  if (lane == nullptr) return false;
  // It still exists: no change of sets is under way.
  const ProcessSet& set = lane->set;
  Proposals& proposals = *lane->proposals;
  if (!contributions_.begin(kind_of(submission), proposals,
                            *parts_.dispatcher.backend_of(set.id))) {
    return false;
  }
  // Whoever goes on at the callback takes nothing.
  const bool takes = submission.mode != Mode::Callback || submission.provide;
  if (!takes && lacks_memory(submission)) return false;
  name(submission, set);
  if (set.id != 0 && !contributions_.check(submission)) return false;  // the regular way says why
  if (!contributions_.prepare(submission)) return false;
  Proposals::Tag tag;
  std::array<std::uint32_t, Contributions::kMostTensors> said;
  if (!spell(submission, set, tag, said.data())) return false;
  lane->unused = 0;
  proposals.reopen();
  if (!proposals.may_propose()) return false;

  if (contributions_.collective().rules.matched_by_count) {
    submission.call = tag.call = proposed_.key.number;
    parts_.negotiation.negotiator()->passed(proposed_.key);  // the next one has the next number
  } else if (submission.name.empty()) {
    submission.call = parts_.submissions.next_unnamed(set.generation);
    tag.call = proposed_.key.number = submission.call;
  }
  lane_ = lane;
  proposed_.submission = &submission;
  proposed_.handle = parts_.handles.next();
  proposed_.end = Proposed::End::None;
  proposed_.ask_at = TimePoint{};
  contributions_.publish(submission, tag, said.data());
  proposed_.round = proposals.round();
  return true;
}

Result<Handle> FastPath::see_through(bool stays) {
  await(stays);
  const EngineLock::Guard lock(parts_.negotiation.mutex());
  switch (proposed_.end) {
    case Proposed::End::Agreed:
      return proposed_.handed;
    case Proposed::End::Failed:
      return proposed_.error;
    case Proposed::End::None:
      leave();
      break;
    case Proposed::End::Moved:
      break;
  }
  return proposed_.handle;
}

/// Stays with the proposal for a moment, or until it has to look around.
void FastPath::await(bool stays) {
  Proposals& proposals = *lane_->proposals;
  SpinWait spin(proposals.remote() ? 0 : pauses_.count());
  if (proposals.remote() || !stays) {
    while (open()) {
      if (step({})) {
        spin.reset();
      } else if (!spin.wait()) {
        break;
      }
    }
  } else {
    // The engine's other work can wait as long: it costs more than a look.
    while (proposals.outcome() == Proposals::Outcome::Open && spin.wait()) {
    }
    (void)step({});
  }
  pauses_.learn(spin.shared());
  if (!open()) return;
  const auto now = Clock::now();
  proposed_.ask_at = now + kAskAfter;
  parts_.progress.until_held([&] { return !open(); }, now + (stays ? kBlink : kMoment), spin);
}

/// The thread has to look around, or has something else to do; the engine goes on without it.
void FastPath::leave() {
  proposed_.kept = std::move(*proposed_.submission);
  proposed_.submission = &proposed_.kept;
  proposed_.work = make_work(proposed_.kept);
  proposed_.work->on_done = std::move(proposed_.kept.on_done);
  parts_.handles.add(proposed_.work);
}

std::shared_ptr<Work> FastPath::make_work(Submission& submission) const {
  auto work = std::make_shared<Work>();
  work->handle = proposed_.handle;
  work->name = full_name(proposed_.key);
  work->outputs.resize(submission.tensors.size());
  work->provide = std::move(submission.provide);
  return work;
}

bool FastPath::step(TimePoint now) {
  bool moved = move(now);
  if (lanes_.asked()) {
    const EngineLock::Guard lock(parts_.negotiation.mutex());
    moved |= lanes_.answer();
  }
  if (!open()) return moved;
  Proposals& proposals = *lane_->proposals;
  auto outcome = proposals.outcome();
  // Everybody has left without having proposed this, or is gone.
  if (outcome == Proposals::Outcome::Open && parts_.phase.has_closed()) {
    outcome = Proposals::Outcome::Refused;
  }
  if (outcome == Proposals::Outcome::Open) {
    if (proposed_.ask_at != TimePoint{} && now >= proposed_.ask_at) {
      proposed_.ask_at = TimePoint{};
      proposals.ask();
      if (proposals.remote()) {
        pass_on_ask({.generation = lane_->set.generation, .round = proposals.round()}, -1, now);
      }
    }
    return moved;
  }
  const EngineLock::Guard lock(parts_.negotiation.mutex());
  if (parts_.phase.has_ended()) parts_.negotiation.alert();  // maybe time to acknowledge
  settle(outcome == Proposals::Outcome::Agreed);
  return true;
}

/// The own proposal has an outcome.
void FastPath::settle(bool agreed) {
  Proposals& proposals = *lane_->proposals;
  if (agreed && proposed_.exchanges != nullptr) ++*proposed_.exchanges;
  if (agreed && !contributions_.any_large(*proposed_.submission)) {
    auto taken = take_results();
    proposals.settle();
    if (taken) {
      end(Proposed::End::Agreed, {});
    } else {
      end(Proposed::End::Failed, std::move(taken).error());
    }
    release_held();
    return;
  }
  if (!agreed) proposals.close();
  auto told = agreed ? contributions_.told(*proposed_.submission) : std::vector<Told>();
  proposals.settle();
  Submission submission = std::move(*proposed_.submission);
  Result<void> fine;
  auto draft = parts_.submissions.draft(submission, proposed_.work, &lane_->set);
  if (!draft) {
    fine = std::move(draft).error();
  } else if (agreed) {
    for (std::size_t i = 0; i < told.size(); ++i) draft->entries[i]->told = std::move(told[i]);
    start(*draft);
  } else {
    fine = parts_.submissions.negotiate(*draft, submission);
  }
  release_held();  // behind what was agreed
  if (!fine) {
    end(Proposed::End::Failed, std::move(fine).error());
    return;
  }
  proposed_.handle = draft->work->handle;
  proposed_.end = Proposed::End::Moved;
  proposed_.work.reset();
}

/// Everybody's contribution becomes the result.
Result<void> FastPath::take_results() {
  Submission& submission = *proposed_.submission;
  proposed_.handed = 0;
  if (!contributions_.moves_data()) return {};
  // Of a caller who stands still: what it takes in a moment.
  const bool stands = proposed_.work == nullptr;
  std::shared_ptr<Work> work =
      stands && lacks_memory(submission) ? make_work(submission) : proposed_.work;
  auto fine = contributions_.combine(submission, work, parts_.submissions.pool());
  if (!fine) return fine;
  ++lane_->run->operations;
  lane_->run->bytes += contributions_.bytes();
  if (stands && work != nullptr && work->has_result()) {
    parts_.handles.add(work);
    parts_.handles.complete(work);
    proposed_.handed = work->handle;
  }
  return {};
}

/// All members start it now, and nothing else is under way.
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
    batch.process_set = lane_->set.id;
    batch.position = {.stream = Position::Stream::Proposals,
                      .number = proposed_number(lane_->set.generation, proposed_.round, ++part)};
    for (const std::size_t i : places) {
      batch.signatures.push_back(draft.entries[i]->signature);
      batch.entries.push_back(std::move(draft.entries[i]));
    }
    parts_.dispatcher.enqueue(std::move(batch));
  }
  if (draft.fresh) parts_.handles.add(draft.work);
}

void FastPath::end(Proposed::End end, Error error) {
  proposed_.end = end;
  const auto work = std::move(proposed_.work);
  if (work == nullptr) {
    proposed_.error = std::move(error);
    return;
  }
  if (end == Proposed::End::Failed) work->error = std::move(error);
  parts_.handles.complete(work);
  parts_.progress.completed();
}

void FastPath::hold(Effects& decided, TimePoint now) {
  held_.append(decided);
  if (!open()) {
    release_held();
  } else if (!held_.empty() && proposed_.ask_at != TimePoint{}) {
    proposed_.ask_at = now;
  }
}

/// No proposal is open.
void FastPath::release_held() {
  if (parts_.submissions.join_behind_proposal()) parts_.progress.completed();
  parts_.submissions.enqueue(held_, parts_.dispatcher);
}

void FastPath::fail(const Error& error) {
  if (open()) {
    lane_->proposals->settle();
    end(Proposed::End::Failed, error);
  }
  held_.clear();
}

void FastPath::count(std::map<std::string, PathCount, std::less<>>& paths) const {
  const EngineLock::Guard lock(parts_.negotiation.mutex());
  for (const auto& [path, run] : lanes_.runs()) {
    if (run.operations == 0) continue;
    PathCount& count = paths[std::string(path)];
    count.operations += run.operations;
    count.bytes += run.bytes;
  }
}

std::string FastPath::proposed_to(Rank rank) const {
  if (!open()) return {};
  const Backend& backend = *parts_.dispatcher.backend_of(lane_->set.id);
  return std::ranges::binary_search(backend.members().ranks, rank) ? full_name(proposed_.key)
                                                                   : std::string();
}

/// A group is known by its first member. The same name in another set is another operation.
bool FastPath::has_proposed(const Key& key) const {
  return open() && !key.name.empty() && key.name == proposed_.key.name &&
         key.process_set == proposed_.key.process_set && key.generation == proposed_.key.generation;
}

/// What goes to other hosts and comes from there. True: something did.
bool FastPath::move(TimePoint now) {
  NoteExchange& notes = parts_.peers.notes();
  if (!notes.stirs() || parts_.detector.open() || parts_.phase.quiet()) return false;
  if (notes.unsent()) {
    const EngineLock::Guard lock(parts_.negotiation.mutex());
    notes.send_notes();
  }
  auto moved = notes.move();
  if (!moved) {
    const Rank peer = moved.error().peer;
    parts_.detector.report_loss(peer, std::move(moved).error(), Evidence::Data,
                                now == TimePoint{} ? Clock::now() : now);
    return true;
  }
  if (notes.heard()) {
    const EngineLock::Guard lock(parts_.negotiation.mutex());
    notes.refuse();
  }
  return *moved;
}

/// Who has not published in that round declines.
bool FastPath::take(std::span<const std::byte> frame, Rank from, TimePoint now) {
  const auto ask = decode_ask(frame);
  if (!ask) return false;
  if (const Lane* const lane = lanes_.of_generation(ask->generation)) {
    const EngineLock::Guard lock(parts_.negotiation.mutex());
    lane->proposals->called(ask->round);
  }
  pass_on_ask(*ask, from, now);
  return true;
}

/// Only where members are. A rank that does not know the set, yet or any more, asks everywhere.
void FastPath::pass_on_ask(const Ask& ask, Rank from, TimePoint now) {
  std::optional<std::vector<Rank>> towards;
  {
    const EngineLock::Guard lock(parts_.negotiation.mutex());
    towards = parts_.negotiation.negotiator()->towards(ask.generation);
  }
  pass_on(encode_ask(ask), from, parts_.peers, parts_.detector, now, towards ? &*towards : nullptr);
}

void FastPath::open(const SetChange& set, bool added) {
  ProcessSet opened;
  opened.id = set.id;
  opened.generation = set.generation;
  opened.channel = set.channel;
  for (const Rank rank : set.ranks) opened.members.add(rank);
  const EngineLock::Guard lock(parts_.negotiation.mutex());
  lanes_.open(opened, added);
}

void FastPath::linked() {
  const EngineLock::Guard lock(parts_.negotiation.mutex());
  lanes_.linked();
  parts_.peers.notes().linked();
}

void FastPath::changed(const SetChange& change) {
  const EngineLock::Guard lock(parts_.negotiation.mutex());
  if (change.added) {
    lanes_.ready(change.id);
  } else {
    if (lane_ != nullptr && lane_->set.id == change.id) lane_ = nullptr;
    lanes_.remove(change.id);
  }
}

}  // namespace farandole
