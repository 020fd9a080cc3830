#include "engine/execution/submissions.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "collectives/registry.h"
#include "engine/base/wording.h"

namespace farandole {

void Decided::append(Effects& effects) {
  if (effects.joined_last) {
    joined_last = effects.joined_last;
    dispatches_before_join = dispatches.size() + effects.dispatches_before_join;
  }
  if (dispatches.empty()) {
    dispatches.swap(effects.dispatches);
  } else {
    std::ranges::move(effects.dispatches, std::back_inserter(dispatches));
  }
}

/// How a submission is known to other ranks, before its tensors are looked at.
struct Submissions::Naming {
  const ProcessSet* set = nullptr;  // null: there is none, as the negotiator will say
  bool member = false;              // if this rank may not use the set, the negotiator says so
  bool unnamed = false;
  bool counted = false;
  std::uint64_t call = 0;
  std::string full_name;
};

Submissions::Naming Submissions::name(const Submission& submission, const ProcessSet* set) {
  const Rules& rules = rules_of(submission.kind);
  Naming naming;
  naming.set =
      set != nullptr ? set : negotiation_.negotiator()->process_set(submission.process_set);
  naming.member = naming.set != nullptr && naming.set->members.contains(peers_.self());
  naming.unnamed = submission.name.empty();
  naming.counted = rules.matched_by_count;
  if (naming.unnamed && !naming.counted) {
    naming.call = submission.call != 0
                      ? submission.call
                      : next_unnamed(naming.set != nullptr ? naming.set->generation : 0);
  }
  if (naming.counted) {
    naming.full_name = full_name({.name = {}, .kind = submission.kind});
    return naming;
  }
  naming.full_name = submission.grouped ? "grouped_" : "";
  naming.full_name += rules.prefix;
  naming.full_name += "." + (naming.unnamed ? unnamed_call(naming.call) : submission.name);
  return naming;
}

/// What this rank can see by itself; whether the set is a duplicate is decided at its place among
/// the dispatches, the same way on all ranks.
Result<void> Submissions::check_change(const Submission& submission) const {
  if (submission.kind == Kind::AddProcessSet) return check_members(submission.ranks, peers_.size());
  if (submission.kind != Kind::RemoveProcessSet) return {};
  if (negotiation_.negotiator()->process_set(submission.root) != nullptr) return {};
  return Error{.code = Code::InvalidArgument,
               .message = "Process set " + std::to_string(submission.root) +
                          " does not exist, or has not been registered"};
}

Result<Submissions::Draft> Submissions::draft(Submission& submission, std::shared_ptr<Work> work,
                                              const ProcessSet* set) {
  submission.kind = kind_of(submission);
  Draft draft;
  draft.collective = find_collective(submission.kind);
  draft.fresh = work == nullptr;
  const Handle handle = draft.fresh ? handles_.next() : work->handle;
  if (negotiation_.failed()) return *negotiation_.failed();
  if (draft.collective == nullptr) {
    return Error{.code = Code::Unsupported, .message = "this operation is not available"};
  }
  const Naming naming = name(submission, set);
  if (auto fine = check_change(submission); !fine) return std::move(fine).error();
  const std::size_t count = submission.tensors.size();
  if (draft.fresh) {
    work = std::make_shared<Work>();
    work->handle = handle;
    work->name = naming.full_name;
    work->outputs.resize(count);
    work->on_done = std::move(submission.on_done);
    work->provide = std::move(submission.provide);
  }
  work->remaining = count;
  draft.name = naming.full_name;
  draft.work = std::move(work);
  draft.entries.reserve(count);
  draft.keys.resize(count);
  draft.signatures.resize(count);
  draft.tickets.resize(count);
  for (std::size_t i = 0; i < count; ++i) {
    if (auto fine = add_entry(draft, submission, naming); !fine) return std::move(fine).error();
  }
  draft.work->tickets = draft.tickets;
  return draft;
}

/// The next tensor of the submission.
Result<void> Submissions::add_entry(Draft& draft, Submission& submission, const Naming& naming) {
  const std::size_t i = draft.entries.size();
  const std::size_t count = submission.tensors.size();
  Tensor& tensor = submission.tensors[i];
  Signature& signature = draft.signatures[i];
  signature.kind = submission.kind;
  signature.dtype = tensor.dtype;
  signature.device = tensor.device;
  signature.absent = tensor.absent;
  signature.op = submission.op;
  signature.root = submission.root;
  signature.ranks = submission.ranks;
  signature.prescale = submission.prescale;
  signature.postscale = submission.postscale;
  signature.shape = std::move(tensor.shape);
  auto entry = std::make_unique<Entry>();
  entry->name = naming.full_name;
  if (submission.grouped) {
    entry->name += "_" + std::to_string(i + 1) + "of" + std::to_string(count);
    signature.group = {.name = naming.full_name, .size = static_cast<std::uint32_t>(count)};
  }
  entry->signature = std::make_shared<const Signature>(signature);
  entry->in = tensor.absent ? tensor.out : tensor.in;
  entry->out = tensor.out;
  entry->splits = std::move(tensor.splits);
  entry->received = tensor.received;
  entry->device = std::move(tensor.on);
  entry->stream = tensor.stream;
  entry->streamless = tensor.streamless;
  entry->ready = std::move(tensor.ready);
  if (naming.member) {
    auto fine = check_dtype(signature);
    if (fine) fine = draft.collective->check(entry->task(), members_of(*naming.set));
    if (!fine) {
      Error error = std::move(fine).error();
      error.tensor = entry->name;
      return error;
    }
  }
  Key& key = draft.keys[i];
  key.process_set = submission.process_set;
  if (naming.set != nullptr) key.generation = naming.set->generation;
  if (naming.counted && naming.member) {
    key = negotiation_.negotiator()->counted_key(submission.kind, *naming.set);
    if (submission.call != 0) key.number = submission.call;  // it was proposed under that one
  } else if (naming.unnamed && !submission.grouped) {
    key.kind = submission.kind == Kind::Adasum ? Kind::Allreduce : submission.kind;
    key.number = naming.call;
  } else {
    key.name = entry->name;
  }
  entry->work = draft.work;
  entry->index = i;
  entry->pool = entry->device != nullptr ? entry->device->pinned_pool() : pool_;
  draft.tickets[i] = ++last_ticket_;
  draft.entries.push_back(std::move(entry));
  return {};
}

Result<void> Submissions::negotiate(Draft& draft, const Submission& submission) {
  const auto now = Clock::now();
  const FastPathGate* const fast_path = negotiation_.fast_path();
  Result<void> submitted = fast_path != nullptr && fast_path->has_proposed(draft.keys[0])
                               ? Error{.code = Code::Duplicate}
                               : negotiation_.negotiator()->submit_group(
                                     draft.keys, draft.signatures, draft.tickets,
                                     is_awaited(submission), now, negotiation_.effects());
  if (!submitted) {
    Error error = std::move(submitted).error();
    if (error.code == Code::Duplicate) {
      error.message = "Requested to " + std::string(draft.collective->rules.prefix) + " '" +
                      (error.tensor.empty() ? draft.name : error.tensor) +
                      "' which has the same name as another tensor that is still in flight; wait "
                      "for that one (synchronize) or use another name";
    }
    if (error.tensor.empty()) error.tensor = draft.name;
    return error;
  }
  for (std::size_t i = 0; i < draft.entries.size(); ++i) {
    entries_.emplace(draft.tickets[i], std::move(draft.entries[i]));
  }
  if (draft.fresh) handles_.add(draft.work);
  if (is_demanded(submission)) {
    negotiation_.negotiator()->mark_demanded(draft.tickets, now, negotiation_.effects());
  }
  negotiation_.submitted();
  return {};
}

std::uint64_t Submissions::next_unnamed(std::uint32_t generation) {
  return unnamed_call_number(joins_, ++unnamed_calls_[generation]);
}

/// What a set is called or who is in it may change.
const Members& Submissions::members_of(const ProcessSet& set) {
  auto found = members_.find(set.generation);
  if (found == members_.end()) {
    found =
        members_.emplace(set.generation, peers_.backend_factory().members(set.members.to_vector()))
            .first;
  }
  return found->second;
}

Result<Handle> Submissions::negotiate(Submission& submission) {
  auto made = draft(submission, nullptr);
  if (!made) return std::move(made).error();
  if (join_waits_) return refused_after_join(made->name);
  if (auto fine = negotiate(*made, submission); !fine) return std::move(fine).error();
  return made->work->handle;
}

Result<Handle> Submissions::join(Submission& submission) {
  const Handle handle = handles_.next();
  if (negotiation_.failed()) return *negotiation_.failed();
  const std::uint64_t ticket = ++last_ticket_;
  auto entry = std::make_unique<Entry>();
  entry->name = full_name({.name = {}, .kind = Kind::Join});
  if (join_ticket_ != 0) {
    return Error{.code = Code::Duplicate,
                 .message = "This rank has joined already: a join ends when all ranks have joined",
                 .tensor = entry->name};
  }
  // What this rank has proposed comes first: if the others refuse it, it still has to be submitted.
  const FastPathGate* const fast_path = negotiation_.fast_path();
  join_waits_ = fast_path != nullptr && fast_path->open();
  if (!join_waits_) {
    auto joined = negotiation_.negotiator()->join(ticket, Clock::now(), negotiation_.effects());
    if (!joined) return std::move(joined).error();
  }
  join_ticket_ = ticket;
  ++joins_;
  unnamed_calls_.clear();
  auto work = std::make_shared<Work>();
  work->handle = handle;
  work->name = entry->name;
  work->on_done = std::move(submission.on_done);
  entry->work = work;
  entries_.emplace(ticket, std::move(entry));
  handles_.add(std::move(work));
  negotiation_.submitted();
  return handle;
}

bool Submissions::join_behind_proposal() {
  if (!std::exchange(join_waits_, false)) return false;
  auto joined = negotiation_.negotiator()->join(join_ticket_, Clock::now(), negotiation_.effects());
  if (joined) {
    negotiation_.submitted();
    return false;
  }
  const auto entry = extract(std::exchange(join_ticket_, 0));
  entry->work->error = std::move(joined).error();
  handles_.complete(entry->work);
  return true;
}

void Submissions::enqueue(Decided& decided, Dispatcher& dispatcher) {
  for (std::size_t i = 0; i <= decided.dispatches.size(); ++i) {
    if (decided.joined_last && i == decided.dispatches_before_join) {
      dispatcher.enqueue(batch_of_join(*decided.joined_last));
    }
    if (i < decided.dispatches.size()) dispatcher.enqueue(batch_of(decided.dispatches[i]));
  }
  decided.clear();
}

Dispatcher::Batch Submissions::batch_of(Dispatch& dispatch) {
  Dispatcher::Batch batch;
  batch.process_set = dispatch.process_set;
  batch.position = {.stream = Position::Stream::Dispatches, .number = dispatch.number};
  if (dispatch.change) {
    batch.value = dispatch.change->id;
    if (!dispatch.change->added) members_.erase(dispatch.change->generation);
    batch.change = std::move(dispatch.change);
  }
  for (DispatchEntry& entry : dispatch.entries) {
    std::unique_ptr<Entry> mine = extract(entry.ticket);
    if (entry.track != 0) {
      batch.tracks.resize(batch.entries.size() + 1, 0);
      batch.tracks.back() = entry.track;
    }
    const bool nobody = entry.signature->absent;
    if (mine && nobody) {
      mine->work->outputs[mine->index].absent = true;
    } else if (mine && mine->signature->absent) {
      mine->signature = entry.signature;  // it brings zeros to what others have something of
    }
    // The own signature, not the agreed one: rows of an allgather differ between ranks. Without any
    // there is nothing to be run.
    if (!nobody) batch.signatures.push_back(mine ? mine->signature : std::move(entry.signature));
    batch.entries.push_back(std::move(mine));
  }
  if (!batch.tracks.empty()) batch.tracks.resize(batch.entries.size(), 0);
  return batch;
}

/// Nothing is to be run, but all that came before must be over.
Dispatcher::Batch Submissions::batch_of_join(Rank last) {
  Dispatcher::Batch batch;
  batch.value = last;
  if (auto mine = extract(join_ticket_)) batch.entries.push_back(std::move(mine));
  return batch;
}

std::unique_ptr<Entry> Submissions::extract(std::uint64_t ticket) {
  if (ticket == join_ticket_) join_ticket_ = 0;
  auto node = entries_.extract(ticket);
  return node.empty() ? nullptr : std::move(node.mapped());
}

std::vector<std::unique_ptr<Entry>> Submissions::take_entries() {
  std::vector<std::unique_ptr<Entry>> entries;
  for (auto& [ticket, entry] : entries_) entries.push_back(std::move(entry));
  entries_.clear();
  return entries;
}

}  // namespace farandole
