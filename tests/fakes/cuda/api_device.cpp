// Start, versions, texts of errors, devices.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>

#include "cuda/entry.h"
#include "cuda/memory.h"

namespace farandole::fakes {
namespace {

struct Attribute {
  int attribute;
  int value;
};

/// Attributes of a device by their numbers in the API; of an H100, where it matters.
constexpr auto kAttributes = std::to_array<Attribute>({
    {1, 1024},  // MAX_THREADS_PER_BLOCK
    {10, 32},   // WARP_SIZE
    {16, 132},  // MULTIPROCESSOR_COUNT
    {19, 1},    // CAN_MAP_HOST_MEMORY
    {31, 1},    // CONCURRENT_KERNELS
    {40, 3},    // ASYNC_ENGINE_COUNT
    {41, 1},    // UNIFIED_ADDRESSING
    {75, 9},    // COMPUTE_CAPABILITY_MAJOR
    {76, 0},    // COMPUTE_CAPABILITY_MINOR
    {78, 1},    // STREAM_PRIORITIES_SUPPORTED
});
constexpr int kBusId = 33;     // PCI_BUS_ID
constexpr int kDomainId = 50;  // PCI_DOMAIN_ID

/// The place of a device on its bus is all that tells devices apart.
int bus_of(const Context& context) { return 0x10 + context.number(); }

DriverStatus find(DriverDevice device, Context*& context) {
  context = Devices::get().context(device);
  return context == nullptr ? kInvalidDevice : kDriverSuccess;
}

}  // namespace
}  // namespace farandole::fakes

using namespace farandole;         // NOLINT: the functions below have C names
using namespace farandole::fakes;  // NOLINT

FAKE_CUDA_API DriverStatus cuInit(unsigned flags) {
  FAKE_CUDA_TRY(enter<"cuInit">(Needs::Nothing));
  if (flags != 0) return kDriverInvalidValue;
  if (Devices::get().size() == 0) return kDriverNoDevice;
  set_started();
  return kDriverSuccess;
}

FAKE_CUDA_API DriverStatus cuDriverGetVersion(int* version) {
  FAKE_CUDA_TRY(enter<"cuDriverGetVersion">(Needs::Nothing));
  if (version == nullptr) return kDriverInvalidValue;
  *version = static_cast<int>(number_of_environment("FAKE_CUDA_VERSION", 12040));
  return kDriverSuccess;
}

// Texts are constant: nothing goes wrong with them, and a host function may ask.
FAKE_CUDA_API DriverStatus cuGetErrorName(DriverStatus status, const char** name) {
  const StatusText* found = text_of(status);
  *name = found == nullptr ? nullptr : found->name;
  return found == nullptr ? kDriverInvalidValue : kDriverSuccess;
}

FAKE_CUDA_API DriverStatus cuGetErrorString(DriverStatus status, const char** text) {
  const StatusText* found = text_of(status);
  *text = found == nullptr ? nullptr : found->text;
  return found == nullptr ? kDriverInvalidValue : kDriverSuccess;
}

FAKE_CUDA_API DriverStatus cuDeviceGetCount(int* count) {
  FAKE_CUDA_TRY(enter<"cuDeviceGetCount">(Needs::Start));
  if (count == nullptr) return kDriverInvalidValue;
  *count = static_cast<int>(Devices::get().size());
  return kDriverSuccess;
}

FAKE_CUDA_API DriverStatus cuDeviceGet(DriverDevice* device, int ordinal) {
  FAKE_CUDA_TRY(enter<"cuDeviceGet">(Needs::Start));
  Context* context = nullptr;
  FAKE_CUDA_TRY(find(ordinal, context));
  *device = context->device();
  return kDriverSuccess;
}

FAKE_CUDA_API DriverStatus cuDeviceGetName(char* name, int length, DriverDevice device) {
  FAKE_CUDA_TRY(enter<"cuDeviceGetName">(Needs::Start));
  Context* context = nullptr;
  FAKE_CUDA_TRY(find(device, context));
  if (name == nullptr || length <= 0) return kDriverInvalidValue;
  std::snprintf(name, static_cast<std::size_t>(length), "Fake device %d", context->number());
  return kDriverSuccess;
}

FAKE_CUDA_API DriverStatus cuDeviceGetAttribute(int* value, int attribute, DriverDevice device) {
  FAKE_CUDA_TRY(enter<"cuDeviceGetAttribute">(Needs::Start));
  Context* context = nullptr;
  FAKE_CUDA_TRY(find(device, context));
  if (value == nullptr || attribute <= 0 || attribute >= 200) return kDriverInvalidValue;
  const auto* found = std::ranges::find(kAttributes, attribute, &Attribute::attribute);
  *value = found == kAttributes.end() ? 0 : found->value;
  if (attribute == kBusId) *value = bus_of(*context);
  if (attribute == kDomainId) *value = 0;
  return kDriverSuccess;
}

FAKE_CUDA_API DriverStatus cuDeviceTotalMem_v2(std::size_t* bytes, DriverDevice device) {
  FAKE_CUDA_TRY(enter<"cuDeviceTotalMem">(Needs::Start));
  Context* context = nullptr;
  FAKE_CUDA_TRY(find(device, context));
  *bytes = Memory::bytes_of_device();
  return kDriverSuccess;
}

FAKE_CUDA_API DriverStatus cuDeviceGetPCIBusId(char* text, int length, DriverDevice device) {
  FAKE_CUDA_TRY(enter<"cuDeviceGetPCIBusId">(Needs::Start));
  Context* context = nullptr;
  FAKE_CUDA_TRY(find(device, context));
  if (text == nullptr || length < 13) return kDriverInvalidValue;
  std::snprintf(text, static_cast<std::size_t>(length), "0000:%02X:00.0", bus_of(*context) & 0xFF);
  return kDriverSuccess;
}

/// `uuid` has 16 bytes.
FAKE_CUDA_API_ANY_TYPES DriverStatus cuDeviceGetUuid_v2(void* uuid, DriverDevice device) {
  FAKE_CUDA_TRY(enter<"cuDeviceGetUuid">(Needs::Start));
  Context* context = nullptr;
  FAKE_CUDA_TRY(find(device, context));
  std::array<unsigned char, 16> bytes{'f', 'a', 'k', 'e', ' ', 'd', 'e', 'v', 'i', 'c', 'e'};
  bytes.back() = static_cast<unsigned char>(bus_of(*context));
  std::memcpy(uuid, bytes.data(), bytes.size());
  return kDriverSuccess;
}

FAKE_CUDA_API DriverStatus cuDeviceCanAccessPeer(int* can, DriverDevice device, DriverDevice peer) {
  FAKE_CUDA_TRY(enter<"cuDeviceCanAccessPeer">(Needs::Start));
  Context* one = nullptr;
  Context* other = nullptr;
  FAKE_CUDA_TRY(find(device, one));
  FAKE_CUDA_TRY(find(peer, other));
  *can = one != other && number_of_environment("FAKE_CUDA_PEERS", 1) != 0 ? 1 : 0;
  return kDriverSuccess;
}
