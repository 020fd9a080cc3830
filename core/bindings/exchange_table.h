/// Tensors of another library, described and made by functions of that library: no attribute of a
/// tensor is looked up, and no other object is made.
///
/// Source: DLPack 1.3, DLPackExchangeAPI (https://dmlc.github.io/dlpack/latest/c_api.html). PyTorch
/// has it since 2.10.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>

#include "bindings/translation.h"

namespace farandole::bindings {

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
    if (header == nullptr) return;
    describe_ = reinterpret_cast<const Functions*>(header)->describe;
    make_ = reinterpret_cast<const Functions*>(header)->make;
  }

  [[nodiscard]] bool knows() const { return describe_ != nullptr; }
  [[nodiscard]] bool makes() const { return make_ != nullptr; }

  /// Of a tensor whose class has this table. What `to` points at lives as long as the tensor stays
  /// as it is. False: it has no such description; no exception of Python stays set.
  [[nodiscard]] bool describe(PyObject* tensor, nanobind::dlpack::dltensor& to) const {
    if (describe_(tensor, &to) == 0) return true;
    PyErr_Clear();  // no code of Python ran: it is about this tensor
    return false;
  }

  /// A tensor that owns `memory`. Throws what the library raises; then it may have ended `memory`.
  /// Where makes().
  [[nodiscard]] nanobind::object make(VersionedMemory& memory) const {
    void* made = nullptr;
    if (make_(&memory, &made) != 0) throw nanobind::python_error();
    return nanobind::steal(static_cast<PyObject*>(made));
  }

 private:
  static constexpr std::uint32_t kMajor = VersionedMemory::kMajor;

  struct Header {
    std::uint32_t major;
    std::uint32_t minor;
    const Header* previous;
  };
  using Describe = int (*)(void* tensor, nanobind::dlpack::dltensor* to);
  using Make = int (*)(VersionedMemory* memory, void** to);
  struct Functions {
    Header header;
    void (*unused[2])();  // they allocate, and export with an owner
    Make make;
    Describe describe;  // null: the library has no such function
    void (*unused_stream)();
  };

  nanobind::object capsule_;
  Describe describe_ = nullptr;
  Make make_ = nullptr;
};

}  // namespace farandole::bindings
