/// Tensors of another library, described by a function of that library: no attribute of the tensor
/// is looked up, and no object is made.
///
/// Source: DLPack 1.3, DLPackExchangeAPI (https://dmlc.github.io/dlpack/latest/c_api.html). PyTorch
/// has it since 2.10.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>

namespace rueda::bindings {

/// The functions of one library for the tensors of its own class.
class ExchangeTable {
 public:
  /// `capsule`: the class's `__dlpack_c_exchange_api__`, or None. A library that speaks a later
  /// version may also speak this one.
  explicit ExchangeTable(nanobind::handle capsule) : capsule_(nanobind::borrow(capsule)) {
    if (capsule.is_none()) return;
    const void* const given = PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api");
    if (given == nullptr) throw nanobind::python_error();
    const auto* header = static_cast<const Header*>(given);
    while (header != nullptr && header->major != kMajor) header = header->previous;
    if (header != nullptr) describe_ = reinterpret_cast<const Functions*>(header)->describe;
  }

  [[nodiscard]] bool knows() const { return describe_ != nullptr; }

  /// Of a tensor whose class has this table. What `to` points at lives as long as the tensor stays
  /// as it is. False: it has no such description; no exception of Python stays set.
  [[nodiscard]] bool describe(PyObject* tensor, nanobind::dlpack::dltensor& to) const {
    if (describe_(tensor, &to) == 0) return true;
    PyErr_Clear();  // no code of Python ran: it is about this tensor
    return false;
  }

 private:
  static constexpr std::uint32_t kMajor = 1;

  struct Header {
    std::uint32_t major;
    std::uint32_t minor;
    const Header* previous;
  };
  using Describe = int (*)(void* tensor, nanobind::dlpack::dltensor* to);
  struct Functions {
    Header header;
    void (*unused[3])();  // they allocate, export with an owner, and import
    Describe describe;    // null: the library has no such function
    void (*unused_stream)();
  };

  nanobind::object capsule_;
  Describe describe_ = nullptr;
};

}  // namespace rueda::bindings
