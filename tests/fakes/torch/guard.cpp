// What PyTorch asks a kind of device: which device and stream the calling thread uses, and events.
// This one answers from the driver that stands in for CUDA's. `tests/fakes/torch/device.py` loads
// it.
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <array>
#include <cstdint>
#include <cstdlib>

extern "C" {
int cuInit(unsigned flags);
int cuDeviceGet(int* device, int ordinal);
int cuDeviceGetCount(int* count);
int cuDevicePrimaryCtxRetain(void** context, int device);
int cuCtxSetCurrent(void* context);
int cuEventCreate(void** event, unsigned flags);
int cuEventDestroy_v2(void* event);
int cuEventQuery(void* event);
int cuEventRecord(void* event, void* stream);
int cuEventSynchronize(void* event);
int cuStreamQuery(void* stream);
int cuStreamSynchronize(void* stream);
int cuStreamWaitEvent(void* stream, void* event, unsigned flags);
}

namespace {

constexpr c10::DeviceType kType = c10::DeviceType::CUDA;
constexpr int kMostDevices = 8;
constexpr unsigned kWithoutTiming = 2;
constexpr int kNotReady = 600;

void must(int status) {
  if (status != 0) std::abort();
}

int devices() {
  static const int count = [] {
    int found = 0;
    must(cuInit(0));
    must(cuDeviceGetCount(&found));
    return found < kMostDevices ? found : kMostDevices;
  }();
  return count;
}

/// The context of a device becomes that of the calling thread.
void enter(int device) {
  static const std::array<void*, kMostDevices> contexts = [] {
    std::array<void*, kMostDevices> made{};
    for (int i = 0; i < devices(); ++i) {
      int handle = 0;
      must(cuDeviceGet(&handle, i));
      must(cuDevicePrimaryCtxRetain(&made[static_cast<std::size_t>(i)], handle));
    }
    return made;
  }();
  must(cuCtxSetCurrent(contexts.at(static_cast<std::size_t>(device))));
}

thread_local int used_device = 0;
thread_local std::array<std::int64_t, kMostDevices> current_streams{};

std::int64_t& stream_of(int device) { return current_streams.at(static_cast<std::size_t>(device)); }

void* handle(std::int64_t stream) {
  return reinterpret_cast<void*>(stream);  // NOLINT: handles of streams travel as numbers
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override {
    return {kType, static_cast<c10::DeviceIndex>(used_device)};
  }
  void setDevice(c10::Device device) const override {
    if (device.index() >= 0) used_device = device.index();
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override { setDevice(device); }
  c10::Stream getStream(c10::Device device) const override {
    const int index = device.index() < 0 ? used_device : device.index();
    const c10::Device place(kType, static_cast<c10::DeviceIndex>(index));
    return c10::Stream(c10::Stream::UNSAFE, place, stream_of(index));
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream before = getStream(stream.device());
    stream_of(stream.device_index()) = stream.id();
    return before;
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(devices());
  }
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    enter(stream.device_index());
    if (*event == nullptr) must(cuEventCreate(event, kWithoutTiming));
    must(cuEventRecord(*event, handle(stream.id())));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr) return;
    enter(stream.device_index());
    must(cuStreamWaitEvent(handle(stream.id()), event, 0));
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || cuEventQuery(event) != kNotReady;
  }
  void destroyEvent(void* event, const c10::DeviceIndex device) const noexcept override {
    if (event == nullptr) return;
    enter(device);
    must(cuEventDestroy_v2(event));
  }
  void synchronizeEvent(void* event) const override { must(cuEventSynchronize(event)); }
  bool queryStream(const c10::Stream& stream) const override {
    enter(stream.device_index());
    return cuStreamQuery(handle(stream.id())) != kNotReady;
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    enter(stream.device_index());
    must(cuStreamSynchronize(handle(stream.id())));
  }
};

/// Autograd asks whether there is a device at all.
struct Hooks final : at::CUDAHooksInterface {
  explicit Hooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return static_cast<c10::DeviceIndex>(devices()); }
  c10::DeviceIndex getCurrentDevice() const override {
    return static_cast<c10::DeviceIndex>(used_device);
  }
};

const c10::impl::DeviceGuardImplRegistrar registrar(kType, new Guard);

}  // namespace

namespace at {
C10_REGISTER_TYPED_CLASS(CUDAHooksRegistry, "CUDAHooks", Hooks);
}

extern "C" {
void standInEnter(int device) { enter(device); }
int standInDevice() { return used_device; }
std::int64_t standInStream(int device) { return stream_of(device); }
void standInUseStream(int device, std::int64_t stream) { stream_of(device) = stream; }
}
