/// The engine as Python calls it: addresses and tuples in, objects and exceptions out. No logic of
/// its own. Part of module.cpp, and included nowhere else.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <list>
#include <thread>
#include <unordered_map>

#include "bindings/capi.h"
#include "bindings/foreign.h"
#include "bindings/kept.h"
#include "bindings/options.h"
#include "bindings/submission_reader.h"
#include "bindings/thread_end.h"
#include "bindings/translation.h"
#include "engine/engine.h"

namespace farandole::bindings {

namespace nb = nanobind;

/// Python sees signals at least this often while it waits.
constexpr auto kSignalSlice = std::chrono::milliseconds(100);
/// Threads that wait longer may be in a deadlock. Shorter waits cost nothing more.
constexpr auto kLong = std::chrono::seconds(1);
/// How long a look whether calls have come back sleeps.
constexpr auto kComingBack = std::chrono::milliseconds(1);

/// The engine of this process.
class Engine {
  /// A call under way. It finds the engine, or raises what the engine's end means; and lets it go
  /// if release() has come meanwhile. With the interpreter lock, as everything that counts calls.
  class Call {
   public:
    explicit Call(Engine& engine) : engine_(engine) {
      if (engine.engine_ == nullptr || engine.released_) raise(ended_error(), engine.hosts_);
      ++engine.calls_;
    }
    ~Call() {
      // Counted until the engine is gone: release() waits for that.
      if (engine_.calls_ == 1 && engine_.released_ && engine_.engine_ != nullptr) engine_.let_go();
      --engine_.calls_;
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    Engine& engine_;
  };

 public:
  explicit Engine(const nb::dict& settings) : Engine(options_from(settings)) {}

  /// In a forked child the engine is left alone for ever: its threads and the shared segments that
  /// its parts would look at when they end exist only in the parent.
  ~Engine() {
    if (engine_ == nullptr) return;
    if (engine_->in_child()) {
      kept_.give_up();
      static_cast<void>(engine_.release());
      return;
    }
    let_go();
  }
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  void own_segment(int memfd, int engine_bell, int waiter_bell) {
    farandole::Fd engine_fd(engine_bell);
    farandole::Fd waiter_fd(waiter_bell);
    const Call call(*this);
    engine_->peers().own_segment(map(memfd), std::move(engine_fd), std::move(waiter_fd));
  }

  void add_local_peer(farandole::Rank rank, int memfd, int engine_bell, int waiter_bell, int pidfd,
                      int liveness) {
    farandole::Fd engine_fd(engine_bell);
    farandole::Fd waiter_fd(waiter_bell);
    farandole::Fd pid(pidfd);
    farandole::Fd live(liveness);
    const Call call(*this);
    engine_->peers().add_local_peer(rank, map(memfd), std::move(engine_fd), std::move(waiter_fd),
                                    std::move(pid), std::move(live));
  }

  void add_network_peer(farandole::Rank rank, int control, const std::vector<int>& data,
                        int protection, const std::vector<nb::bytes>& keys) {
    farandole::Fd control_fd(control);
    std::vector<farandole::Fd> streams(data.begin(), data.end());
    auto seals = to_seal_keys(protection, keys, 1 + data.size());
    const Call call(*this);
    engine_->peers().add_network_peer(rank, std::move(control_fd), std::move(streams),
                                      std::move(seals));
  }

  void add_absent_peer(farandole::Rank rank, int streams) {
    const Call call(*this);
    engine_->peers().add_absent_peer(rank, streams);
  }

  int wanted_bell() {
    const Call call(*this);
    return engine_->wanted_bell();
  }

  std::vector<farandole::Rank> wanted_connections() {
    const Call call(*this);
    return engine_->wanted_connections();
  }

  void add_connections(farandole::Rank rank, const std::vector<int>& data, int protection,
                       const std::vector<nb::bytes>& keys) {
    std::vector<farandole::Fd> streams(data.begin(), data.end());
    auto seals = to_seal_keys(protection, keys, data.size());
    const Call call(*this);
    engine_->bring({.rank = rank, .streams = std::move(streams), .keys = std::move(seals)});
  }

  void refuse_connections(farandole::Rank rank, std::string reason) {
    const Call call(*this);
    engine_->bring(
        {.rank = rank,
         .failure = farandole::Error{
             .code = farandole::Code::Backend, .message = std::move(reason), .peer = rank}});
  }

  void cover(int descriptor) {
    const Call call(*this);
    engine_->cover(descriptor);
  }

  void uncover(int descriptor) {
    const Call call(*this);
    engine_->uncover(descriptor);
  }

  void use_backend(const nb::object& type, std::string name) {
    const Call call(*this);
    engine_->use(farandole::bindings::python_backend(type, std::move(name)));
  }

  void watch_threads(nb::object only_these) { only_these_ = std::move(only_these); }

  void open() { without_gil(&farandole::Engine::open); }
  void start() { without_gil(&farandole::Engine::start); }

  /// The handle. In blocking mode the list of results, 0 if there is nothing to take, or the handle
  /// of results on devices: whoever takes them says in which streams.
  nb::object submit(int kind, nb::handle name, nb::handle tensors, int op, double prescale,
                    double postscale, int root, int process_set, int mode, nb::handle owners) {
    // May run code of Python that submits: before anything is read.
    if (kept_.abandoned()) [[unlikely]] {
      clear_abandoned();
    }
    // Keeps its memory from call to call.
    thread_local farandole::Submission submission;
    submission.kind = enumerator<Kind>("kind", kind, kKinds);
    read_name(name, submission.name);
    read_tensors(tensors, submission);
    submission.op = enumerator<ReduceOp>("op", op, kReduceOps);
    submission.prescale = prescale;
    submission.postscale = postscale;
    submission.root = root;
    submission.process_set = process_set;
    // The last one has a callback.
    submission.mode = enumerator<Mode>("mode", mode, static_cast<int>(Mode::Callback));
    submission.call = 0;
    if (submission.mode == Mode::Blocking) return run(submission, owners);
    return nb::steal(PyLong_FromLongLong(submit(submission, owners)));
  }
  farandole::Handle add_process_set(std::vector<farandole::Rank> ranks) {
    farandole::Submission addition{.kind = Kind::AddProcessSet, .ranks = std::move(ranks)};
    return submit(addition, nb::none());
  }
  farandole::Handle remove_process_set(std::int32_t process_set) {
    farandole::Submission removal{.kind = Kind::RemoveProcessSet, .root = process_set};
    return submit(removal, nb::none());
  }
  std::map<std::int32_t, std::vector<farandole::Rank>> process_sets() {
    const Call call(*this);
    return engine_->process_sets();
  }

  nb::object empty(int dtype, const nb::tuple& extents, bool shared) {
    const Call call(*this);
    farandole::Output made{
        .buffer = {}, .shape = to_shape(extents), .dtype = static_cast<DType>(dtype)};
    const std::size_t bytes = static_cast<std::size_t>(farandole::element_count(made.shape)) *
                              farandole::size_of(made.dtype);
    made.buffer = shared ? engine_->shared_memory(bytes) : engine_->memory(bytes);
    if (made.buffer.data() == nullptr) throw std::bad_alloc();
    return to_dlpack(made);
  }

  /// What the caller does from now on comes after the operation: in the stream, or at all.
  void follow(const farandole::Work& work, nb::handle stream_of) {
    for (const farandole::DeviceEnd& end : work.ends) {
      farandole::Result<void> ordered;
      if (stream_of.is_none() || end.on_host) {
        const Unlocked unlocked;
        ordered = end.point->wait();
      } else {
        const farandole::DeviceContext& device = end.device->context();
        const nb::object stream = stream_of(device.index());
        if (stream.is_none()) continue;  // its own has been made to wait already
        ordered =
            end.point->precede(reinterpret_cast<void*>(nb::cast<std::uintptr_t>(stream)), device);
      }
      if (!ordered) raise(ordered.error(), hosts_);
    }
  }

  bool poll(farandole::Handle handle) {
    if (outlived_.contains(handle)) return true;
    const Call call(*this);
    std::optional<bool> done;
    {
      const Unlocked unlocked;
      done = engine_->poll(handle);
    }
    if (!done) throw nb::value_error(unknown(handle).c_str());
    return *done;
  }

  bool wait_for(farandole::Handle handle, double timeout_s) {
    if (outlived_.contains(handle)) return true;
    const Call call(*this);
    const auto deadline =
        farandole::Clock::now() + std::chrono::duration_cast<farandole::Clock::duration>(
                                      std::chrono::duration<double>(timeout_s));
    for (;;) {
      std::optional<bool> done;
      {
        const Unlocked unlocked;
        done = engine_->watch(handle, std::min(deadline, farandole::Clock::now() + kSignalSlice));
      }
      if (!done) throw nb::value_error(unknown(handle).c_str());
      if (*done || engine_->in_child() || farandole::Clock::now() >= deadline) return *done;
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
    }
  }

  /// `stream_of`: gives the stream of a device that what follows goes into; None: waits on the
  /// host.
  nb::object wait(farandole::Handle handle, nb::handle stream_of) {
    if (const auto outlived = outlived_.extract(handle)) raise(outlived.mapped(), hosts_);
    const Call call(*this);
    const auto work = finish(handle);
    if (!work) throw nb::value_error(unknown(handle).c_str());
    kept_.release(handle);
    if (work->error) raise(*work->error, hosts_);
    if (!work->ends.empty()) follow(*work, stream_of);
    if (work->value) return nb::int_(*work->value);
    nb::list outputs = results(*work);
    if (outputs.size() == 0) return nb::none();
    return outputs;
  }

  /// The tensors of which no rank has brought anything: their handle, and the place in its group.
  nb::list wait_all(const std::vector<farandole::Handle>& handles, nb::handle stream_of) {
    std::optional<farandole::Error> first;
    for (const farandole::Handle handle : handles) {
      const auto outlived = outlived_.extract(handle);
      if (outlived && !first) first = outlived.mapped();
    }
    if (first) raise(*first, hosts_);
    const Call call(*this);
    {
      const Unlocked unlocked;
      engine_->mark_all_waited();
    }
    // All end before any error is raised: the caller may let go of their memory then.
    std::optional<farandole::Handle> missing;
    nb::list absent;
    for (const farandole::Handle handle : handles) {
      const auto work = finish(handle);
      if (work) kept_.release(handle);
      if (!work && !missing) missing = handle;
      if (work && work->error && !first) first = work->error;
      if (work && !work->ends.empty()) follow(*work, stream_of);
      for (std::size_t i = 0; work && i < work->outputs.size(); ++i) {
        if (work->outputs[i].absent) absent.append(nb::make_tuple(handle, i));
      }
    }
    if (first) raise(*first, hosts_);
    if (missing) throw nb::value_error(unknown(*missing).c_str());
    return absent;
  }

  void shutdown(bool script_over, const std::string& failure) {
    using farandole::wire::Departure;
    Departure why{.reason = script_over ? Departure::Reason::ScriptOver : Departure::Reason::Asked};
    if (!failure.empty()) why = {.reason = Departure::Reason::Failed, .text = failure};
    if (engine_ == nullptr) return;
    const Call call(*this);
    {
      const Unlocked unlocked;
      engine_->shutdown(std::move(why));
    }
    if (!engine_->in_child()) settle(*engine_);
  }

  /// After shutdown(): nothing of the engine stays, whoever still refers to this object. What a
  /// call of another thread still uses goes with the last of these; new ones are refused. The old
  /// ones get `patience_s` to come back: when the interpreter ends they cannot any more, and the
  /// engine's threads would run on while the process is taken down.
  void release(double patience_s) {
    released_ = true;
    const auto until = farandole::Clock::now() + std::chrono::duration<double>(patience_s);
    const auto in_child = [this] { return engine_ != nullptr && engine_->in_child(); };
    while (calls_ > 0 && !in_child() && farandole::Clock::now() < until) {
      const Unlocked unlocked;
      std::this_thread::sleep_for(kComingBack);
    }
    if (calls_ == 0 && engine_ != nullptr && !engine_->in_child()) let_go();
  }

  nb::object failure() {
    const auto error = engine_ != nullptr ? engine_->failure() : failure_;
    return error ? to_exception(*error, hosts_) : nb::none();
  }

  void start_timeline(const std::string& path, bool mark_cycles) {
    const Call call(*this);
    const Unlocked unlocked;
    engine_->start_timeline(path, mark_cycles);
  }

  void stop_timeline() {
    const Call call(*this);
    const Unlocked unlocked;
    engine_->stop_timeline();
  }

  std::map<std::string, std::pair<std::uint64_t, std::uint64_t>> paths() {
    const Call call(*this);
    std::map<std::string, std::pair<std::uint64_t, std::uint64_t>> all;
    for (const auto& [path, count] : engine_->paths()) all[path] = {count.operations, count.bytes};
    return all;
  }

  /// Address of the table that framework glue is bound to; valid until release().
  std::uintptr_t capi() { return reinterpret_cast<std::uintptr_t>(farandole::capi_table()); }
  std::uintptr_t address() {
    const Call call(*this);
    return reinterpret_cast<std::uintptr_t>(engine_.get());
  }

 private:
  explicit Engine(farandole::EngineOptions options)
      : hosts_(options.hosts), engine_(std::make_unique<farandole::Engine>(std::move(options))) {}

  static farandole::Error ended_error() {
    return {.code = farandole::Code::Shutdown, .message = "Horovod has been shut down"};
  }

  /// What Python owns and the engine does not need any more.
  void settle(const farandole::Engine& engine) {
    if (engine.left_behind()) {
      kept_.give_up();
    } else {
      kept_.sweep();
    }
  }

  /// The end of the engine. Of operations that nobody has waited for the error stays, if they have
  /// one; a result does not.
  void let_go() {
    auto engine = std::move(engine_);
    {
      const Unlocked unlocked;  // it may have to wait, and callbacks may need the lock
      engine->shutdown();
    }
    settle(*engine);
    failure_ = engine->failure();
    for (const auto& work : engine->abandon_all()) {
      farandole::Error error = ended_error();
      error.message += " before anybody waited for " + work->name;
      outlived_.emplace(work->handle, work->error.value_or(std::move(error)));
    }
    const Unlocked unlocked;
    engine.reset();
  }

  static std::string unknown(farandole::Handle handle) {
    return "handle " + std::to_string(handle) + " was not created or has been consumed";
  }

  void without_gil(farandole::Result<void> (farandole::Engine::*step)()) {
    const Call call(*this);
    farandole::Result<void> done;
    {
      const Unlocked unlocked;
      done = (*engine_.*step)();
    }
    if (!done) raise(done.error(), hosts_);
  }

  farandole::ShmSegment map(int memfd) {
    farandole::Fd file(memfd);
    const auto local_size = static_cast<int>(engine_->peers().own_group().size());
    const std::size_t base = farandole::segment_base_bytes(local_size);
    const auto size = farandole::ShmSegment::size_of(file);
    if (!size) raise(size.error(), hosts_);
    // A limit on files may have cut channels off, and the base must be there.
    const std::size_t bytes = std::clamp(*size, base, farandole::segment_bytes(local_size));
    auto segment = farandole::ShmSegment::map(std::move(file), bytes, base);
    if (!segment) raise(segment.error(), hosts_);
    return std::move(*segment);
  }

  /// Parts the tensors of a group; what keeps the memory of all of them then.
  nb::object part(farandole::Submission& submission, nb::handle owners) {
    auto copies = separate_duplicates(submission, *engine_);
    if (!copies) raise(copies.error(), hosts_);
    if (copies->empty()) return nb::borrow(owners);
    struct Memory {
      std::vector<farandole::HostBuffer> copies;
      nb::object owners;
    };
    // One object that Python does not collect: a collection would run finalizers, which may submit
    // while the record of this thread is in use.
    return nb::capsule(new Memory{*std::move(copies), nb::borrow(owners)},
                       [](void* p) noexcept { delete static_cast<Memory*>(p); });
  }

  /// `given`: what keeps the memory of the tensors. Nothing of Python runs between the engine's
  /// answer and the entry among what is kept.
  farandole::Handle submit(farandole::Submission& submission, nb::handle given) {
    const Call call(*this);
    const nb::object owners = submission.grouped ? part(submission, given) : nb::borrow(given);
    const auto handle = engine_->submit(std::move(submission));
    if (!handle) raise(handle.error(), hosts_);
    kept_.keep(engine_->find(*handle), owners);
    return *handle;
  }

  nb::object run(farandole::Submission& submission, nb::handle given) {
    const Call call(*this);
    const nb::object owners = submission.grouped ? part(submission, given) : nb::borrow(given);
    farandole::Result<farandole::Handle> handle = farandole::Handle{0};
    {
      const Unlocked unlocked;
      handle = engine_->submit(std::move(submission));
    }
    if (!handle) raise(handle.error(), hosts_);
    return *handle == 0 ? nothing() : go_on(*handle, owners);
  }
  static nb::object nothing() { return nb::steal(PyLong_FromLong(0)); }

  /// The rest of a call that took longer than a moment, or has a result. If it is interrupted the
  /// operation goes on without it, and nobody will ask.
  nb::object go_on(farandole::Handle handle, nb::handle owners) {
    const auto work = engine_->find(handle);
    if (!work) return nothing();
    const bool over = work->done.load(std::memory_order_acquire) && !work->in_use;
    if (!over) kept_.keep(work, owners);
    try {
      if (!over && !await(handle)) return nothing();
      if (!work->error && work->ends_on_host()) follow(*work, nb::none());
      if (!work->error && work->has_result() && (work->value || !work->ends.empty())) {
        if (over) kept_.keep(work, owners);
        return nb::steal(PyLong_FromLongLong(handle));
      }
      static_cast<void>(engine_->take(handle));
      if (!over) kept_.release(handle);
      if (work->error) raise(*work->error, hosts_);
      nb::list outputs = results(*work);
      return outputs.size() == 0 ? nothing() : nb::object(std::move(outputs));
    } catch (const nb::python_error&) {
      if (engine_->find(handle)) kept_.abandon(handle);
      throw;
    }
  }

  /// What the engine has allocated for the tensors of an operation that is done.
  static nb::list results(farandole::Work& work) {
    nb::list outputs;
    for (farandole::Output& output : work.outputs) {
      if (output.buffer.data() == nullptr) continue;
      if (output.device != nullptr) {
        outputs.append(nb::cast(DeviceResult(std::move(output))));
      } else {
        outputs.append(to_dlpack(output));
      }
    }
    return outputs;
  }

  void clear_abandoned() {
    const Call call(*this);
    for (const farandole::Handle handle : kept_.take_abandoned()) {
      static_cast<void>(engine_->take(handle));
      kept_.release(handle);
    }
  }

  struct Awaited {
    std::shared_ptr<farandole::Work> work;
    unsigned long thread;
  };

  /// A thread within await().
  class Waiter {
   public:
    Waiter(Engine& engine, farandole::Handle handle) : engine_(engine) {
      auto work = engine.engine_->find(handle);
      if (!work) return;
      at_ = engine.awaited_.insert(
          engine.awaited_.end(), {.work = std::move(work), .thread = PyThread_get_thread_ident()});
      entered_ = true;
    }
    ~Waiter() {
      if (!entered_) return;
      engine_.awaited_.erase(at_);
      engine_.engine_->stand_still(std::nullopt);
    }
    Waiter(const Waiter&) = delete;
    Waiter& operator=(const Waiter&) = delete;

    [[nodiscard]] bool for_long() const { return farandole::Clock::now() - since_ > kLong; }

   private:
    Engine& engine_;
    std::list<Awaited>::iterator at_;
    bool entered_ = false;
    const farandole::TimePoint since_ = farandole::Clock::now();
  };

  /// Waits without the interpreter lock, and lets Python see Ctrl-C meanwhile. False: unknown, or
  /// another thread was faster.
  bool await(farandole::Handle handle) {
    const Waiter waiter(*this, handle);
    for (;;) {
      std::optional<bool> done;
      {
        const Unlocked unlocked;
        done = engine_->wait(handle, farandole::Clock::now() + kSignalSlice);
      }
      if (!done || *done) return done.has_value();
      if (engine_->in_child()) {
        raise({.code = farandole::Code::Internal,
               .message = "this process was forked after init; handles belong to the parent"},
              hosts_);
      }
      try {
        if (PyErr_CheckSignals() != 0) throw nb::python_error();
        if (waiter.for_long()) engine_->stand_still(standstill());
      } catch (const nb::python_error&) {
        const Unlocked unlocked;
        engine_->leave(handle);
        throw;
      }
    }
  }

  /// The completions at the moment, if every thread of Python waits for an operation that is not
  /// done; threads of our package do not count.
  std::optional<std::uint64_t> standstill() {
    const std::uint64_t completions = engine_->completions();
    std::vector<unsigned long> threads;
    for (const Awaited& one : awaited_) {
      if (one.work->done.load(std::memory_order_acquire)) return std::nullopt;
      threads.push_back(one.thread);
    }
    if (!only_these_.is_valid() || !nb::cast<bool>(only_these_(threads))) return std::nullopt;
    return completions;
  }
  /// The same, and takes what the handle stands for; null: unknown.
  std::shared_ptr<farandole::Work> finish(farandole::Handle handle) {
    return await(handle) ? engine_->take(handle) : nullptr;
  }

  const std::vector<std::string> hosts_;
  farandole::bindings::KeptObjects kept_;  // ends after the engine
  std::unique_ptr<farandole::Engine>
      engine_;                  // null: it has ended, and this is all that is left of it
  int calls_ = 0;               // under way
  std::list<Awaited> awaited_;  // by threads within await()
  nb::object only_these_;
  bool released_ = false;
  std::unordered_map<farandole::Handle, farandole::Error>
      outlived_;  // of operations that nobody waited for
  std::optional<farandole::Error> failure_;
};

}  // namespace farandole::bindings
