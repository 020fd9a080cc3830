#include "bindings/foreign.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <bitset>
#include <utility>

namespace farandole::bindings {

namespace nb = nanobind;

namespace {

/// Objects of Python that end wherever the last thread lets go of them.
class Owned {
 public:
  explicit Owned(nb::object object) : object_(std::move(object)) {}
  ~Owned() {
    if (Py_IsInitialized() == 0) {
      static_cast<void>(object_.release());
      return;
    }
    const nb::gil_scoped_acquire lock;
    object_.reset();
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  [[nodiscard]] const nb::object& operator*() const noexcept { return object_; }

 private:
  nb::object object_;
};

/// The cause travels to all ranks as one sentence; here, where it happened, the whole of it is
/// printed. With the lock.
void show(nb::python_error& error) noexcept {
  try {
    nb::module_::import_("traceback").attr("print_exception")(error.value());
  } catch (nb::python_error&) {  // then it is not shown
  }
}

/// "ValueError: no such file". With the lock.
Error said(nb::python_error& error) {
  show(error);
  std::string text = "an exception that has no text";
  try {
    text = nb::cast<std::string>(error.type().attr("__name__")) + ": " +
           nb::str(error.value()).c_str();
  } catch (nb::python_error&) {  // its own fault
  }
  return {.code = Code::Backend, .message = std::move(text)};
}

/// Memory that Python may look at as long as the call is under way. With the lock.
nb::object view(const void* data, std::size_t bytes, int flags) {
  static char nothing = 0;
  char* const begin = bytes == 0 ? &nothing : static_cast<char*>(const_cast<void*>(data));
  PyObject* const made = PyMemoryView_FromMemory(begin, static_cast<Py_ssize_t>(bytes), flags);
  if (made == nullptr) throw nb::python_error();
  return nb::steal(made);
}

nb::tuple to_tuple(const std::vector<std::size_t>& lengths) {
  nb::list list;
  for (const std::size_t length : lengths) list.append(length);
  return nb::tuple(list);
}

/// One verb: a function that has returned, or a generator that is asked to go on.
class PythonCall final : public Operation {
 public:
  PythonCall(std::shared_ptr<Owned> backend, const ForeignCall& call)
      : backend_(std::move(backend)), call_(call) {}

  ~PythonCall() override {
    if (Py_IsInitialized() == 0) {
      static_cast<void>(waiting_.release());
      for (nb::object& each : views_) static_cast<void>(each.release());
      return;
    }
    const nb::gil_scoped_acquire lock;
    end();
  }

  Result<Step> step() override {
    const nb::gil_scoped_acquire lock;
    try {
      if (!begun_) {
        begun_ = true;
        nb::object returned = begin();
        if (returned.is_none()) {
          end();
          return Step::Done;
        }
        if (PyIter_Check(returned.ptr()) == 0) {
          return Error{.code = Code::Backend,
                       .message = "it returned " + std::string(nb::repr(returned).c_str()) +
                                  "; a verb returns None or is a generator"};
        }
        waiting_ = std::move(returned);
      }
      nb::object yielded = nb::steal(PyIter_Next(waiting_.ptr()));
      if (!yielded.is_valid()) {
        if (PyErr_Occurred() != nullptr) throw nb::python_error();
        end();
        return Step::Done;
      }
      const int moved = PyObject_IsTrue(yielded.ptr());
      if (moved < 0) throw nb::python_error();
      return moved != 0 ? Step::Advanced : Step::Blocked;
    } catch (nb::python_error& error) {
      return said(error);
    } catch (const std::exception& error) {
      return Error{.code = Code::Backend, .message = error.what()};
    }
  }

 private:
  nb::object begin() {
    const nb::object& backend = **backend_;
    const auto in = [this] { return read(call_.in); };
    const auto out = [this] { return write(call_.out); };
    const int dtype = static_cast<int>(call_.dtype);
    const int op = static_cast<int>(call_.op);
    switch (call_.verb) {
      case ForeignVerb::Send:
        return backend.attr("send")(call_.peer, in());
      case ForeignVerb::Recv:
        return backend.attr("recv")(call_.peer, out());
      case ForeignVerb::Allreduce:
        return backend.attr("allreduce")(out(), dtype, op);
      case ForeignVerb::Allgatherv:
        return backend.attr("allgatherv")(in(), out(), to_tuple(call_.out_lengths));
      case ForeignVerb::Broadcast:
        return backend.attr("broadcast")(out(), call_.peer);
      case ForeignVerb::Reducescatterv:
        return backend.attr("reducescatterv")(in(), out(), to_tuple(call_.out_lengths), dtype, op);
      case ForeignVerb::Alltoallv:
        return backend.attr("alltoallv")(in(), out(), to_tuple(call_.in_lengths),
                                         to_tuple(call_.out_lengths));
      case ForeignVerb::Barrier:
        return backend.attr("barrier")();
    }
    return nb::none();
  }

  nb::object read(std::span<const std::byte> data) {
    return views_.emplace_back(view(data.data(), data.size(), PyBUF_READ));
  }
  nb::object write(std::span<std::byte> data) {
    return views_.emplace_back(view(data.data(), data.size(), PyBUF_WRITE));
  }

  /// With the lock. Whoever has kept a view finds it closed; one that lives on under another name
  /// (an array over it) cannot be.
  void end() {
    waiting_.reset();
    for (nb::object& each : views_) {
      PyObject* const released = PyObject_CallMethod(each.ptr(), "release", nullptr);
      if (released == nullptr) PyErr_Clear();
      Py_XDECREF(released);
    }
    views_.clear();
  }

  std::shared_ptr<Owned> backend_;
  ForeignCall call_;
  nb::object waiting_;  // the generator
  std::vector<nb::object> views_;
  bool begun_ = false;
};

class PythonBackend final : public Foreign {
 public:
  explicit PythonBackend(nb::object backend)
      : backend_(std::make_shared<Owned>(std::move(backend))) {}

  std::unique_ptr<Operation> call(const ForeignCall& call) override {
    return std::make_unique<PythonCall>(backend_, call);
  }

  Result<void> close() override {
    const nb::gil_scoped_acquire lock;
    try {
      if (nb::hasattr(**backend_, "close")) (**backend_).attr("close")();
      return {};
    } catch (nb::python_error& error) {
      return said(error);
    }
  }

  void abort() noexcept override {
    if (Py_IsInitialized() == 0) return;
    const nb::gil_scoped_acquire lock;
    try {
      if (nb::hasattr(**backend_, "abort")) (**backend_).attr("abort")();
    } catch (nb::python_error& error) {
      show(error);
    }
  }

 private:
  std::shared_ptr<Owned> backend_;
};

class PythonClass final : public ForeignClass {
 public:
  PythonClass(nb::object type, std::string name)
      : name_(std::move(name)), type_(std::make_shared<Owned>(std::move(type))) {
    const nb::object& named = **type_;
    for (std::size_t verb = 0; verb < kVerbs; ++verb) {
      const std::string attribute(name_of(static_cast<ForeignVerb>(verb)));
      verbs_[verb] =
          nb::hasattr(named, attribute.c_str()) && !named.attr(attribute.c_str()).is_none();
    }
    const bool asks = nb::hasattr(named, "reduces");
    for (std::size_t dtype = 0; dtype < kReducedDTypes; ++dtype) {
      for (std::size_t op = 0; op < kReduceOps; ++op) {
        const auto code = static_cast<ReduceOp>(op);
        if (code == ReduceOp::Average || code == ReduceOp::Adasum) continue;
        reduces_[dtype * kReduceOps + op] =
            !asks || nb::cast<bool>(nb::bool_(named.attr("reduces")(dtype, op)));
      }
    }
  }

  std::string_view name() const noexcept override { return name_; }
  bool has(ForeignVerb verb) const noexcept override {
    return verbs_[static_cast<std::size_t>(verb)];
  }
  bool reduces(DType dtype, ReduceOp op) const noexcept override {
    return reduces_[static_cast<std::size_t>(dtype) * kReduceOps + static_cast<std::size_t>(op)];
  }

  Result<std::shared_ptr<Foreign>> open(const Members& members) override {
    const nb::gil_scoped_acquire lock;
    try {
      nb::list ranks;
      for (const Rank rank : members.ranks) ranks.append(rank);
      nb::list groups;
      for (const auto& group : members.groups) {
        nb::list together;
        for (const int member : group) together.append(member);
        groups.append(nb::tuple(together));
      }
      return std::shared_ptr<Foreign>(std::make_shared<PythonBackend>(
          (**type_)(nb::tuple(ranks), members.self, nb::tuple(groups))));
    } catch (nb::python_error& error) {
      return said(error);
    }
  }

 private:
  std::string name_;
  std::shared_ptr<Owned> type_;
  std::bitset<kVerbs> verbs_;
  std::bitset<kReducedDTypes * kReduceOps> reduces_;
};

}  // namespace

std::shared_ptr<ForeignClass> python_backend(const nb::object& type, std::string name) {
  return std::make_shared<PythonClass>(type, std::move(name));
}

}  // namespace farandole::bindings
