#include "bindings/translation.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <memory>
#include <utility>

#include "bindings/thread_end.h"

namespace nb = nanobind;

namespace farandole::bindings {

namespace {

/// A new reference that CPython has returned, or the exception that it has raised.
nb::object checked(PyObject* returned) {
  if (returned == nullptr) throw nb::python_error();
  return nb::steal(returned);
}

}  // namespace

nb::object as_text(const std::string& text) {
  return nb::steal(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
}

/// The one border where an error of the core becomes an exception. `hosts`: by rank.
nb::object to_exception(const Error& error, const std::vector<std::string>& hosts) {
  std::string host;
  if (error.peer >= 0 && static_cast<std::size_t>(error.peer) < hosts.size()) {
    host = hosts[static_cast<std::size_t>(error.peer)];
  }
  const std::string_view code = name_of(error.code);
  const nb::tuple said =
      nb::make_tuple(nb::str(code.data(), code.size()), as_text(error.what()), error.peer,
                     as_text(error.tensor), error.missing, error.waited_s, host);
  const nb::object module = checked(import_module("horovod.errors"));
  const nb::object made = module.attr("from_core");
  return checked(call_object(made.ptr(), said.ptr()));
}

void raise(const Error& error, const std::vector<std::string>& hosts) {
  const nb::object exception = to_exception(error, hosts);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
  throw nb::python_error();
}

std::vector<SealKeys> to_seal_keys(int protection, const std::vector<nb::bytes>& keys,
                                   std::size_t connections) {
  if (protection < 0 || protection > static_cast<int>(Protection::Full) ||
      keys.size() != (protection == 0 ? 0 : connections)) {
    throw nb::value_error("protection needs a key for each connection");
  }
  std::vector<SealKeys> seals;
  for (const nb::bytes& key : keys) {
    SealKeys seal{.protection = static_cast<Protection>(protection)};
    if (key.size() != seal.sending.size() + seal.receiving.size()) {
      throw nb::value_error("a key has the wrong length");
    }
    std::memcpy(seal.sending.data(), key.c_str(), seal.sending.size());
    std::memcpy(seal.receiving.data(), key.c_str() + seal.sending.size(), seal.receiving.size());
    seals.push_back(seal);
  }
  return seals;
}

namespace {

nb::dlpack::dtype dlpack_dtype(DType dtype) {
  const auto bits = static_cast<std::uint8_t>(8 * size_of(dtype));
  const auto of = [bits](nb::dlpack::dtype_code code) {
    return nb::dlpack::dtype{static_cast<std::uint8_t>(code), bits, 1};
  };
  switch (dtype) {
    case DType::UInt8:
    case DType::UInt16:
    case DType::UInt32:
    case DType::UInt64:
    case DType::Float8E4M3FN:  // too new for many who read this: they view the bytes
    case DType::Float8E5M2:
    case DType::Float8E4M3FNUZ:
    case DType::Float8E5M2FNUZ:
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
    case DType::Complex64:
    case DType::Complex128:
      return of(nb::dlpack::dtype_code::Complex);
    case DType::Bool:
      return of(nb::dlpack::dtype_code::Bool);
  }
  return {};
}

/// What a capsule of that name holds by the standard (DLManagedTensor of dlpack.h): the reader
/// calls `deleter` once, from any thread, without the interpreter lock.
struct Managed {
  nb::dlpack::dltensor tensor;
  void* context = nullptr;
  void (*deleter)(Managed*) = nullptr;
};
constexpr const char* kUnread = "dltensor";
constexpr const char* kRead = "used_dltensor";

/// One allocation for the records, the extents, and the memory's owner. Who reads the capsule takes
/// one of the two records.
struct Exported {
  Managed managed;
  VersionedMemory versioned;
  DType dtype;
  bool* ended = nullptr;  ///< who wants to know, while it is being read
  HostBuffer buffer;
  Shape shape;
  Shape strides;
};

template <typename Record>
void end(Record* record) {
  auto* const exported = static_cast<Exported*>(record->context);
  if (exported->ended != nullptr) *exported->ended = true;
  delete exported;
}

/// Whoever reads a capsule gives it another name, and owns the memory.
void end_unread(PyObject* capsule) {
  if (PyCapsule_IsValid(capsule, kUnread) == 0) return;
  end(static_cast<Managed*>(PyCapsule_GetPointer(capsule, kUnread)));
}

}  // namespace

std::optional<DType> ordinary_dtype(const nb::dlpack::dtype& dtype) {
  for (std::size_t number = 0; number < kReducedDTypes; ++number) {
    const nb::dlpack::dtype one = dlpack_dtype(static_cast<DType>(number));
    if (one.code == dtype.code && one.bits == dtype.bits && one.lanes == dtype.lanes) {
      return static_cast<DType>(number);
    }
  }
  return std::nullopt;
}

nb::object to_dlpack(Output& output) {
  auto exported = std::make_unique<Exported>();
  exported->buffer = std::move(output.buffer);
  exported->shape = output.shape;
  exported->strides.resize(exported->shape.size());
  std::int64_t stride = 1;
  for (std::size_t d = exported->shape.size(); d-- > 0;) {
    exported->strides[d] = stride;
    stride *= exported->shape[d];
  }
  exported->dtype = output.dtype;
  exported->managed = {.tensor = {.data = exported->buffer.data(),
                                  .device = {.device_type = nb::device::cpu::value, .device_id = 0},
                                  .ndim = static_cast<std::int32_t>(exported->shape.size()),
                                  .dtype = dlpack_dtype(output.dtype),
                                  .shape = exported->shape.data(),
                                  .strides = exported->strides.data(),
                                  .byte_offset = 0},
                       .context = exported.get(),
                       .deleter = end<Managed>};
  exported->versioned.context = exported.get();
  exported->versioned.deleter = end<VersionedMemory>;
  exported->versioned.tensor = exported->managed.tensor;
  PyObject* const capsule = PyCapsule_New(&exported->managed, kUnread, end_unread);
  if (capsule == nullptr) throw nb::python_error();
  static_cast<void>(exported.release());
  return nb::steal(capsule);
}

nb::object read(nb::handle capsule, const std::function<nb::object(VersionedMemory&)>& reader) {
  if (PyCapsule_IsValid(capsule.ptr(), kUnread) == 0 ||
      PyCapsule_GetDestructor(capsule.ptr()) != end_unread) {
    return {};
  }
  const auto* const managed =
      static_cast<const Managed*>(PyCapsule_GetPointer(capsule.ptr(), kUnread));
  auto* const exported = static_cast<Exported*>(managed->context);
  if (ordinary_dtype(exported->managed.tensor.dtype) != exported->dtype) return {};
  // Before the reader runs: it may let other code see the capsule.
  if (PyCapsule_SetName(capsule.ptr(), kRead) != 0) throw nb::python_error();
  // A reader that fails may have taken the memory over and let go of it already, or may not.
  bool ended = false;
  exported->ended = &ended;
  const auto leave = [&](bool owned) {
    if (ended) return;
    exported->ended = nullptr;
    if (!owned) delete exported;
  };
  try {
    nb::object made = reader(exported->versioned);
    leave(true);
    return made;
  } catch (...) {
    leave(false);
    throw;
  }
}

}  // namespace farandole::bindings
