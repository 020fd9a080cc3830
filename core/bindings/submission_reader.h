/// What Python says of tensors becomes the record. A tensor is a tuple in the order of
/// farandole::Tensor, `(in, out, dtype, shape, device, device_index, stream, splits, received)`,
/// short where the rest is nothing; None, one of them, or a list of them for a group.
///
/// This runs for every operation, so it is written on the interpreter's own functions. Only numbers
/// that are int are taken: no code of Python runs here, which might submit something meanwhile.
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "bindings/interpreter.h"
#include "bindings/numbers.h"
#include "collectives/registry.h"
#include "engine/engine.h"
#include "engine/execution/submission.h"

namespace farandole::bindings {

template <typename E>
[[nodiscard]] E enumerator(const char* what, std::int64_t number, std::int64_t end) {
  if (!is_below(end, number)) [[unlikely]] {
    throw nanobind::value_error(means_nothing(what, number).c_str());
  }
  return static_cast<E>(number);
}

inline void read_name(nanobind::handle name, std::string& to) {
  to.clear();
  if (name.is_none()) return;
  if (!PyUnicode_Check(name.ptr())) {
    throw nanobind::type_error("A name is a str, or None to go by the order of calls");
  }
  Py_ssize_t length = 0;
  const char* text = PyUnicode_AsUTF8AndSize(name.ptr(), &length);
  if (text == nullptr) throw nanobind::python_error();
  to.assign(text, static_cast<std::size_t>(length));
}

/// Reads one tensor of a submission.
class TensorReader {
 public:
  /// Tensor `index` of `count`; `count` 0: it is no group.
  TensorReader(Py_ssize_t index, Py_ssize_t count) : index_(index), count_(count) {}

  /// `may_be_absent`: without `in` there is nothing of it on this rank.
  void read(PyObject* tuple, Tensor& to, bool may_be_absent) const {
    if (!PyTuple_Check(tuple)) wrong_type("a tensor", "a tuple", tuple);
    const Py_ssize_t length = length_of_tuple(tuple);
    if (length < 4 || length > 9) [[unlikely]] {
      refuse(
          "a tensor is (in, out, dtype, shape[, device, device_index, stream, splits, received])"
          ", 4 to 9 entries, not " +
          std::to_string(length));
    }
    to.in = address<const std::byte>("in", item_of_tuple(tuple, 0));
    to.out = address<std::byte>("out", item_of_tuple(tuple, 1));
    to.dtype = number<DType>("dtype", item_of_tuple(tuple, 2), kDTypes);
    read_shape(item_of_tuple(tuple, 3), to.shape);
    check_bytes(to);
    const auto item = [&](Py_ssize_t i) { return i < length ? item_of_tuple(tuple, i) : nullptr; };
    to.device = length > 4 ? number<Device>("device", item(4), kDevices) : Device::Host;
    to.device_index = length > 5 ? number<std::int32_t>("device_index", item(5), INT32_MAX) : 0;
    to.streamless = length > 6 && item(6) == Py_None;
    to.stream = length > 6 && !to.streamless ? address<void>("stream", item(6)) : nullptr;
    to.splits.clear();
    if (length > 7) read_splits(item(7), to.splits);
    if (to.on != nullptr) [[unlikely]] {  // of a submission that was refused
      to.on.reset();
      to.ready.reset();
    }
    to.received = length > 8 ? address<std::int32_t>("received", item(8)) : nullptr;
    to.absent = to.in == nullptr && to.out != nullptr && may_be_absent;
  }

 private:
  [[nodiscard]] std::string place() const {
    if (count_ == 0) return {};
    return "tensor " + std::to_string(index_ + 1) + " of " + std::to_string(count_) + ": ";
  }
  [[noreturn]] void refuse(const std::string& why) const {
    PyErr_Clear();
    throw nanobind::value_error((place() + why).c_str());
  }
  [[noreturn]] void wrong_type(const char* what, const char* wanted, PyObject* got) const {
    const nanobind::str kind(nanobind::handle(got).type().attr("__name__"));
    throw nanobind::type_error(
        (place() + what + " must be " + wanted + ", not " + kind.c_str()).c_str());
  }

  [[nodiscard]] std::int64_t integer(const char* what, PyObject* value) const {
    if (!PyLong_Check(value)) [[unlikely]] {
      wrong_type(what, "an int", value);
    }
    const std::int64_t number = PyLong_AsLongLong(value);
    if (number == -1 && PyErr_Occurred() != nullptr) refuse(std::string(what) + " is too large");
    return number;
  }
  template <typename T>
  [[nodiscard]] T number(const char* what, PyObject* value, std::int64_t end) const {
    const std::int64_t number = integer(what, value);
    if (!is_below(end, number)) [[unlikely]] {
      refuse(means_nothing(what, number));
    }
    return static_cast<T>(number);
  }
  template <typename T>
  [[nodiscard]] T* address(const char* what, PyObject* value) const {
    if (!PyLong_Check(value)) [[unlikely]] {
      wrong_type(what, "an int", value);
    }
    void* const pointer = PyLong_AsVoidPtr(value);
    if (pointer == nullptr && PyErr_Occurred() != nullptr) {
      refuse(std::string(what) + " is no address");
    }
    return static_cast<T*>(pointer);
  }
  void read_shape(PyObject* extents, Shape& to) const {
    if (!PyTuple_Check(extents)) [[unlikely]] {
      wrong_type("a shape", "a tuple", extents);
    }
    const Py_ssize_t dimensions = length_of_tuple(extents);
    if (dimensions > kMostDimensions) [[unlikely]] {
      refuse(means_nothing("a number of dimensions of", dimensions));
    }
    to.clear();
    for (Py_ssize_t d = 0; d < dimensions; ++d) {
      const std::int64_t extent = integer("an extent", item_of_tuple(extents, d));
      if (extent < 0) [[unlikely]] {
        refuse(means_nothing("an extent of", extent));
      }
      to.push_back(extent);
    }
  }
  /// Whatever follows counts its bytes in 64 bits.
  void check_bytes(const Tensor& tensor) const {
    auto bytes = static_cast<std::int64_t>(size_of(tensor.dtype));
    bool fits = true;
    for (const std::int64_t extent : tensor.shape) {
      if (extent == 0) return;
      fits = fits && !__builtin_mul_overflow(bytes, extent, &bytes);
    }
    if (!fits) refuse("a shape of more bytes than an address space has");
  }
  void read_splits(PyObject* splits, std::vector<std::int64_t>& to) const {
    const bool list = PyList_Check(splits) != 0;
    if (!list && !PyTuple_Check(splits)) wrong_type("splits", "a list or a tuple", splits);
    const Py_ssize_t members = list ? length_of_list(splits) : length_of_tuple(splits);
    for (Py_ssize_t m = 0; m < members; ++m) {
      to.push_back(integer("a split", list ? item_of_list(splits, m) : item_of_tuple(splits, m)));
    }
  }

  Py_ssize_t index_;
  Py_ssize_t count_;
};

/// After the kind.
inline void read_tensors(nanobind::handle tensors, Submission& to) {
  const bool may_be_absent = farandole::may_be_absent(to.kind);
  to.grouped = false;
  if (PyTuple_Check(tensors.ptr())) [[likely]] {
    to.tensors.resize(1);
    TensorReader(0, 0).read(tensors.ptr(), to.tensors.front(), may_be_absent);
    return;
  }
  to.tensors.clear();
  if (tensors.is_none()) return;
  if (!PyList_Check(tensors.ptr())) {
    throw nanobind::type_error(
        "tensors must be the tuple of one, a list of tuples for a group, or None");
  }
  const Py_ssize_t count = length_of_list(tensors.ptr());
  if (count == 0) throw nanobind::value_error("A group needs at least one tensor");
  to.grouped = true;
  to.tensors.resize(static_cast<std::size_t>(count));
  for (Py_ssize_t i = 0; i < count; ++i) {
    TensorReader(i, count).read(item_of_list(tensors.ptr(), i),
                                to.tensors[static_cast<std::size_t>(i)], may_be_absent);
  }
}

/// Tensors of a group that share memory.
///
/// What comes of results that overlap depends on which is written first, so they are refused. One
/// tensor may come twice, as tied weights do: it gets the result of its first place, and the later
/// ones are reduced in copies that nobody sees. They live until the operation is done.
inline Result<std::vector<HostBuffer>> separate_duplicates(Submission& submission, Engine& engine) {
  std::vector<HostBuffer> copies;
  std::vector<Tensor>& tensors = submission.tensors;
  const auto served = [&engine](const Tensor& tensor) { return engine.serves(tensor); };
  // What is elsewhere is refused by the engine.
  if (!rules_of(submission.kind).in_place || !std::ranges::all_of(tensors, served)) return copies;
  const auto bytes = [](const Tensor& tensor) {
    return static_cast<std::size_t>(element_count(tensor.shape)) * size_of(tensor.dtype);
  };
  std::vector<std::size_t> order;
  order.reserve(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].out != nullptr && bytes(tensors[i]) > 0) order.push_back(i);
  }
  std::ranges::sort(order, [&tensors](std::size_t a, std::size_t b) {
    return std::pair(tensors[a].out, a) < std::pair(tensors[b].out, b);
  });
  std::size_t last = 0;
  for (std::size_t next = 1; next < order.size(); ++next) {
    const Tensor& before = tensors[order[last]];
    Tensor& tensor = tensors[order[next]];
    if (tensor.out >= before.out + bytes(before)) {
      last = next;
      continue;
    }
    if (tensor.out != before.out || tensor.in != before.in || tensor.dtype != before.dtype ||
        bytes(tensor) != bytes(before)) {
      const auto [low, high] = std::minmax(order[last], order[next]);
      return Error{.code = Code::InvalidArgument,
                   .message = "Tensors " + std::to_string(low) + " and " + std::to_string(high) +
                              " of the group overlap in memory, so their results would depend on "
                              "which is written first. Pass clones, or one tensor over both"};
    }
    auto copy = engine.copy(tensor);
    if (!copy) return Error::wrap(std::move(copy).error(), "a tensor comes twice in the group");
    tensor.in = tensor.out = copy->data();
    copies.push_back(std::move(*copy));
  }
  return copies;
}

}  // namespace farandole::bindings
