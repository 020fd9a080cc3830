#include "devices/device_context.h"

#include <utility>
#include <vector>

#include "mutex.h"

namespace farandole {

namespace {

DriverStream as_stream(void* stream) noexcept { return static_cast<DriverStream>(stream); }

DriverAddress as_address(const void* address) noexcept {
  return static_cast<DriverAddress>(reinterpret_cast<std::uintptr_t>(address));
}

}  // namespace

DevicePoint::~DevicePoint() { device_->give_back(event_); }

Result<bool> DevicePoint::reached() const {
  const DeviceContext::Current current(*device_);
  const DriverStatus status = device_->driver().event_query(event_);
  if (status == kDriverNotReady) return false;
  if (status == kDriverSuccess) return true;
  return device_->failure(status, "work of the device has failed");
}

Result<void> DevicePoint::precede(void* stream, const DeviceContext& of) const {
  const DeviceContext::Current current(of);
  return of.check(of.driver().stream_wait_event(as_stream(stream), event_, 0),
                  "cannot make a stream wait");
}

Result<void> DevicePoint::wait() const {
  const DeviceContext::Current current(*device_);
  return device_->check(device_->driver().event_synchronize(event_),
                        "work of the device has failed");
}

Result<std::shared_ptr<DeviceContext>> DeviceContext::open(
    std::shared_ptr<const DeviceDriver> driver, int index) {
  int count = 0;
  DriverStatus status = driver->device_count(&count);
  if (status == kDriverSuccess && index >= count) {
    return Error{.code = Code::InvalidArgument,
                 .message = "there is no such device: the driver shows this process " +
                            std::to_string(count) + (count == 1 ? " device" : " devices")};
  }
  DriverDevice device = 0;
  DriverContext context = nullptr;
  if (status == kDriverSuccess) status = driver->device_get(&device, index);
  if (status == kDriverSuccess) status = driver->primary_retain(&context, device);
  if (status != kDriverSuccess) {
    return Error{
        .code = Code::Backend,
        .message = "cannot use device " + std::to_string(index) + ": " + describe(*driver, status)};
  }
  return std::make_shared<DeviceContext>(std::move(driver), device, context, index);
}

DeviceContext::~DeviceContext() {
  {
    const Current current(*this);
    for (DriverEvent event : events_) driver_->event_destroy(event);
  }
  driver_->primary_release(device_);
}

Error DeviceContext::failure(DriverStatus status, const std::string& what) const {
  return Error{
      .code = Code::Backend,
      .message = what + " on device " + std::to_string(index_) + ": " + describe(*driver_, status)};
}

void DeviceContext::give_back(DriverEvent event) noexcept {
  const Lock lock(mutex_);
  events_.push_back(event);
}

Result<std::shared_ptr<DevicePoint>> DeviceContext::point(void* stream) {
  const Current current(*this);
  DriverEvent event = nullptr;
  {
    const Lock lock(mutex_);
    if (!events_.empty()) {
      event = events_.back();
      events_.pop_back();
    }
  }
  if (event == nullptr) {
    const DriverStatus status = driver_->event_create(&event, kEventDisableTiming);
    if (status != kDriverSuccess) return failure(status, "cannot make an event");
  }
  auto made = std::make_shared<DevicePoint>(shared_from_this(), event);
  const DriverStatus status = driver_->event_record(event, as_stream(stream));
  if (status != kDriverSuccess) return failure(status, "cannot note the end of a stream");
  return made;
}

Result<bool> DeviceContext::captures(void* stream) const {
  const Current current(*this);
  int state = kCaptureNone;
  const DriverStatus status = driver_->stream_is_capturing(as_stream(stream), &state);
  if (status != kDriverSuccess) return failure(status, "cannot look at a stream");
  return state != kCaptureNone;
}

bool DeviceContext::busy(void* stream) const noexcept {
  const Current current(*this);
  return driver_->stream_query(as_stream(stream)) == kDriverNotReady;
}

bool DeviceContext::holds(const void* address) const noexcept {
  if (address == nullptr) return false;
  const Current current(*this);
  // The form for several attributes has an answer, 0, for memory that it has never heard of. The
  // one for a single attribute fails then, which tools that look for errors report.
  unsigned kind = 0;
  int attribute = kAttributeMemoryType;
  void* data = &kind;
  const DriverStatus status =
      driver_->pointer_attributes(1, &attribute, &data, as_address(address));
  // A context that has failed knows no address any more: then the copy says so, and nobody reads a
  // device's memory on the host.
  return status == kDriverSuccess ? kind == kMemoryOfDevice : status != kDriverInvalidValue;
}

Result<void> DeviceContext::copy(void* to, const void* from, std::size_t bytes,
                                 void* stream) const {
  if (bytes == 0) return {};
  const Current current(*this);
  return check(driver_->copy(as_address(to), as_address(from), bytes, as_stream(stream)),
               "cannot copy");
}

Result<void> DeviceContext::clear(void* memory, std::size_t bytes, void* stream) const {
  const Current current(*this);
  return check(driver_->set_bytes(as_address(memory), 0, bytes, as_stream(stream)),
               "cannot fill memory");
}

Result<DeviceIdentity> DeviceContext::uuid() const {
  DeviceIdentity bytes{};
  const DriverStatus status = driver_->device_uuid(bytes.data(), device_);
  if (status != kDriverSuccess) return failure(status, "cannot tell the identity");
  return bytes;
}

Result<Reach> DeviceContext::reach(const DeviceIdentity& other) const {
  int count = 0;
  DriverStatus status = driver_->device_count(&count);
  for (int index = 0; status == kDriverSuccess && index < count; ++index) {
    DriverDevice device = 0;
    DeviceIdentity identity{};
    status = driver_->device_get(&device, index);
    if (status == kDriverSuccess) status = driver_->device_uuid(identity.data(), device);
    if (status != kDriverSuccess || identity != other) continue;
    if (device == device_) return Reach::Same;
    int reaches = 0;
    status = driver_->device_reaches(&reaches, device_, device);
    if (status == kDriverSuccess) return reaches != 0 ? Reach::Direct : Reach::None;
  }
  if (status != kDriverSuccess) return failure(status, "cannot tell which devices are reached");
  return Reach::Hidden;
}

Result<int> DeviceContext::driver_version() const {
  int version = 0;
  const DriverStatus status = driver_->driver_version(&version);
  if (status != kDriverSuccess) return failure(status, "cannot tell the version of the driver");
  return version;
}

Result<std::unique_ptr<DeviceStream>> DeviceStream::open(std::shared_ptr<DeviceContext> device) {
  const DeviceContext::Current current(*device);
  DriverStream stream = nullptr;
  const DriverStatus status = device->driver().stream_create(&stream, kStreamNonBlocking);
  if (status != kDriverSuccess) return device->failure(status, "cannot make a stream");
  return std::make_unique<DeviceStream>(std::move(device), stream);
}

DeviceStream::~DeviceStream() {
  const DeviceContext::Current current(*device_);
  device_->driver().stream_destroy(stream_);
}

void leave_behind(std::shared_ptr<void> what) {
  static auto& mutex = *new Mutex;
  static auto& kept =
      *new std::vector<std::shared_ptr<void>>;  // never freed: drivers are gone by then
  const Lock lock(mutex);
  kept.push_back(std::move(what));
}

}  // namespace farandole
