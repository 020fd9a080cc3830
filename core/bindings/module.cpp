/// The native module horovod._core: the engine as Python sees it. No logic of its own.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings/capi.h"
#include "bindings/foreign.h"
#include "bindings/options.h"
#include "engine/engine.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using rueda::DType;
using rueda::Kind;
using rueda::ReduceOp;
using rueda::bindings::Options;

/// Python sees signals at least this often while it waits.
constexpr auto kSignalSlice = std::chrono::milliseconds(100);

/// The one border where an error of the core becomes an exception.
[[noreturn]] void raise(const rueda::Error& error, const rueda::Peers* peers) {
  std::string host;
  if (peers != nullptr && error.peer >= 0 &&
      static_cast<std::size_t>(error.peer) < peers->hosts().size()) {
    host = peers->hosts()[static_cast<std::size_t>(error.peer)];
  }
  const std::string_view code = rueda::name_of(error.code);
  nb::object exception =
      nb::module_::import_("horovod.errors")
          .attr("from_core")(nb::str(code.data(), code.size()), error.what(), error.peer,
                             error.tensor, error.missing, error.waited_s, host);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
  throw nb::python_error();
}

rueda::Shape to_shape(const nb::tuple& extents) {
  rueda::Shape shape;
  shape.reserve(extents.size());
  for (nb::handle extent : extents) shape.push_back(nb::cast<std::int64_t>(extent));
  return shape;
}

nb::dlpack::dtype dlpack_dtype(DType dtype) {
  const auto bits = static_cast<std::uint8_t>(8 * rueda::size_of(dtype));
  const auto of = [bits](nb::dlpack::dtype_code code) {
    return nb::dlpack::dtype{static_cast<std::uint8_t>(code), bits, 1};
  };
  switch (dtype) {
    case DType::UInt8:
    case DType::UInt16:
      return of(nb::dlpack::dtype_code::UInt);
    case DType::Int8:
    case DType::Int16:
    case DType::Int32:
    case DType::Int64:
      return of(nb::dlpack::dtype_code::Int);
    case DType::Float16:
    case DType::Float32:
    case DType::Float64:
      return of(nb::dlpack::dtype_code::Float);
    case DType::BFloat16:
      return of(nb::dlpack::dtype_code::Bfloat);
    case DType::Bool:
      return of(nb::dlpack::dtype_code::Bool);
  }
  return {};
}

/// Hands a result over: whoever takes the capsule owns the memory, also beyond the engine's end.
nb::object to_dlpack(rueda::Output& output) {
  auto* buffer = new rueda::HostBuffer(std::move(output.buffer));
  nb::capsule owner(buffer, [](void* p) noexcept { delete static_cast<rueda::HostBuffer*>(p); });
  const std::vector<std::size_t> shape(output.shape.begin(), output.shape.end());
  const nb::ndarray<> array(buffer->data(), shape.size(), shape.data(), owner, nullptr,
                            dlpack_dtype(output.dtype), nb::device::cpu::value, 0, 'C');
  return nb::cast(array, nb::rv_policy::reference);
}

/// The engine of this process.
class Engine {
 public:
  explicit Engine(const Options& options)
      : engine_(std::make_unique<rueda::Engine>(options.resolve())) {
    engine_->peers().set_direct_copies(options.direct_copies);
    local_size_ = 1;
    for (const auto& group : options.groups) {
      for (const rueda::Rank rank : group) {
        if (rank == options.rank) local_size_ = static_cast<int>(group.size());
      }
    }
  }

  /// In a forked child the engine is left alone for ever: its threads and the shared segments that
  /// its parts would look at when they end exist only in the parent.
  ~Engine() {
    if (engine_->in_child()) {
      static_cast<void>(engine_.release());
      return;
    }
    const nb::gil_scoped_release release;  // it may have to wait, and callbacks may need the lock
    engine_.reset();
  }
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  void own_segment(int memfd, int engine_bell, int waiter_bell) {
    rueda::Fd engine_fd(engine_bell);
    rueda::Fd waiter_fd(waiter_bell);
    engine_->peers().own_segment(map(memfd), std::move(engine_fd), std::move(waiter_fd));
  }

  void add_local_peer(rueda::Rank rank, int memfd, int engine_bell, int waiter_bell, int pidfd,
                      int liveness) {
    rueda::Fd engine_fd(engine_bell);
    rueda::Fd waiter_fd(waiter_bell);
    rueda::Fd pid(pidfd);
    rueda::Fd live(liveness);
    engine_->peers().add_local_peer(rank, map(memfd), std::move(engine_fd), std::move(waiter_fd),
                                    std::move(pid), std::move(live));
  }

  void add_network_peer(rueda::Rank rank, int control, const std::vector<int>& data) {
    std::vector<rueda::Fd> streams;
    for (const int fd : data) streams.emplace_back(fd);
    engine_->peers().add_network_peer(rank, rueda::Fd(control), std::move(streams));
  }

  void use_backend(const nb::object& type, std::string name) {
    engine_->use(rueda::bindings::python_backend(type, std::move(name)));
  }

  void start() {
    rueda::Result<void> started;
    {
      const nb::gil_scoped_release release;
      started = engine_->start();
    }
    if (!started) raise(started.error(), &engine_->peers());
  }

  rueda::Handle submit(int kind, const std::optional<std::string>& name, std::uintptr_t data,
                       std::uintptr_t out, int dtype, const nb::tuple& shape, int op,
                       double prescale, double postscale, int root, int process_set, bool waited) {
    rueda::Request request = describe(kind, name, op, prescale, postscale, process_set, waited);
    request.root = root;
    request.tensors.push_back(tensor(data, out, dtype, to_shape(shape)));
    return submit(std::move(request));
  }

  /// Submits and waits for a moment, with as little as possible in between.
  rueda::Handle run(int kind, nb::handle name, std::uintptr_t data, std::uintptr_t out, int dtype,
                    const nb::tuple& shape, int op, double prescale, double postscale, int root,
                    int process_set) {
    rueda::Request& request = scratch(kind, name, op, prescale, postscale, process_set);
    request.root = root;
    request.tensors.resize(1);
    fill(request.tensors.front(), data, out, dtype, shape);
    return run(request);
  }

  rueda::Handle run_group(int kind, nb::handle name, const nb::list& data, const nb::list& out,
                          const nb::list& dtypes, const nb::list& shapes, int op, double prescale,
                          double postscale, int process_set) {
    rueda::Request& request = scratch(kind, name, op, prescale, postscale, process_set);
    const std::size_t count = check_group(data.size(), out.size(), dtypes.size(), shapes.size());
    request.grouped = true;
    request.tensors.resize(count);
    for (std::size_t i = 0; i < count; ++i) {
      fill(request.tensors[i], nb::cast<std::uintptr_t>(data[i]), nb::cast<std::uintptr_t>(out[i]),
           nb::cast<int>(dtypes[i]), nb::cast<nb::tuple>(shapes[i]));
    }
    return run(request);
  }

  rueda::Handle submit_alltoall(const std::optional<std::string>& name, std::uintptr_t data,
                                int dtype, const nb::tuple& shape, std::vector<std::int64_t> splits,
                                std::uintptr_t received, int process_set, bool waited) {
    rueda::Request request =
        describe(static_cast<int>(Kind::Alltoall), name, static_cast<int>(ReduceOp::Sum), 1.0, 1.0,
                 process_set, waited);
    request.tensors.push_back(tensor(data, 0, dtype, to_shape(shape)));
    request.tensors.back().splits = std::move(splits);
    request.tensors.back().received = reinterpret_cast<std::int32_t*>(received);
    return submit(std::move(request));
  }

  rueda::Handle submit_group(int kind, const std::optional<std::string>& name,
                             const std::vector<std::uintptr_t>& data,
                             const std::vector<std::uintptr_t>& out, const std::vector<int>& dtypes,
                             const nb::list& shapes, int op, double prescale, double postscale,
                             int process_set, bool waited) {
    check_group(data.size(), out.size(), dtypes.size(), shapes.size());
    rueda::Request request = describe(kind, name, op, prescale, postscale, process_set, waited);
    request.grouped = true;
    for (std::size_t i = 0; i < data.size(); ++i) {
      request.tensors.push_back(
          tensor(data[i], out[i], dtypes[i], to_shape(nb::cast<nb::tuple>(shapes[i]))));
    }
    return submit(std::move(request));
  }

  rueda::Handle join() { return checked(engine_->join()); }
  rueda::Handle add_process_set(std::vector<rueda::Rank> ranks) {
    return checked(engine_->add_process_set(std::move(ranks)));
  }
  rueda::Handle remove_process_set(std::int32_t process_set) {
    return checked(engine_->remove_process_set(process_set));
  }
  std::map<std::int32_t, std::vector<rueda::Rank>> process_sets() const {
    return engine_->process_sets();
  }

  nb::object empty(int dtype, const nb::tuple& extents, bool shared) {
    rueda::Output made{
        .buffer = {}, .shape = to_shape(extents), .dtype = static_cast<DType>(dtype)};
    const std::size_t bytes =
        static_cast<std::size_t>(rueda::element_count(made.shape)) * rueda::size_of(made.dtype);
    made.buffer = shared ? engine_->shared_memory(bytes) : engine_->memory(bytes);
    if (made.buffer.data() == nullptr) throw std::bad_alloc();
    return to_dlpack(made);
  }

  bool poll(rueda::Handle handle) {
    std::optional<bool> done;
    {
      const nb::gil_scoped_release release;
      done = engine_->poll(handle);
    }
    if (!done) throw nb::value_error(unknown(handle).c_str());
    return *done;
  }

  nb::object wait(rueda::Handle handle) {
    const auto work = finish(handle);
    if (!work) throw nb::value_error(unknown(handle).c_str());
    if (work->error) raise(*work->error, &engine_->peers());
    if (work->value) return nb::int_(*work->value);
    nb::list outputs;
    for (rueda::Output& output : work->outputs) {
      if (output.buffer.data() != nullptr) outputs.append(to_dlpack(output));
    }
    if (outputs.size() == 0) return nb::none();
    return outputs;
  }

  void wait_all(const std::vector<rueda::Handle>& handles) {
    {
      const nb::gil_scoped_release release;
      engine_->want_all();
    }
    // All end before any error is raised: the caller may let go of their memory then.
    std::optional<rueda::Error> first;
    std::optional<rueda::Handle> missing;
    for (const rueda::Handle handle : handles) {
      const auto work = finish(handle);
      if (!work && !missing) missing = handle;
      if (work && work->error && !first) first = work->error;
    }
    if (first) raise(*first, &engine_->peers());
    if (missing) throw nb::value_error(unknown(*missing).c_str());
  }

  void abandon() { engine_->abandon_all(); }

  void shutdown() {
    const nb::gil_scoped_release release;
    engine_->shutdown();
  }

  void start_timeline(const std::string& path, bool mark_cycles) {
    const nb::gil_scoped_release release;
    engine_->start_timeline(path, mark_cycles);
  }

  void stop_timeline() {
    const nb::gil_scoped_release release;
    engine_->stop_timeline();
  }

  std::map<std::string, std::pair<std::uint64_t, std::uint64_t>> paths() const {
    std::map<std::string, std::pair<std::uint64_t, std::uint64_t>> all;
    for (const auto& [path, count] : engine_->paths()) all[path] = {count.operations, count.bytes};
    return all;
  }

  /// Address of the table that framework glue is bound to; valid as long as the engine.
  std::uintptr_t capi() { return reinterpret_cast<std::uintptr_t>(rueda::capi_table()); }
  std::uintptr_t address() { return reinterpret_cast<std::uintptr_t>(engine_.get()); }

 private:
  static std::string unknown(rueda::Handle handle) {
    return "handle " + std::to_string(handle) + " was not created or has been consumed";
  }

  rueda::ShmSegment map(int memfd) {
    auto segment = rueda::ShmSegment::map(rueda::Fd(memfd), rueda::segment_bytes(local_size_),
                                          rueda::segment_base_bytes(local_size_));
    if (!segment) raise(segment.error(), &engine_->peers());
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

  rueda::Handle run(rueda::Request& request) {
    rueda::Result<rueda::Handle> handle = rueda::Handle{0};
    {
      const nb::gil_scoped_release release;
      handle = engine_->run(request);
    }
    return checked(std::move(handle));
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

  rueda::Handle submit(rueda::Request request) {
    return checked(engine_->submit(std::move(request)));
  }
  rueda::Handle checked(rueda::Result<rueda::Handle> handle) {
    if (!handle) raise(handle.error(), &engine_->peers());
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
              nullptr);
      }
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
    }
  }

  std::unique_ptr<rueda::Engine> engine_;
  int local_size_ = 1;
};

}  // namespace

NB_MODULE(_core, module) {
  module.doc() = "The native engine: see horovod._runtime for the one instance of a process.";

  const std::pair<const char*, DType> dtypes[] = {
      {"UINT8", DType::UInt8},     {"INT8", DType::Int8},         {"UINT16", DType::UInt16},
      {"INT16", DType::Int16},     {"INT32", DType::Int32},       {"INT64", DType::Int64},
      {"FLOAT16", DType::Float16}, {"BFLOAT16", DType::BFloat16}, {"FLOAT32", DType::Float32},
      {"FLOAT64", DType::Float64}, {"BOOL", DType::Bool}};
  for (const auto& [name, value] : dtypes) module.attr(name) = static_cast<int>(value);
  const std::pair<const char*, ReduceOp> ops[] = {
      {"AVERAGE", ReduceOp::Average}, {"SUM", ReduceOp::Sum}, {"ADASUM", ReduceOp::Adasum},
      {"MIN", ReduceOp::Min},         {"MAX", ReduceOp::Max}, {"PRODUCT", ReduceOp::Product}};
  for (const auto& [name, value] : ops) module.attr(name) = static_cast<int>(value);
  const std::pair<const char*, Kind> kinds[] = {{"ALLREDUCE", Kind::Allreduce},
                                                {"ALLGATHER", Kind::Allgather},
                                                {"BROADCAST", Kind::Broadcast},
                                                {"ALLTOALL", Kind::Alltoall},
                                                {"REDUCESCATTER", Kind::Reducescatter},
                                                {"BARRIER", Kind::Barrier},
                                                {"JOIN", Kind::Join}};
  for (const auto& [name, value] : kinds) module.attr(name) = static_cast<int>(value);

  module.def("segment_bytes", &rueda::segment_file_bytes, "local_size"_a,
             "Bytes of the memfd that each rank of a transport group makes.");
  module.def(
      "segment_base_bytes", &rueda::segment_base_bytes, "local_size"_a,
      "How many of them need memory from the start; the rest is address space until a process "
      "set or a shared tensor uses it.");

  nb::class_<Options>(module, "EngineOptions", "How an engine is set up; times in seconds.")
      .def(nb::init<>())
      .def_rw("rank", &Options::rank)
      .def_rw("size", &Options::size)
      .def_rw("groups", &Options::groups,
              "Ranks that share memory: ascending in a group, groups by first rank.")
      .def_rw("hosts", &Options::hosts, "Host name by rank, for messages.")
      .def_rw("process_sets", &Options::process_sets,
              "Members of the process sets that exist from the start: numbered from 1 in this "
              "order.")
      .def_rw("fusion_threshold_bytes", &Options::fusion_threshold_bytes)
      .def_rw("batch_bytes", &Options::batch_bytes)
      .def_rw("cycle_time_s", &Options::cycle_time_s)
      .def_rw("stall_warning_s", &Options::stall_warning_s)
      .def_rw("stall_shutdown_s", &Options::stall_shutdown_s)
      .def_rw("operation_timeout_s", &Options::operation_timeout_s)
      .def_rw("heartbeat_warning_s", &Options::heartbeat_warning_s)
      .def_rw("heartbeat_timeout_s", &Options::heartbeat_timeout_s,
              "How long a rank may give no sign of life; 0: for ever.")
      .def_rw("disable_group_fusion", &Options::disable_group_fusion)
      .def_rw("direct_copies", &Options::direct_copies,
              "Ranks of a host read each other's memory, if the system allows it.")
      .def_rw("thread_affinity", &Options::thread_affinity)
      .def_rw("log_level", &Options::log_level)
      .def_rw("log_hide_time", &Options::log_hide_time)
      .def_rw("timeline", &Options::timeline,
              "File that rank 0 records a timeline into from the start; empty: none.")
      .def_rw("timeline_mark_cycles", &Options::timeline_mark_cycles);

  nb::class_<Engine>(module, "Engine",
                     "The engine of one rank. Descriptors given to it are its own.")
      .def(nb::init<const Options&>(), "options"_a)
      .def("own_segment", &Engine::own_segment, "memfd"_a, "engine_bell"_a, "waiter_bell"_a)
      .def("add_local_peer", &Engine::add_local_peer, "rank"_a, "memfd"_a, "engine_bell"_a,
           "waiter_bell"_a, "pidfd"_a, "liveness"_a)
      .def("add_network_peer", &Engine::add_network_peer, "rank"_a, "control"_a, "data"_a)
      .def("use_backend", &Engine::use_backend, "type"_a, "name"_a,
           nb::sig("def use_backend(self, type: object, name: str) -> None"),
           "All operations between ranks go by objects of that class of Python. Before start().")
      .def("start", &Engine::start)
      .def("submit",
           nb::overload_cast<int, const std::optional<std::string>&, std::uintptr_t, std::uintptr_t,
                             int, const nb::tuple&, int, double, double, int, int, bool>(
               &Engine::submit),
           "kind"_a, "name"_a.none(), "data"_a, "out"_a, "dtype"_a, "shape"_a, "op"_a, "prescale"_a,
           "postscale"_a, "root"_a, "process_set"_a, "waited"_a,
           nb::sig("def submit(self, kind: int, name: str | None, data: int, out: int, dtype: int, "
                   "shape: tuple[int, ...], op: int, prescale: float, postscale: float, root: int, "
                   "process_set: int, waited: bool) -> int"),
           "Submit one contiguous host tensor by address; out 0: the engine allocates. Returns the "
           "handle.")
      .def("run",
           nb::overload_cast<int, nb::handle, std::uintptr_t, std::uintptr_t, int, const nb::tuple&,
                             int, double, double, int, int>(&Engine::run),
           "kind"_a, "name"_a.none(), "data"_a, "out"_a, "dtype"_a, "shape"_a, "op"_a, "prescale"_a,
           "postscale"_a, "root"_a, "process_set"_a,
           nb::sig("def run(self, kind: int, name: str | None, data: int, out: int, dtype: int, "
                   "shape: tuple[int, ...], op: int, prescale: float, postscale: float, root: int, "
                   "process_set: int) -> int"),
           "Submit one tensor and wait for a moment. 0: done; else the handle to wait for, for "
           "instance because signals have to be looked at.")
      .def("run_group", &Engine::run_group, "kind"_a, "name"_a.none(), "data"_a, "out"_a,
           "dtypes"_a, "shapes"_a, "op"_a, "prescale"_a, "postscale"_a, "process_set"_a,
           nb::sig("def run_group(self, kind: int, name: str | None, data: list[int], out: "
                   "list[int], dtypes: list[int], shapes: list[tuple[int, ...]], op: int, "
                   "prescale: float, postscale: float, process_set: int) -> int"),
           "The same for several tensors that run together.")
      .def("submit_alltoall", &Engine::submit_alltoall, "name"_a.none(), "data"_a, "dtype"_a,
           "shape"_a,
           nb::sig("def submit_alltoall(self, name: str | None, data: int, dtype: int, shape: "
                   "tuple[int, ...], splits: Sequence[int], received: int, process_set: int, "
                   "waited: bool) -> int"),
           "splits"_a, "received"_a, "process_set"_a, "waited"_a,
           "Submit one tensor whose rows go to the members: splits[m] of them to member m, equally "
           "many if splits is empty. received: address of an int32 for every member, where the "
           "numbers of rows that came go; 0: not wanted. The engine allocates the output. Returns "
           "the handle.")
      .def("join", &Engine::join,
           "This rank has no more data. Returns the handle; its result is the rank that joined "
           "last.")
      .def("add_process_set", &Engine::add_process_set, "ranks"_a,
           "Collective over the world. Returns the handle; its result is the number of the new "
           "set.")
      .def("remove_process_set", &Engine::remove_process_set, "process_set"_a,
           "Collective over the world. Returns the handle; its result is the number of the set.")
      .def("process_sets", &Engine::process_sets,
           "Members of the process sets by number; 0 is the world.")
      .def("submit_group", &Engine::submit_group, "kind"_a, "name"_a.none(), "data"_a, "out"_a,
           "dtypes"_a, "shapes"_a, "op"_a, "prescale"_a, "postscale"_a, "process_set"_a, "waited"_a,
           nb::sig("def submit_group(self, kind: int, name: str | None, data: Sequence[int], "
                   "out: Sequence[int], dtypes: Sequence[int], shapes: list[tuple[int, ...]], "
                   "op: int, prescale: float, postscale: float, process_set: int, waited: bool) "
                   "-> int"),
           "Submit several tensors that run together, under one handle.")
      .def(
          "empty", &Engine::empty, "dtype"_a, "shape"_a, "shared"_a = false,
          nb::sig("def empty(self, dtype: int, shape: tuple[int, ...], shared: bool = False) -> "
                  "object"),
          "Recycled memory with any content (DLPack). shared: the ranks of this host reach it, and "
          "reduce what is in it where it lies. MemoryError if there is none.")
      .def("poll", &Engine::poll, "handle"_a, "Whether it is done. ValueError if unknown.")
      .def("wait", &Engine::wait, "handle"_a,
           nb::sig("def wait(self, handle: int) -> list[object] | int | None"),
           "Wait, consume the handle, return results that the engine allocated (DLPack), the "
           "number that the operation ends with (join, process sets), or None.")
      .def("wait_all", &Engine::wait_all, "handles"_a,
           "Wait for all and consume them; raises the first error.")
      .def("abandon", &Engine::abandon, "Forget all outstanding handles.")
      .def("shutdown", &Engine::shutdown, "End the world for all ranks; idempotent.")
      .def("start_timeline", &Engine::start_timeline, "path"_a, "mark_cycles"_a,
           "Begin a timeline in a new file (on rank 0; elsewhere nothing is written).")
      .def("stop_timeline", &Engine::stop_timeline, "End the timeline: its file is complete then.")
      .def("paths", &Engine::paths, "Data path -> (batches, bytes).")
      .def("capi", &Engine::capi, "Address of the table of C functions for framework glue.")
      .def("address", &Engine::address, "Address of the engine, for the functions of capi().");
}
