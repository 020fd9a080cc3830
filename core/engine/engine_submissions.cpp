/// What users submit, on any thread.

#include <cstdint>

#include "collectives/collective.h"
#include "collectives/registry.h"
#include "engine/base/names.h"
#include "engine/control/fusion.h"
#include "engine/engine.h"

namespace rueda {

Error Engine::forked() {
  return {.code = Code::Internal,
          .message =
              "this process was forked after init; the child cannot use the parent's engine: start "
              "it before init, or use the 'spawn' method"};
}

Result<Handle> Engine::submit(Request request) {
  if (in_child()) return forked();
  const bool waits = request.waited && !request.on_done;
  const bool nobody_waits = request.on_done != nullptr;
  std::unique_lock lock(mutex_);
  auto work = admit(request, nullptr);
  if (!work) return std::move(work).error();
  const Handle handle = (*work)->handle;
  publish(lock, waits);
  if (nobody_waits) drive_alone();
  return handle;
}

/// A world of one has no engine thread that would run what nobody waits for.
void Engine::drive_alone() {
  if (options_.size != 1) return;
  want_all();
  progress_->poke();
}

/// With mutex_ held. `work`: what the submission stands for, if it has a handle already. `agreed`:
/// by all ranks, which start it now, and nothing else is under way; only by the holder of the
/// baton.
Result<std::shared_ptr<Work>> Engine::admit(Request& request, std::shared_ptr<Work> work,
                                            bool agreed) {
  // How Adasum combines has little in common with the other operators; but it shares their names.
  if (request.kind == Kind::Allreduce && request.op == ReduceOp::Adasum) {
    request.kind = Kind::Adasum;
  }
  const Collective* collective = find_collective(request.kind);
  const bool known = work != nullptr;
  const Handle handle = known ? work->handle : ++last_handle_;
  if (failed_) return *failed_;
  if (collective == nullptr) {
    return Error{.code = Code::Unsupported, .message = "this operation is not available"};
  }
  const bool unnamed = request.name.empty();
  const bool counted = collective->rules.matched_by_count;
  // If this rank may not use the set, the negotiator says so.
  const ProcessSet* set = negotiator_->process_set(request.process_set);
  const bool member = set != nullptr && set->members.contains(options_.rank);
  const std::uint64_t call = !unnamed || counted ? 0
                             : request.call != 0
                                 ? request.call
                                 : next_unnamed(set != nullptr ? set->generation : 0);
  std::string full_name = request.grouped ? "grouped_" : "";
  full_name += collective->rules.prefix;
  full_name += "." + (unnamed ? unnamed_call(call) : request.name);
  if (counted) full_name = rueda::full_name({.name = {}, .kind = request.kind});
  if (auto fine = check_change(request); !fine) return std::move(fine).error();

  const std::size_t count = request.tensors.size();
  if (count == 0) {
    return Error{.code = Code::InvalidArgument,
                 .message = "an operation needs at least one tensor"};
  }
  if (!known) {
    work = std::make_shared<Work>();
    work->handle = handle;
    work->name = full_name;
    work->outputs.resize(count);
    work->on_done = std::move(request.on_done);
    work->provide = std::move(request.provide);
  }
  work->remaining = count;

  std::vector<std::unique_ptr<Entry>> entries;
  std::vector<Key> keys(count);
  std::vector<Signature> signatures(count);
  std::vector<std::uint64_t> tickets(count);
  entries.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    TensorRequest& tensor = request.tensors[i];
    Signature& signature = signatures[i];
    signature.kind = request.kind;
    signature.dtype = tensor.dtype;
    signature.op = request.op;
    signature.root = request.root;
    signature.ranks = request.ranks;
    signature.prescale = request.prescale;
    signature.postscale = request.postscale;
    signature.shape = std::move(tensor.shape);
    auto entry = std::make_unique<Entry>();
    entry->name = full_name;
    if (request.grouped) {
      entry->name += "_" + std::to_string(i + 1) + "of" + std::to_string(count);
      signature.group = {.name = full_name, .size = static_cast<std::uint32_t>(count)};
    }
    entry->signature = std::make_shared<const Signature>(signature);
    entry->in = tensor.in;
    entry->out = tensor.out;
    entry->splits = std::move(tensor.splits);
    entry->received = tensor.received;
    if (member) {
      if (auto fine = collective->check(entry->task(), members_of(*set)); !fine) {
        Error error = std::move(fine).error();
        error.tensor = entry->name;
        return error;
      }
    }
    Key& key = keys[i];
    key.process_set = request.process_set;
    if (set != nullptr) key.generation = set->generation;
    if (counted && member) {
      key = negotiator_->counted_key(request.kind, *set);
    } else if (unnamed && !request.grouped) {
      key.kind = request.kind == Kind::Adasum ? Kind::Allreduce : request.kind;
      key.number = call;
    } else {
      key.name = entry->name;
    }
    entry->work = work;
    entry->index = i;
    entry->pool = pool_;
    tickets[i] = ++last_ticket_;
    entries.push_back(std::move(entry));
  }
  work->tickets = tickets;

  if (agreed) {
    std::vector<Ready> ready(count);
    for (std::size_t i = 0; i < count; ++i) {
      const Signature& signature = *entries[i]->signature;
      ready[i] = {.signature = &signature, .bytes = signature.bytes(), .group = 1};
    }
    std::uint64_t part = 0;
    // Nobody says how to divide it, so nothing that ranks may set differently can matter.
    for (const auto& places : plan(ready, {.threshold_bytes = SIZE_MAX})) {
      Dispatcher::Batch batch;
      batch.position = {.stream = Position::Stream::Offers,
                        .number = (std::uint64_t{offered_.round} << 16) + ++part};
      for (const std::size_t i : places) {
        batch.signatures.push_back(entries[i]->signature);
        batch.entries.push_back(std::move(entries[i]));
      }
      dispatcher_->enqueue(std::move(batch));
    }
    if (!known) works_.emplace(handle, work);
    return work;
  }
  const auto now = Clock::now();
  // What is on offer is in flight, too, though the negotiator has not heard of it.
  Result<void> submitted =
      on_offer(keys[0])
          ? Error{.code = Code::Duplicate}
          : negotiator_->submit_group(keys, signatures, tickets, request.waited, now, effects_);
  if (!submitted) {
    Error error = std::move(submitted).error();
    if (error.code == Code::Duplicate) {
      error.message = "Requested to " + std::string(collective->rules.prefix) + " '" +
                      (error.tensor.empty() ? full_name : error.tensor) +
                      "' which has the same name as another tensor that is still in flight; wait "
                      "for that one (synchronize) or use another name";
    }
    if (error.tensor.empty()) error.tensor = full_name;
    return error;
  }
  for (std::size_t i = 0; i < count; ++i) entries_.emplace(tickets[i], std::move(entries[i]));
  if (!known) works_.emplace(handle, work);
  if (request.demanded) negotiator_->demand(now, effects_);
  return work;
}

/// With mutex_ held. Ranks may use other sets, and ranks that join early do without some calls: so
/// every set counts by itself, and anew after each join, which all ranks call equally often.
std::uint64_t Engine::next_unnamed(std::uint32_t generation) {
  return unnamed_call_number(joins_, ++unnamed_calls_[generation]);
}

/// After a submission: what it brought about is there for whoever drives. `comes`: see tell().
void Engine::publish(std::unique_lock<std::mutex>& lock, bool comes) {
  note_submission(true);
  lock.unlock();
  tell(comes);
}

/// With mutex_ held.
void Engine::note_submission(bool fresh) {
  if (fresh) unfinished_.fetch_add(1, std::memory_order_relaxed);
  if (Offers* offers = peers_.offers()) offers->close();
  rest();
  note_tick();
  if (!effects_.empty()) effects_pending_.store(true, std::memory_order_seq_cst);
}

Result<Handle> Engine::join(std::function<void(const Work&)> on_done) {
  if (in_child()) return forked();
  const bool nobody_waits = on_done != nullptr;
  std::unique_lock lock(mutex_);
  const Handle handle = ++last_handle_;
  if (failed_) return *failed_;
  const std::uint64_t ticket = ++last_ticket_;
  auto entry = std::make_unique<Entry>();
  entry->name = rueda::full_name({.name = {}, .kind = Kind::Join});
  if (join_ticket_ != 0) {
    return Error{.code = Code::Duplicate,
                 .message = "This rank has joined already: a join ends when all ranks have joined",
                 .tensor = entry->name};
  }
  auto joined = negotiator_->join(ticket, Clock::now(), effects_);
  if (!joined) return std::move(joined).error();
  join_ticket_ = ticket;
  ++joins_;
  unnamed_calls_.clear();
  auto work = std::make_shared<Work>();
  work->handle = handle;
  work->name = entry->name;
  work->on_done = std::move(on_done);
  entry->work = work;
  entries_.emplace(ticket, std::move(entry));
  works_.emplace(handle, std::move(work));
  publish(lock, false);
  if (nobody_waits) drive_alone();
  return handle;
}

/// Tells whoever drives that something was submitted. `comes`: the calling thread will drive at
/// once.
void Engine::tell(bool comes) {
  if (options_.size == 1) return;
  const bool pending = effects_pending_.load(std::memory_order_relaxed);
  const std::int64_t tick = next_tick_ns_.load(std::memory_order_relaxed);
  if (comes) {
    progress_->alert_holder();
  } else if (pending) {
    progress_->alert();
  } else if (tick != kNever) {
    progress_->due(TimePoint(Duration(tick)));
  }
}

void Engine::note_tick() {
  const auto tick = negotiator_->next_tick();
  next_tick_ns_.store(tick ? nanoseconds(*tick) : kNever, std::memory_order_relaxed);
}

}  // namespace rueda
