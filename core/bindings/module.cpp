/// The native module horovod._core: names and signatures of what is in it.

#include <nanobind/nanobind.h>

#include <string>
#include <utility>

#include "bindings/engine.h"
#include "bindings/host_describer.h"
#include "bindings/host_importer.h"
#include "bindings/submit_call.h"
#include "collectives/registry.h"

namespace nb = nanobind;
using namespace nb::literals;

using farandole::Device;
using farandole::DType;
using farandole::Kind;
using farandole::Mode;
using farandole::ReduceOp;
using farandole::bindings::DeviceResult;
using farandole::bindings::Engine;

namespace {

void add_constants(nb::module_& module) {
  const std::pair<const char*, DType> dtypes[] = {{"UINT8", DType::UInt8},
                                                  {"INT8", DType::Int8},
                                                  {"UINT16", DType::UInt16},
                                                  {"INT16", DType::Int16},
                                                  {"INT32", DType::Int32},
                                                  {"INT64", DType::Int64},
                                                  {"FLOAT16", DType::Float16},
                                                  {"BFLOAT16", DType::BFloat16},
                                                  {"FLOAT32", DType::Float32},
                                                  {"FLOAT64", DType::Float64},
                                                  {"BOOL", DType::Bool},
                                                  {"UINT32", DType::UInt32},
                                                  {"UINT64", DType::UInt64},
                                                  {"COMPLEX64", DType::Complex64},
                                                  {"COMPLEX128", DType::Complex128},
                                                  {"FLOAT8_E4M3FN", DType::Float8E4M3FN},
                                                  {"FLOAT8_E5M2", DType::Float8E5M2},
                                                  {"FLOAT8_E4M3FNUZ", DType::Float8E4M3FNUZ},
                                                  {"FLOAT8_E5M2FNUZ", DType::Float8E5M2FNUZ}};
  for (const auto& [name, value] : dtypes) module.attr(name) = static_cast<int>(value);
  const std::pair<const char*, ReduceOp> ops[] = {
      {"AVERAGE", ReduceOp::Average}, {"SUM", ReduceOp::Sum}, {"ADASUM", ReduceOp::Adasum},
      {"MIN", ReduceOp::Min},         {"MAX", ReduceOp::Max}, {"PRODUCT", ReduceOp::Product}};
  for (const auto& [name, value] : ops) module.attr(name) = static_cast<int>(value);
  const std::pair<const char*, Mode> modes[] = {{"ASYNCHRONOUS", Mode::Asynchronous},
                                                {"AWAITED", Mode::Awaited},
                                                {"BLOCKING", Mode::Blocking}};
  for (const auto& [name, value] : modes) module.attr(name) = static_cast<int>(value);
  const std::pair<const char*, Device> devices[] = {
      {"HOST", Device::Host}, {"CUDA", Device::Cuda}, {"XPU", Device::Xpu}, {"MPS", Device::Mps}};
  for (const auto& [name, value] : devices) module.attr(name) = static_cast<int>(value);
  for (std::uint8_t number = 0; number < farandole::kKinds; ++number) {
    const auto kind = static_cast<Kind>(number);
    // Users ask for these by an op, and by methods.
    if (kind == Kind::Adasum || farandole::is_set_change(kind)) continue;
    module.attr(std::string(farandole::rules_of(kind).name).c_str()) = static_cast<int>(number);
  }
}

void add_functions(nb::module_& module) {
  module.def("segment_bytes", &farandole::segment_file_bytes, "local_size"_a,
             "Bytes of the memfd that each rank of a transport group makes, if no limit is lower.");
  module.def(
      "segment_base_bytes", &farandole::segment_base_bytes, "local_size"_a,
      "How many of them need memory from the start; the rest is address space until a process "
      "set or a shared tensor uses it.");

  module.def(
      "missing_cipher", [] { return std::string(farandole::seal_missing()); },
      "What of OpenSSL this process does not have, so that it cannot protect connections; '' if it "
      "can.");
}

void add_set_up(nb::class_<Engine>& engine) {
  engine
      .def(
          nb::init<const nb::dict&>(), "settings"_a,
          nb::sig("def __init__(self, settings: dict[str, object]) -> None"),
          "Every setting of the engine by its name, times in seconds; ValueError if one is missing "
          "or unknown.")
      .def("own_segment", &Engine::own_segment, "memfd"_a, "engine_bell"_a, "waiter_bell"_a)
      .def("add_local_peer", &Engine::add_local_peer, "rank"_a, "memfd"_a, "engine_bell"_a,
           "waiter_bell"_a, "pidfd"_a, "liveness"_a)
      .def("add_network_peer", &Engine::add_network_peer, "rank"_a, "control"_a, "data"_a,
           "protection"_a = 0, "keys"_a = std::vector<nb::bytes>())
      .def("add_absent_peer", &Engine::add_absent_peer, "rank"_a, "streams"_a,
           "A rank whose data connections are made when an operation needs them.")
      .def("use_backend", &Engine::use_backend, "type"_a, "name"_a,
           nb::sig("def use_backend(self, type: object, name: str) -> None"),
           "All operations between ranks go by objects of that class of Python. Before start().")
      .def("watch_threads", &Engine::watch_threads, "only_these"_a,
           nb::sig("def watch_threads(self, only_these: Callable[[list[int]], bool]) -> None"),
           "only_these(threads): these threads wait for operations; whether no other thread could "
           "submit "
           "any. Without it nobody knows, and a deadlock takes long to be proven.")
      .def("open", &Engine::open,
           "Take the memory that it needs, without a word to other ranks; start() does it "
           "otherwise.")
      .def("start", &Engine::start);
}

void add_late_connections(nb::class_<Engine>& engine) {
  engine
      .def("wanted_bell", &Engine::wanted_bell,
           "A descriptor that is readable while connections to absent peers are wanted; -1 if none "
           "are absent. After open().")
      .def("wanted_connections", &Engine::wanted_connections,
           "The absent peers that operations have asked for since the last call.")
      .def("add_connections", &Engine::add_connections, "rank"_a, "data"_a, "protection"_a = 0,
           "keys"_a = std::vector<nb::bytes>(), "All data connections to an absent peer.")
      .def("refuse_connections", &Engine::refuse_connections, "rank"_a, "reason"_a,
           "There will be none: operations that need them fail for that reason.")
      .def("cover", &Engine::cover, "descriptor"_a,
           "In a forked child it becomes /dev/null, until uncover().")
      .def("uncover", &Engine::uncover, "descriptor"_a, "Before it is closed.");
}

void add_submissions(nb::class_<Engine>& engine) {
  farandole::bindings::add_submit(engine);
  engine
      .def("add_process_set", &Engine::add_process_set, "ranks"_a,
           "Collective over the world. Returns the handle; its result is the number of the new "
           "set.")
      .def("remove_process_set", &Engine::remove_process_set, "process_set"_a,
           "Collective over the world. Returns the handle; its result is the number of the set.")
      .def("process_sets", &Engine::process_sets,
           "Members of the process sets by number; 0 is the world.");
}

void add_results(nb::class_<Engine>& engine) {
  engine
      .def(
          "empty", &Engine::empty, "dtype"_a, "shape"_a, "shared"_a = false,
          nb::sig("def empty(self, dtype: int, shape: tuple[int, ...], shared: bool = False) -> "
                  "object"),
          "Recycled memory with any content (DLPack). shared: the ranks of this host reach it, and "
          "reduce what is in it where it lies. MemoryError if there is none.")
      .def("poll", &Engine::poll, "handle"_a, "Whether it is done. ValueError if unknown.")
      .def("wait_for", &Engine::wait_for, "handle"_a, "timeout_s"_a,
           "Whether wait() would return at once, after `timeout_s` seconds at most. ValueError if "
           "unknown.")
      .def("wait", &Engine::wait, "handle"_a, "stream_of"_a = nb::none(),
           nb::sig("def wait(self, handle: int, stream_of: Callable[[int], int | None] | None = "
                   "None) -> list[object] | int | None"),
           "Wait, consume the handle, return results that the engine allocated (DLPack, or "
           "DeviceResult), the number that the operation ends with (join, process sets), or None. "
           "Of tensors on a device: what is put from now on into stream_of(number of the device) "
           "comes after the operation (where that is None: into the stream that the tensor named); "
           "without stream_of it is over there, too.")
      .def(
          "wait_all", &Engine::wait_all, "handles"_a, "stream_of"_a = nb::none(),
          nb::sig("def wait_all(self, handles: list[int], stream_of: Callable[[int], int | None] "
                  "| None = None) -> list[tuple[int, int]]"),
          "Wait for all and consume them; raises the first error. Returns the tensors that no rank "
          "has brought anything of: handle and place in the group.");
}

void add_end(nb::class_<Engine>& engine) {
  engine
      .def(
          "shutdown", &Engine::shutdown, "script_over"_a = false, "failure"_a = "",
          "End the world for all ranks; idempotent. `script_over`: the script has come to its end; "
          "`failure`: how it failed.")
      .def("release", &Engine::release, "patience_s"_a = 0.0,
           "After shutdown(): end the engine, with its descriptors, memory and threads, whoever "
           "still refers to this object. Calls of other threads get `patience_s` seconds to end; "
           "what they use goes with the last of them. Handles that nobody has waited for raise "
           "when they are waited for.")
      .def("failure", &Engine::failure, nb::sig("def failure(self) -> BaseException | None"),
           "Why the world has failed, if it has: the first cause, or how the script of a rank "
           "failed.");
}

void add_observation(nb::class_<Engine>& engine) {
  engine
      .def("start_timeline", &Engine::start_timeline, "path"_a, "mark_cycles"_a,
           "Begin a timeline in a new file (on rank 0; elsewhere nothing is written).")
      .def("stop_timeline", &Engine::stop_timeline, "End the timeline: its file is complete then.")
      .def("paths", &Engine::paths, "Data path -> (batches, bytes).")
      .def("capi", &Engine::capi, "Address of the table of C functions for framework glue.")
      .def("address", &Engine::address, "Address of the engine, for the functions of capi().");
}

}  // namespace

NB_MODULE(_core, module) {
  // A daemon thread that outlives the interpreter keeps what it refers to: no news for users.
  nb::set_leak_warnings(false);
  module.doc() =
      "The native engine: see horovod.runtime.lifecycle for the one instance of a process.";
  add_constants(module);
  add_functions(module);
  nb::class_<DeviceResult>(module, "DeviceResult",
                           "A result for a device, which its owner gives memory there.")
      .def_prop_ro("dtype", &DeviceResult::dtype)
      .def_prop_ro("shape", &DeviceResult::shape, nb::sig("def shape(self) -> tuple[int, ...]"))
      .def_prop_ro("device_index", &DeviceResult::device_index)
      .def("deliver", &DeviceResult::deliver, "address"_a, "stream"_a.none(),
           "Copy it to that address, in the order of the stream; None: it is there on return. "
           "Once.");
  farandole::bindings::add_host_describer(module);
  farandole::bindings::add_host_importer(module);
  nb::class_<Engine> engine(module, "Engine",
                            "The engine of one rank. Descriptors given to it are its own.");
  add_set_up(engine);
  add_late_connections(engine);
  add_submissions(engine);
  add_results(engine);
  add_end(engine);
  add_observation(engine);
}
