/// Results of the engine as tensors of a framework: the ordinary ones without a step of the
/// interpreter, as this is done for every operation that has one.
#pragma once

#include <nanobind/nanobind.h>

#include <utility>

#include "bindings/exchange_table.h"
#include "bindings/interpreter.h"
#include "bindings/translation.h"

namespace farandole::bindings {

/// Makes a tensor by its class's exchange table, if that has a function for it and DLPack a name
/// for the dtype.
class HostImporter {
 public:
  /// `otherwise`: is called with the same arguments where this cannot.
  HostImporter(nanobind::object otherwise, nanobind::handle exchange)
      : otherwise_(std::move(otherwise)), exchange_(exchange) {}

  /// `capsule`: a result of the engine. `like`: the tensor that it is the result of.
  nanobind::object take(nanobind::handle capsule, nanobind::handle like) const {
    if (!exchange_.makes()) return otherwise_(capsule, like);
    nanobind::object made =
        read(capsule, [this](VersionedMemory& memory) { return exchange_.make(memory); });
    return made.is_valid() ? made : otherwise_(capsule, like);
  }

 private:
  const nanobind::object otherwise_;
  const ExchangeTable exchange_;
};

inline PyObject* take_call(PyObject* self, PyObject* const* given, Py_ssize_t count) noexcept {
  return for_interpreter([&] {
    if (count != 2) throw nanobind::type_error("take takes a result, and a tensor like it");
    if (!nanobind::inst_ready(self)) throw nanobind::type_error("take: __init__ was not called");
    return nanobind::inst_ptr<HostImporter>(self)->take(given[0], given[1]);
  });
}

inline void add_host_importer(nanobind::module_& module) {
  using namespace nanobind::literals;
  nanobind::class_<HostImporter> added(
      module, "HostImporter",
      "Makes tensors of PyTorch of what the engine has allocated in host memory, by `exchange`, "
      "their class's `__dlpack_c_exchange_api__`; `otherwise` is called where it is None or "
      "cannot.");
  added.def(nanobind::init<nanobind::object, nanobind::handle>(), "otherwise"_a,
            "exchange"_a = nanobind::none(),
            nanobind::sig("def __init__(self, otherwise: Callable[..., Any], exchange: object = "
                          "None) -> None"));
  static PyMethodDef method =
      fast_method("take", take_call,
                  "take($self, capsule, like, /)\n--\n\n"
                  "A tensor that owns the memory of `capsule`, which is used up then. like: the "
                  "tensor that it is the result of.");
  add_method(added, method);
}

}  // namespace farandole::bindings
