/// The engine as Python calls it: addresses and tuples in, objects and exceptions out. No logic of
/// its own. Part of module.cpp, and included nowhere else.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <unordered_map>

#include "bindings/capi.h"
#include "bindings/duplicate_tensors.h"
#include "bindings/foreign.h"
#include "bindings/kept.h"
#include "bindings/options.h"
#include "bindings/translation.h"
#include "engine/engine.h"

namespace rueda::bindings {

namespace nb = nanobind;

/// Python sees signals at least this often while it waits.
constexpr auto kSignalSlice = std::chrono::milliseconds(100);

/// The engine of this process.
class Engine {
  /// A call under way. It finds the engine, or raises what the engine's end means; and lets it go
  /// if release() has come meanwhile. With the interpreter lock, as everything that counts calls.
  class Call {
   public:
    explicit Call(Engine& engine) : engine_(engine) {
      if (engine.engine_ == nullptr) raise(ended_error(), engine.hosts_);
      ++engine.calls_;
    }
    ~Call() {
      if (--engine_.calls_ == 0 && engine_.released_) engine_.let_go();
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
    rueda::Fd engine_fd(engine_bell);
    rueda::Fd waiter_fd(waiter_bell);
    const Call call(*this);
    engine_->peers().own_segment(map(memfd), std::move(engine_fd), std::move(waiter_fd));
  }

  void add_local_peer(rueda::Rank rank, int memfd, int engine_bell, int waiter_bell, int pidfd,
                      int liveness) {
    rueda::Fd engine_fd(engine_bell);
    rueda::Fd waiter_fd(waiter_bell);
    rueda::Fd pid(pidfd);
    rueda::Fd live(liveness);
    const Call call(*this);
    engine_->peers().add_local_peer(rank, map(memfd), std::move(engine_fd), std::move(waiter_fd),
                                    std::move(pid), std::move(live));
  }

  void add_network_peer(rueda::Rank rank, int control, const std::vector<int>& data, int protection,
                        const std::vector<nb::bytes>& keys) {
    std::vector<rueda::Fd> streams;
    rueda::Fd control_fd(control);
    for (const int fd : data) streams.emplace_back(fd);
    std::vector<rueda::SealKeys> seals;
    if (protection < 0 || protection > static_cast<int>(rueda::Protection::Full) ||
        keys.size() != (protection == 0 ? 0 : 1 + data.size())) {
      throw nb::value_error("protection needs keys for the control and each data connection");
    }
    for (const nb::bytes& key : keys) {
      rueda::SealKeys seal{.protection = static_cast<rueda::Protection>(protection)};
      if (key.size() != seal.sending.size() + seal.receiving.size()) {
        throw nb::value_error("a key has the wrong length");
      }
      std::memcpy(seal.sending.data(), key.c_str(), seal.sending.size());
      std::memcpy(seal.receiving.data(), key.c_str() + seal.sending.size(), seal.receiving.size());
      seals.push_back(seal);
    }
    const Call call(*this);
    engine_->peers().add_network_peer(rank, std::move(control_fd), std::move(streams),
                                      std::move(seals));
  }

  void use_backend(const nb::object& type, std::string name) {
    const Call call(*this);
    engine_->use(rueda::bindings::python_backend(type, std::move(name)));
  }

  void open() { without_gil(&rueda::Engine::open); }
  void start() { without_gil(&rueda::Engine::start); }

  rueda::Handle submit(int kind, const std::optional<std::string>& name, std::uintptr_t data,
                       std::uintptr_t out, int dtype, const nb::tuple& shape, int op,
                       double prescale, double postscale, int root, int process_set, bool waited,
                       nb::handle owners) {
    rueda::Request request = describe(kind, name, op, prescale, postscale, process_set, waited);
    request.root = root;
    request.tensors.push_back(tensor(data, out, dtype, to_shape(shape)));
    return submit(std::move(request), owners);
  }

  /// Submits and waits, with as little as possible in between.
  void run(int kind, nb::handle name, std::uintptr_t data, std::uintptr_t out, int dtype,
           const nb::tuple& shape, int op, double prescale, double postscale, int root,
           int process_set, nb::handle owners) {
    rueda::Request& request = scratch(kind, name, op, prescale, postscale, process_set);
    request.root = root;
    request.tensors.resize(1);
    fill(request.tensors.front(), data, out, dtype, shape);
    run(request, owners);
  }

  void run_group(int kind, nb::handle name, const nb::list& data, const nb::list& out,
                 const nb::list& dtypes, const nb::list& shapes, int op, double prescale,
                 double postscale, int process_set, nb::handle owners) {
    rueda::Request& request = scratch(kind, name, op, prescale, postscale, process_set);
    const std::size_t count = check_group(data.size(), out.size(), dtypes.size(), shapes.size());
    request.grouped = true;
    request.tensors.resize(count);
    for (std::size_t i = 0; i < count; ++i) {
      fill(request.tensors[i], nb::cast<std::uintptr_t>(data[i]), nb::cast<std::uintptr_t>(out[i]),
           nb::cast<int>(dtypes[i]), nb::cast<nb::tuple>(shapes[i]));
    }
    const nb::object all = with_copies(request, owners);
    run(request, all);
  }

  rueda::Handle submit_alltoall(const std::optional<std::string>& name, std::uintptr_t data,
                                int dtype, const nb::tuple& shape, std::vector<std::int64_t> splits,
                                std::uintptr_t received, int process_set, bool waited,
                                nb::handle owners) {
    rueda::Request request =
        describe(static_cast<int>(Kind::Alltoall), name, static_cast<int>(ReduceOp::Sum), 1.0, 1.0,
                 process_set, waited);
    request.tensors.push_back(tensor(data, 0, dtype, to_shape(shape)));
    request.tensors.back().splits = std::move(splits);
    request.tensors.back().received = reinterpret_cast<std::int32_t*>(received);
    return submit(std::move(request), owners);
  }

  rueda::Handle submit_group(int kind, const std::optional<std::string>& name,
                             const std::vector<std::uintptr_t>& data,
                             const std::vector<std::uintptr_t>& out, const std::vector<int>& dtypes,
                             const nb::list& shapes, int op, double prescale, double postscale,
                             int process_set, bool waited, nb::handle owners) {
    check_group(data.size(), out.size(), dtypes.size(), shapes.size());
    rueda::Request request = describe(kind, name, op, prescale, postscale, process_set, waited);
    request.grouped = true;
    for (std::size_t i = 0; i < data.size(); ++i) {
      request.tensors.push_back(
          tensor(data[i], out[i], dtypes[i], to_shape(nb::cast<nb::tuple>(shapes[i]))));
    }
    const nb::object all = with_copies(request, owners);
    return submit(std::move(request), all);
  }

  rueda::Handle join() {
    const Call call(*this);
    return checked(engine_->join());
  }
  rueda::Handle add_process_set(std::vector<rueda::Rank> ranks) {
    const Call call(*this);
    return checked(engine_->add_process_set(std::move(ranks)));
  }
  rueda::Handle remove_process_set(std::int32_t process_set) {
    const Call call(*this);
    return checked(engine_->remove_process_set(process_set));
  }
  std::map<std::int32_t, std::vector<rueda::Rank>> process_sets() {
    const Call call(*this);
    return engine_->process_sets();
  }

  nb::object empty(int dtype, const nb::tuple& extents, bool shared) {
    const Call call(*this);
    rueda::Output made{
        .buffer = {}, .shape = to_shape(extents), .dtype = static_cast<DType>(dtype)};
    const std::size_t bytes =
        static_cast<std::size_t>(rueda::element_count(made.shape)) * rueda::size_of(made.dtype);
    made.buffer = shared ? engine_->shared_memory(bytes) : engine_->memory(bytes);
    if (made.buffer.data() == nullptr) throw std::bad_alloc();
    return to_dlpack(made);
  }

  bool poll(rueda::Handle handle) {
    if (outlived_.contains(handle)) return true;
    const Call call(*this);
    std::optional<bool> done;
    {
      const nb::gil_scoped_release release;
      done = engine_->poll(handle);
    }
    if (!done) throw nb::value_error(unknown(handle).c_str());
    return *done;
  }

  nb::object wait(rueda::Handle handle) {
    if (const auto outlived = outlived_.extract(handle)) raise(outlived.mapped(), hosts_);
    const Call call(*this);
    const auto work = finish(handle);
    if (!work) throw nb::value_error(unknown(handle).c_str());
    kept_.release(handle);
    if (work->error) raise(*work->error, hosts_);
    if (work->value) return nb::int_(*work->value);
    nb::list outputs;
    for (rueda::Output& output : work->outputs) {
      if (output.buffer.data() != nullptr) outputs.append(to_dlpack(output));
    }
    if (outputs.size() == 0) return nb::none();
    return outputs;
  }

  void wait_all(const std::vector<rueda::Handle>& handles) {
    std::optional<rueda::Error> first;
    for (const rueda::Handle handle : handles) {
      const auto outlived = outlived_.extract(handle);
      if (outlived && !first) first = outlived.mapped();
    }
    if (first) raise(*first, hosts_);
    const Call call(*this);
    {
      const nb::gil_scoped_release release;
      engine_->mark_all_waited();
    }
    // All end before any error is raised: the caller may let go of their memory then.
    std::optional<rueda::Handle> missing;
    for (const rueda::Handle handle : handles) {
      const auto work = finish(handle);
      if (work) kept_.release(handle);
      if (!work && !missing) missing = handle;
      if (work && work->error && !first) first = work->error;
    }
    if (first) raise(*first, hosts_);
    if (missing) throw nb::value_error(unknown(*missing).c_str());
  }

  void shutdown(bool script_over, const std::string& failure) {
    using rueda::wire::Departure;
    Departure why{.reason = script_over ? Departure::Reason::ScriptOver : Departure::Reason::Asked};
    if (!failure.empty()) why = {.reason = Departure::Reason::Failed, .text = failure};
    if (engine_ == nullptr) return;
    const Call call(*this);
    {
      const nb::gil_scoped_release release;
      engine_->shutdown(std::move(why));
    }
    if (!engine_->in_child()) settle(*engine_);
  }

  /// After shutdown(): nothing of the engine stays, whoever still refers to this object. What a
  /// call of another thread still uses goes with the last of these.
  void release() {
    released_ = true;
    if (calls_ == 0 && engine_ != nullptr && !engine_->in_child()) let_go();
  }

  nb::object failure() {
    const auto error = engine_ != nullptr ? engine_->failure() : failure_;
    return error ? to_exception(*error, hosts_) : nb::none();
  }

  void start_timeline(const std::string& path, bool mark_cycles) {
    const Call call(*this);
    const nb::gil_scoped_release release;
    engine_->start_timeline(path, mark_cycles);
  }

  void stop_timeline() {
    const Call call(*this);
    const nb::gil_scoped_release release;
    engine_->stop_timeline();
  }

  std::map<std::string, std::pair<std::uint64_t, std::uint64_t>> paths() {
    const Call call(*this);
    std::map<std::string, std::pair<std::uint64_t, std::uint64_t>> all;
    for (const auto& [path, count] : engine_->paths()) all[path] = {count.operations, count.bytes};
    return all;
  }

  /// Address of the table that framework glue is bound to; valid until release().
  std::uintptr_t capi() { return reinterpret_cast<std::uintptr_t>(rueda::capi_table()); }
  std::uintptr_t address() {
    const Call call(*this);
    return reinterpret_cast<std::uintptr_t>(engine_.get());
  }

 private:
  explicit Engine(rueda::EngineOptions options)
      : hosts_(options.hosts), engine_(std::make_unique<rueda::Engine>(std::move(options))) {}

  static rueda::Error ended_error() {
    return {.code = rueda::Code::Shutdown, .message = "Horovod has been shut down"};
  }

  /// What Python owns and the engine does not need any more.
  void settle(const rueda::Engine& engine) {
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
      const nb::gil_scoped_release release;  // it may have to wait, and callbacks may need the lock
      engine->shutdown();
    }
    settle(*engine);
    failure_ = engine->failure();
    for (const auto& work : engine->abandon_all()) {
      rueda::Error error = ended_error();
      error.message += " before anybody waited for " + work->name;
      outlived_.emplace(work->handle, work->error.value_or(std::move(error)));
    }
    const nb::gil_scoped_release release;
    engine.reset();
  }

  static std::string unknown(rueda::Handle handle) {
    return "handle " + std::to_string(handle) + " was not created or has been consumed";
  }

  void without_gil(rueda::Result<void> (rueda::Engine::*step)()) {
    const Call call(*this);
    rueda::Result<void> done;
    {
      const nb::gil_scoped_release release;
      done = (*engine_.*step)();
    }
    if (!done) raise(done.error(), hosts_);
  }

  rueda::ShmSegment map(int memfd) {
    rueda::Fd file(memfd);
    const auto local_size = static_cast<int>(engine_->peers().own_group().size());
    const std::size_t base = rueda::segment_base_bytes(local_size);
    const auto size = rueda::ShmSegment::size_of(file);
    if (!size) raise(size.error(), hosts_);
    // A limit on files may have cut channels off, and the base must be there.
    const std::size_t bytes = std::clamp(*size, base, rueda::segment_bytes(local_size));
    auto segment = rueda::ShmSegment::map(std::move(file), bytes, base);
    if (!segment) raise(segment.error(), hosts_);
    return std::move(*segment);
  }

  static std::size_t check_group(std::size_t data, std::size_t out, std::size_t dtypes,
                                 std::size_t shapes) {
    if (data == 0 || out != data || dtypes != data || shapes != data) {
      throw nb::value_error(
          "a group needs at least one tensor, and as many outputs, dtypes and shapes");
    }
    return data;
  }

  /// A request of this thread that keeps its memory from call to call.
  static rueda::Request& scratch(int kind, nb::handle name, int op, double prescale,
                                 double postscale, int process_set) {
    thread_local rueda::Request request;
    check_op(op);
    request.kind = static_cast<Kind>(kind);
    request.name.clear();
    if (!name.is_none()) {
      Py_ssize_t length = 0;
      const char* text = PyUnicode_AsUTF8AndSize(name.ptr(), &length);
      if (text == nullptr) throw nb::python_error();
      request.name.assign(text, static_cast<std::size_t>(length));
    }
    request.op = static_cast<ReduceOp>(op);
    request.prescale = prescale;
    request.postscale = postscale;
    request.process_set = process_set;
    request.root = 0;
    request.grouped = false;
    request.call = 0;
    return request;
  }

  static void fill(rueda::TensorRequest& tensor, std::uintptr_t data, std::uintptr_t out, int dtype,
                   const nb::tuple& shape) {
    check_dtype(dtype);
    tensor.dtype = static_cast<DType>(dtype);
    tensor.in = reinterpret_cast<const std::byte*>(data);
    tensor.out = reinterpret_cast<std::byte*>(out);
    tensor.shape.clear();
    for (nb::handle extent : shape) tensor.shape.push_back(nb::cast<std::int64_t>(extent));
  }

  /// Parts the tensors of a group; what keeps the memory of all of them then.
  nb::object with_copies(rueda::Request& request, nb::handle owners) {
    const Call call(*this);
    auto copies = separate_duplicates(request, *engine_);
    if (!copies) raise(copies.error(), hosts_);
    if (copies->empty()) return nb::borrow(owners);
    using Copies = std::vector<rueda::HostBuffer>;
    nb::capsule capsule(new Copies(*std::move(copies)),
                        [](void* p) noexcept { delete static_cast<Copies*>(p); });
    return nb::make_tuple(owners, capsule);
  }

  /// `owners`: what keeps the memory of `request`; as an argument of the caller, until it returns.
  void run(rueda::Request& request, nb::handle owners) {
    const Call call(*this);
    if (kept_.abandoned()) [[unlikely]] {
      clear_abandoned();
    }
    rueda::Result<rueda::Handle> handle = rueda::Handle{0};
    {
      const nb::gil_scoped_release release;
      handle = engine_->run(request);
    }
    if (!handle) raise(handle.error(), hosts_);
    if (*handle != 0) [[unlikely]] {
      go_on(*handle, owners);
    }
  }

  /// The rest of a call that took longer than a moment. If it is interrupted the operation goes on
  /// without it, and nobody will ask.
  void go_on(rueda::Handle handle, nb::handle owners) {
    kept_.keep(engine_->find(handle), owners);
    try {
      const auto work = finish(handle);
      kept_.release(handle);
      if (work && work->error) raise(*work->error, hosts_);
    } catch (const nb::python_error&) {
      if (engine_->find(handle)) kept_.abandon(handle);
      throw;
    }
  }

  void clear_abandoned() {
    for (const rueda::Handle handle : kept_.take_abandoned()) {
      static_cast<void>(engine_->take(handle));
      kept_.release(handle);
    }
  }

  /// Numbers of the caller become enumerators here; beyond this line they are known to be in range.
  static void check_op(int op) {
    if (op < 0 || op > static_cast<int>(ReduceOp::Product)) {
      throw nb::value_error(("unknown reduction operator " + std::to_string(op)).c_str());
    }
  }
  static void check_dtype(int dtype) {
    if (dtype < 0 || dtype >= static_cast<int>(rueda::kDTypes)) {
      throw nb::value_error(("unknown dtype code " + std::to_string(dtype)).c_str());
    }
  }

  static rueda::Request describe(int kind, const std::optional<std::string>& name, int op,
                                 double prescale, double postscale, int process_set, bool waited) {
    check_op(op);
    rueda::Request request;
    request.kind = static_cast<Kind>(kind);
    if (name) request.name = *name;
    request.op = static_cast<ReduceOp>(op);
    request.prescale = prescale;
    request.postscale = postscale;
    request.process_set = process_set;
    request.waited = waited;
    return request;
  }

  static rueda::TensorRequest tensor(std::uintptr_t data, std::uintptr_t out, int dtype,
                                     rueda::Shape shape) {
    check_dtype(dtype);
    return {.dtype = static_cast<DType>(dtype),
            .shape = std::move(shape),
            .in = reinterpret_cast<const std::byte*>(data),
            .out = reinterpret_cast<std::byte*>(out)};
  }

  /// Nothing of Python runs between the engine's answer and the entry among what is kept.
  rueda::Handle submit(rueda::Request request, nb::handle owners) {
    const Call call(*this);
    if (kept_.abandoned()) [[unlikely]] {
      clear_abandoned();
    }
    const rueda::Handle handle = checked(engine_->submit(std::move(request)));
    kept_.keep(engine_->find(handle), owners);
    return handle;
  }
  rueda::Handle checked(rueda::Result<rueda::Handle> handle) {
    if (!handle) raise(handle.error(), hosts_);
    return *handle;
  }

  /// Waits without the interpreter lock, and lets Python see Ctrl-C meanwhile. Null: unknown, or
  /// another thread was faster.
  std::shared_ptr<rueda::Work> finish(rueda::Handle handle) {
    for (;;) {
      std::optional<bool> done;
      {
        const nb::gil_scoped_release release;
        done = engine_->wait(handle, rueda::Clock::now() + kSignalSlice);
      }
      if (!done) return nullptr;
      if (*done) return engine_->take(handle);
      if (engine_->in_child()) {
        raise({.code = rueda::Code::Internal,
               .message = "this process was forked after init; handles belong to the parent"},
              hosts_);
      }
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
    }
  }

  const std::vector<std::string> hosts_;
  rueda::bindings::KeptObjects kept_;      // ends after the engine
  std::unique_ptr<rueda::Engine> engine_;  // null: it has ended, and this is all that is left of it
  int calls_ = 0;                          // under way
  bool released_ = false;
  std::unordered_map<rueda::Handle, rueda::Error>
      outlived_;  // of operations that nobody waited for
  std::optional<rueda::Error> failure_;
};

}  // namespace rueda::bindings
