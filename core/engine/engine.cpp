#include "engine/engine.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <limits>

#include "collectives/collective.h"
#include "collectives/registry.h"
#include "engine/cause_frame.h"
#include "engine/shared_memory.h"
#include "engine/term.h"

namespace rueda {

namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// Enough for what is gathered again and again; little beside the tensors of whoever needs so much.
constexpr std::size_t kKeptOutputBytes = std::size_t{256} << 20;
/// After the bare end of a connection: how long to wait for somebody who knows why.
constexpr auto kCauseGrace = milliseconds(200);
/// How often to look whether somebody has left a cause meanwhile.
constexpr auto kCauseLook = milliseconds(1);
constexpr auto kCloseGrace = seconds(1);
constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

std::int64_t nanoseconds(TimePoint time) { return time.time_since_epoch().count(); }

Error forked() {
  return {.code = Code::Internal,
          .message =
              "this process was forked after init; the child cannot use the parent's engine: start "
              "it before init, or use the 'spawn' method"};
}

static_assert(kMaxProcessSets <= kShmChannels, "each may need a channel of shared memory");

/// Of what moves no data of the user.
TensorRequest no_tensor() { return {.dtype = DType::UInt8, .shape = {}}; }

}  // namespace

Engine::Engine(EngineOptions options)
    : options_(std::move(options)),
      log_(options_.rank, options_.log_level, options_.log_hide_time),
      timeline_(options_.rank, options_.negotiator.cycle, log_),
      peers_(options_.rank, options_.size, options_.groups, options_.hosts),
      pool_(std::make_shared<HostPool>(kKeptOutputBytes)),
      next_tick_ns_(kNever) {}

Engine::~Engine() {
  if (in_child()) {  // threads did not survive the fork, and nobody may hear from the child
    if (thread_.joinable()) thread_.detach();
    notifier_.abandon();
    timeline_.abandon();
    return;
  }
  shutdown();
}

Result<void> Engine::start() {
  const std::lock_guard lifecycle(lifecycle_);
  if (auto opened = peers_.open(); !opened) return opened;
  fork_guard_.cover(peers_.descriptors());
  if (peers_.heap() != nullptr) {
    // Nothing is given back to the heap: models come and go with tensors of the same sizes.
    shared_pool_ = std::make_shared<HostPool>(std::numeric_limits<std::size_t>::max(),
                                              std::make_unique<SharedMemory>(peers_.heap()));
  }
  negotiator_ = std::make_unique<Negotiator>(options_.groups, options_.hosts, options_.rank,
                                             options_.negotiator, &timeline_);
  if (auto opened = open_sets(); !opened) return opened;
  if (!options_.timeline.empty()) {
    timeline_.start(options_.timeline, options_.timeline_mark_cycles);
  }
  Driver& driver = *this;
  progress_ =
      std::make_unique<Progress>(driver, peers_.bell(), peers_.engine_bell(), peers_.waiter_bell());
  started_ = true;
  if (options_.size == 1) return {};  // the calling threads do it all
  thread_ = std::jthread([this](const std::stop_token& stop) { progress_->run(stop); });
  ::pthread_setname_np(thread_.native_handle(), "rueda-engine");
  if (options_.thread_affinity >= 0) {
    cpu_set_t cores;
    CPU_ZERO(&cores);
    CPU_SET(static_cast<std::size_t>(options_.thread_affinity), &cores);
    if (::pthread_setaffinity_np(thread_.native_handle(), sizeof cores, &cores) != 0) {
      log_.write(LogLevel::Error, "HOROVOD_THREAD_AFFINITY: cannot pin the engine thread to core " +
                                      std::to_string(options_.thread_affinity));
    }
  }
  return {};
}

/// The table of backends, with those sets that exist from the start.
Result<void> Engine::open_sets() {
  dispatcher_ = std::make_unique<Dispatcher>(
      peers_.backend(),
      [this](std::int32_t id, std::span<const Rank> ranks) {
        return peers_.fabric().open(ranks, id);
      },
      options_.operation_timeout, &timeline_);
  const auto& wanted = options_.negotiator.process_sets;
  const auto sets = negotiator_->process_sets();
  if (sets.size() != wanted.size() + 1) {  // one was refused
    World world(options_.groups, options_.hosts, options_.rank);
    for (const auto& ranks : wanted) {
      if (auto fine = world.check_addition(ranks); !fine) return fine;
      world.add_set(ranks);
    }
  }
  for (const auto& [id, ranks] : sets) {
    if (id == 0) continue;
    if (auto opened = dispatcher_->open(id, ranks); !opened) return opened;
  }
  return {};
}

// --- submissions: any thread ------------------------------------------------------------------

Result<Handle> Engine::submit(Request request) {
  if (in_child()) return forked();
  // How Adasum combines has little in common with the other operators; but it shares their names.
  if (request.kind == Kind::Allreduce && request.op == ReduceOp::Adasum) {
    request.kind = Kind::Adasum;
  }
  const Collective* collective = find_collective(request.kind);
  std::unique_lock lock(mutex_);
  const Handle handle = ++last_handle_;
  if (failed_) return *failed_;
  if (collective == nullptr) {
    return Error{.code = Code::Unsupported, .message = "this operation is not available"};
  }
  const bool unnamed = request.name.empty();
  const bool counted = collective->rules.matched_by_count;
  // If this rank may not use the set, the negotiator says so.
  const ProcessSet* set = negotiator_->process_set(request.process_set);
  const bool member = set != nullptr && set->members.contains(options_.rank);
  const std::uint64_t call =
      unnamed && !counted ? next_unnamed(set != nullptr ? set->generation : 0) : 0;
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
  auto work = std::make_shared<Work>();
  work->handle = handle;
  work->name = full_name;
  work->remaining = count;
  work->outputs.resize(count);
  work->on_done = std::move(request.on_done);
  const bool wants_callback = work->on_done != nullptr;

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

  const auto now = Clock::now();
  auto submitted =
      request.grouped
          ? negotiator_->submit_group(keys, signatures, tickets, request.waited, now, effects_)
          : negotiator_->submit(keys[0], signatures[0], tickets[0], request.waited, now, effects_);
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
  works_.emplace(handle, std::move(work));
  if (request.demanded) negotiator_->demand(now, effects_);
  publish(lock, request.waited && !wants_callback);
  if (options_.size == 1 && wants_callback) {  // nobody will come to wait for it
    want_all();
    progress_->poke();
  }
  return handle;
}

/// With mutex_ held. Ranks may use other sets, and ranks that join early do without some calls: so
/// every set counts by itself, and anew after each join, which all ranks call equally often.
std::uint64_t Engine::next_unnamed(std::uint32_t generation) {
  return unnamed_call_number(joins_, ++unnamed_calls_[generation]);
}

/// After a submission: what it brought about is there for whoever drives. `comes`: see tell().
void Engine::publish(std::unique_lock<std::mutex>& lock, bool comes) {
  unfinished_.fetch_add(1, std::memory_order_relaxed);
  note_tick();
  if (!effects_.empty()) effects_pending_.store(true, std::memory_order_seq_cst);
  lock.unlock();
  tell(comes);
}

/// With mutex_ held, as what a set is called or who is in it may change.
const Members& Engine::members_of(const ProcessSet& set) {
  auto found = members_.find(set.generation);
  if (found == members_.end()) {
    found =
        members_.emplace(set.generation, peers_.fabric().members(set.members.to_vector())).first;
  }
  return found->second;
}

/// What this rank can see by itself; whether the set is a duplicate is decided at its place among
/// the dispatches, the same way on all ranks.
Result<void> Engine::check_change(const Request& request) const {
  if (request.kind == Kind::AddProcessSet) return check_members(request.ranks, options_.size);
  if (request.kind != Kind::RemoveProcessSet) return {};
  if (negotiator_->process_set(request.root) != nullptr) return {};
  return Error{.code = Code::InvalidArgument,
               .message = "Process set " + std::to_string(request.root) +
                          " does not exist, or has not been registered"};
}

Result<Handle> Engine::add_process_set(std::vector<Rank> ranks) {
  Request request;
  request.kind = Kind::AddProcessSet;
  request.ranks = std::move(ranks);
  request.tensors.push_back(no_tensor());
  request.demanded = true;
  return submit(std::move(request));
}

Result<Handle> Engine::remove_process_set(std::int32_t id) {
  Request request;
  request.kind = Kind::RemoveProcessSet;
  request.root = id;
  request.tensors.push_back(no_tensor());
  request.demanded = true;
  return submit(std::move(request));
}

std::map<std::int32_t, std::vector<Rank>> Engine::process_sets() const {
  if (in_child()) return {};
  const std::lock_guard lock(mutex_);
  return negotiator_ ? negotiator_->process_sets() : decltype(negotiator_->process_sets()){};
}

Result<Handle> Engine::join() {
  if (in_child()) return forked();
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
  entry->work = work;
  entries_.emplace(ticket, std::move(entry));
  works_.emplace(handle, std::move(work));
  publish(lock, false);
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

std::shared_ptr<Work> Engine::find(Handle handle) const {
  const std::lock_guard lock(mutex_);
  const auto found = works_.find(handle);
  return found == works_.end() ? nullptr : found->second;
}

std::shared_ptr<Work> Engine::take(Handle handle) {
  const std::lock_guard lock(mutex_);
  const auto found = works_.find(handle);
  if (found == works_.end()) return nullptr;
  auto work = std::move(found->second);
  works_.erase(found);
  return work;
}

void Engine::abandon_all() {
  const std::lock_guard lock(mutex_);
  works_.clear();
}

void Engine::want_all() { press(&Negotiator::want_all); }

void Engine::press(void (Negotiator::*want)(TimePoint, Effects&)) {
  if (in_child()) return;
  {
    const std::lock_guard lock(mutex_);
    if (failed_) return;
    (*negotiator_.*want)(Clock::now(), effects_);
    note_tick();
    if (effects_.empty()) return;
    effects_pending_.store(true, std::memory_order_seq_cst);
  }
  if (options_.size > 1) progress_->alert_holder();  // whoever wants goes on to drive
}

std::optional<bool> Engine::poll(Handle handle) {
  if (in_child()) return false;  // a thread of the parent may have held the lock
  const auto work = find(handle);
  if (!work) return std::nullopt;
  // A world of one, or the rank that comes last, would often be done before anybody can look;
  // scripts and tests rely on operations being asynchronous, so the first look says no.
  const bool first = !work->polled.exchange(true);
  if (work->done.load(std::memory_order_acquire)) return !first;
  if (first && options_.size == 1) return false;
  press(&Negotiator::demand);  // who only looks is not blocked: a deadlock must not be claimed
  progress_->poke();
  return !first && work->done.load(std::memory_order_acquire);
}

std::optional<bool> Engine::wait(Handle handle, TimePoint deadline) {
  if (in_child()) return false;  // a thread of the parent may have held the lock
  const auto work = find(handle);
  if (!work) return std::nullopt;
  if (work->done.load(std::memory_order_acquire)) return true;
  bool pending = false;
  {
    const std::lock_guard lock(mutex_);
    if (!failed_) {
      for (const std::uint64_t ticket : work->tickets) {
        negotiator_->want(ticket, Clock::now(), effects_);
      }
      note_tick();
      pending = !effects_.empty();
      if (pending) effects_pending_.store(true, std::memory_order_seq_cst);
    }
  }
  if (pending && options_.size > 1) progress_->alert_holder();
  return progress_->until([&] { return work->done.load(std::memory_order_acquire); }, deadline);
}

// --- the holder of the baton ------------------------------------------------------------------

bool Engine::busy() const {
  return unfinished_.load(std::memory_order_relaxed) != 0 || !dispatcher_->idle() ||
         effects_pending_.load(std::memory_order_relaxed) || suspicion_.has_value() ||
         (ended_.load(std::memory_order_relaxed) && !closed_.load(std::memory_order_relaxed));
}

std::optional<TimePoint> Engine::next_deadline() const {
  if (has_failed_.load(std::memory_order_relaxed)) return std::nullopt;  // advance() does nothing
  auto at = TimePoint::max();
  if (const auto tick = next_tick_ns_.load(std::memory_order_relaxed); tick != kNever) {
    at = std::min(at, TimePoint(Duration(tick)));
  }
  if (const auto due = dispatcher_->deadline()) at = std::min(at, *due);
  if (suspicion_) at = std::min(at, Clock::now() + kCauseLook);
  if (at == TimePoint::max()) return std::nullopt;
  return at;
}

bool Engine::quiet() const noexcept {
  return has_failed_.load(std::memory_order_relaxed) || closed_.load(std::memory_order_relaxed);
}

bool Engine::advance() {
  if (has_failed_.load(std::memory_order_relaxed)) return false;
  const auto now = Clock::now();
  bool moved = receive(now);
  // Dispatches that came before the cause must not start: their entries have failed already.
  if (has_failed_.load(std::memory_order_relaxed)) return true;
  if (nanoseconds(now) >= next_tick_ns_.load(std::memory_order_relaxed)) {
    const std::lock_guard lock(mutex_);
    negotiator_->tick(now, effects_);
    note_tick();
    if (!effects_.empty()) effects_pending_.store(true, std::memory_order_relaxed);
  }
  moved |= apply_effects(now);
  if (suspicion_) {
    moved |= settle_suspicion(now);
  } else {
    moved |= step_batch(now);
  }
  return moved;
}

bool Engine::receive(TimePoint now) {
  bool moved = false;
  for (auto& neighbour : peers_.neighbours()) {
    ControlChannel& channel = *neighbour.channel;
    if (!channel.ready()) continue;
    for (;;) {
      auto message = channel.receive();
      if (!message) {
        lose(neighbour.rank, std::move(message).error(), false, now);
        break;
      }
      if (!*message) break;
      if (!moved && timeline_.marks_cycles()) timeline_.cycle(now);
      moved = true;
      if (auto cause = decode_cause(**message)) {
        abort(*cause);
        return true;
      }
      Result<void> fine;
      {
        const std::lock_guard lock(mutex_);
        fine = negotiator_->receive(neighbour.rank, **message, now, effects_);
        note_tick();
        if (!effects_.empty()) effects_pending_.store(true, std::memory_order_relaxed);
      }
      if (!fine) {
        lose(neighbour.rank, std::move(fine).error(), false, now);
        break;
      }
    }
    if (channel.congested()) {
      if (auto flushed = channel.flush(); !flushed) {
        lose(neighbour.rank, std::move(flushed).error(), false, now);
      }
    }
  }
  return moved;
}

bool Engine::apply_effects(TimePoint now) {
  if (!effects_pending_.load(std::memory_order_seq_cst)) return false;
  if (timeline_.marks_cycles()) timeline_.cycle(now);
  {
    const std::lock_guard lock(mutex_);
    effects_pending_.store(false, std::memory_order_relaxed);
    applying_.clear();
    std::swap(applying_, effects_);
    for (std::size_t i = 0; i <= applying_.dispatches.size(); ++i) {
      if (applying_.joined_last && i == applying_.dispatches_before_join) {
        enqueue_joined(*applying_.joined_last);
      }
      if (i < applying_.dispatches.size()) enqueue(applying_.dispatches[i]);
    }
  }
  for (const auto& send : applying_.sends) {
    ControlChannel* channel = peers_.channel(send.to);
    const auto bytes =
        std::span<const std::byte>(applying_.bytes).subspan(send.begin, send.end - send.begin);
    auto sent = channel->send(bytes);
    if (sent) sent = channel->flush();
    if (!sent) lose(send.to, std::move(sent).error(), false, now);
  }
  for (const auto& text : applying_.warnings) log_.write(LogLevel::Warning, text);
  for (const auto& text : applying_.errors) log_.write(LogLevel::Error, text);
  for (Failure& failure : applying_.failures) {
    std::vector<std::unique_ptr<Entry>> entries;
    {
      const std::lock_guard lock(mutex_);
      if (failure.ticket == join_ticket_) join_ticket_ = 0;
      auto node = entries_.extract(failure.ticket);
      if (node.empty()) continue;
      entries.push_back(std::move(node.mapped()));
    }
    if (failure.error.tensor.empty()) failure.error.tensor = entries.front()->name;
    finish(std::move(entries), failure.error);
  }
  if (applying_.shutdown_by) ended_.store(true, std::memory_order_relaxed);
  if (applying_.closed) closed_.store(true, std::memory_order_seq_cst);
  if (applying_.fatal) abort(*applying_.fatal);
  if (ended_.load(std::memory_order_relaxed) && !acknowledged_.load() && dispatcher_->idle()) {
    acknowledged_.store(true);
    const std::lock_guard lock(mutex_);
    negotiator_->acknowledge_shutdown(now, effects_);
    effects_pending_.store(!effects_.empty(), std::memory_order_relaxed);
  }
  if (closed_.load(std::memory_order_relaxed)) progress_->completed();
  return true;
}

/// Called with mutex_ held.
void Engine::enqueue(Dispatch& dispatch) {
  Dispatcher::Batch batch;
  batch.process_set = dispatch.process_set;
  if (dispatch.change) {
    batch.value = dispatch.change->id;
    if (!dispatch.change->added) members_.erase(dispatch.change->generation);
    batch.change = std::move(dispatch.change);
  }
  for (DispatchEntry& entry : dispatch.entries) {
    std::unique_ptr<Entry> mine;
    if (auto node = entries_.extract(entry.ticket); !node.empty()) mine = std::move(node.mapped());
    if (entry.track != 0) {
      batch.tracks.resize(batch.entries.size() + 1, 0);
      batch.tracks.back() = entry.track;
    }
    // The own signature, not the agreed one: rows of an allgather differ between ranks.
    batch.signatures.push_back(mine ? mine->signature : std::move(entry.signature));
    batch.entries.push_back(std::move(mine));
  }
  if (!batch.tracks.empty()) batch.tracks.resize(batch.entries.size(), 0);
  dispatcher_->enqueue(std::move(batch));
}

/// Called with mutex_ held. Nothing is to be run, but all that came before must be over.
void Engine::enqueue_joined(Rank last) {
  Dispatcher::Batch batch;
  batch.value = last;
  auto node = entries_.extract(std::exchange(join_ticket_, 0));
  if (!node.empty()) batch.entries.push_back(std::move(node.mapped()));
  dispatcher_->enqueue(std::move(batch));
}

bool Engine::step_batch(TimePoint now) {
  if (dispatcher_->idle()) return false;
  auto step = dispatcher_->step(now);
  if (!step) {
    Error error = std::move(step).error();
    if (error.code == Code::PeerLost) {
      const Rank peer = error.peer;
      lose(peer, std::move(error), false, now);
    } else {
      abort(error);
    }
    return true;
  }
  if (*step == Step::Done) {
    finish(dispatcher_->take_completed(), std::nullopt);
    if (ended_.load(std::memory_order_relaxed)) {
      effects_pending_.store(true, std::memory_order_relaxed);  // maybe time to acknowledge
    }
  }
  return *step != Step::Blocked;
}

void Engine::finish(std::vector<std::unique_ptr<Entry>> entries,
                    const std::optional<Error>& error) {
  for (auto& entry : entries) {
    const auto work = std::move(entry->work);
    if (error && !work->error) work->error = error;
    if (--work->remaining != 0) continue;
    unfinished_.fetch_sub(1, std::memory_order_relaxed);
    work->done.store(true, std::memory_order_seq_cst);  // before completed() looks who sleeps
    if (work->on_done) notifier_.post([work] { work->on_done(*work); });
  }
  progress_->completed();
}

// --- failures -----------------------------------------------------------------------------------

Error Engine::lost_error(Rank rank, std::string_view how) const {
  return Error{.code = Code::PeerLost,
               .message = peers_.describe(rank) + " is gone: " + std::string(how) +
                          ". Look at its own output for the reason",
               .peer = rank};
}

void Engine::watch(std::vector<pollfd>& fds) const {
  if (!quiet() && !suspicion_) peers_.watch(fds);  // what broke stays readable
}

void Engine::woken(const pollfd* fds, std::size_t count) {
  if (quiet() || suspicion_) return;
  if (const auto loss = peers_.lost(fds, count)) {
    lose(loss->rank,
         lost_error(loss->rank,
                    loss->certain ? "its process has ended" : "its connection has ended"),
         loss->certain, Clock::now());
  }
}

/// After the shutdown, when nothing is owed to anybody any more, whoever is gone has left, as this
/// rank does. True: the loss of a peer means nothing.
bool Engine::orderly_end() {
  if (!quiet() && !(ended_.load() && dispatcher_->idle())) return false;
  if (!has_failed_.load()) closed_.store(true);
  progress_->completed();
  return true;
}

/// A peer seems lost. Who really went first is known best by those who saw it: look for what they
/// left, and after a bare end of a connection give them a moment.
void Engine::lose(Rank rank, Error error, bool certain, TimePoint now) {
  if (orderly_end()) return;
  if (error.peer < 0) error.peer = rank;
  if (error.code != Code::PeerLost) {
    error = Error::wrap(std::move(error), "control connection to " + peers_.describe(rank));
    error.code = Code::PeerLost;
  } else if (!certain && error.message.find(peers_.describe(rank)) == std::string::npos) {
    error = Error::wrap(std::move(error), peers_.describe(rank) + " is gone");
  }
  if (const auto cause = peers_.left_cause()) {
    abort(*cause);
  } else if (certain) {
    abort(error);
  } else if (!suspicion_) {
    suspicion_ = Suspicion{.error = std::move(error), .until = now + kCauseGrace};
  }
}

bool Engine::settle_suspicion(TimePoint now) {
  if (orderly_end()) {
    suspicion_.reset();
    return true;
  }
  if (const auto cause = peers_.left_cause()) {
    abort(*cause);
  } else if (now >= suspicion_->until || peers_.gone(suspicion_->error.peer)) {
    abort(Error(suspicion_->error));
  } else {
    return false;
  }
  return true;
}

/// The world is over: everybody who can still be told learns the first cause, everything pending
/// fails with it.
void Engine::abort(const Error& error) {
  std::vector<std::unique_ptr<Entry>> entries;
  {
    const std::lock_guard lock(mutex_);
    if (failed_) return;
    failed_ = error;
    for (auto& [ticket, entry] : entries_) entries.push_back(std::move(entry));
    entries_.clear();
  }
  suspicion_.reset();
  log_.write(LogLevel::Debug, "aborting: " + error.what());
  if (!closed_.load()) peers_.leave_cause(error);
  const auto frame = encode_cause(error);
  for (auto& neighbour : peers_.neighbours()) {
    if (closed_.load()) break;  // they know that the world has ended
    if (neighbour.channel->send(frame)) {
      [[maybe_unused]] const auto flushed = neighbour.channel->flush();  // it may be the dead one
    }
  }
  auto running = dispatcher_->take_all();
  std::move(running.begin(), running.end(), std::back_inserter(entries));
  if (timeline_.recording()) timeline_.aborted(Clock::now());
  has_failed_.store(true, std::memory_order_seq_cst);
  finish(std::move(entries), error);
}

// --- the end ------------------------------------------------------------------------------------

void Engine::shutdown() {
  if (in_child()) return;
  const std::lock_guard lifecycle(lifecycle_);
  if (!started_) return;
  started_ = false;
  if (!has_failed_.load()) {
    {
      const std::lock_guard lock(mutex_);
      negotiator_->shutdown(Clock::now(), effects_);
      effects_pending_.store(true, std::memory_order_seq_cst);
    }
    if (options_.size > 1) progress_->alert_holder();
    const auto over = [this] { return closed_.load() || has_failed_.load(); };
    const auto finished = [&] { return over() || acknowledged_.load(); };
    // A batch that was decided may still run; stuck ones end by the operation's own time limit.
    progress_->until([&] { return over() || ended_.load(); },
                     Clock::now() + options_.operation_timeout + seconds(1));
    progress_->until(finished, Clock::now() + options_.operation_timeout + seconds(1));
    progress_->until(over, Clock::now() + kCloseGrace);
  }
  if (thread_.joinable()) {
    thread_.request_stop();
    progress_->stop();
    thread_.join();
  }
  if (acknowledged_.load()) closed_.store(true);
  {  // Another thread of the user may still drive: whoever holds the baton ends it.
    const std::lock_guard lock(mutex_);
    effects_.fatal = Error{.code = Code::Shutdown, .message = "Horovod has been shut down"};
    effects_pending_.store(true, std::memory_order_seq_cst);
  }
  if (options_.size > 1) progress_->alert_holder();
  progress_->until([this] { return has_failed_.load(); }, TimePoint::max());
  notifier_.stop();
  timeline_.stop();
  if (log_.on(LogLevel::Info)) {
    for (const auto& [path, count] : dispatcher_->paths()) {
      log_.write(LogLevel::Info, "data path " + path + ": " + std::to_string(count.operations) +
                                     " batches, " + std::to_string(count.bytes) + " bytes");
    }
  }
}

void Engine::start_timeline(const std::string& path, bool mark_cycles) {
  if (!in_child()) timeline_.start(path, mark_cycles);
}

void Engine::stop_timeline() {
  if (!in_child()) timeline_.stop();
}

std::map<std::string, PathCount, std::less<>> Engine::paths() const {
  return dispatcher_ ? dispatcher_->paths() : decltype(dispatcher_->paths()){};
}

}  // namespace rueda
