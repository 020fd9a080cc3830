/// What a framework does on the fake device, for tests: a stream, memory, kernels.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "cluster.h"
#include "devices/devices.h"
#include "engine/engine.h"
#include "fake_cuda.h"

extern "C" int cuCtxSynchronize();  // of the fake driver

namespace farandole::testing {

inline constexpr const char* kFakeDriver = FARANDOLE_FAKES "/libcuda.so.1";

/// The device of one rank, as its framework uses it: a stream, and memory.
class Framework {
 public:
  explicit Framework(int index = 0) {
    auto driver = load_driver(kFakeDriver);
    EXPECT_TRUE(static_cast<bool>(driver));
    auto context = DeviceContext::open(*driver, index);
    EXPECT_TRUE(static_cast<bool>(context));
    context_ = *context;
    auto stream = DeviceStream::open(context_);
    EXPECT_TRUE(static_cast<bool>(stream));
    stream_ = std::move(*stream);
  }
  /// Nobody waits for a copy that an engine has given up, and it may read these tensors. A real
  /// driver waits for all of the device where memory is freed.
  ~Framework() {
    const DeviceContext::Current current(*context_);
    EXPECT_EQ(cuCtxSynchronize(), 0);
    for (const DriverAddress address : allocated_) context_->driver().release(address);
  }

  [[nodiscard]] DeviceContext& context() const { return *context_; }
  [[nodiscard]] void* stream() const { return stream_->get(); }
  [[nodiscard]] FakeCudaStream fake() const { return static_cast<FakeCudaStream>(stream()); }

  std::byte* allocate(std::size_t bytes) {
    const DeviceContext::Current current(*context_);
    DriverAddress address = 0;
    EXPECT_EQ(context_->driver().allocate(&address, std::max<std::size_t>(bytes, 1)), 0);
    allocated_.push_back(address);
    return reinterpret_cast<std::byte*>(address);
  }
  /// Writes them in the order of the stream.
  template <typename T>
  std::byte* tensor(const std::vector<T>& values) {
    std::byte* const address = allocate(values.size() * sizeof(T));
    EXPECT_TRUE(static_cast<bool>(
        context_->copy(address, values.data(), values.size() * sizeof(T), stream())));
    return address;
  }
  /// Reads in the order of the stream.
  template <typename T>
  std::vector<T> read(const void* address, std::size_t count) {
    std::vector<T> values(count);
    EXPECT_TRUE(
        static_cast<bool>(context_->copy(values.data(), address, count * sizeof(T), stream())));
    synchronize();
    return values;
  }
  /// A kernel that sets every byte.
  void fill(std::byte* memory, std::size_t bytes, unsigned char value) {
    const DeviceContext::Current current(*context_);
    EXPECT_EQ(fakeCudaFill(fake(), reinterpret_cast<FakeCudaAddress>(memory), bytes, value), 0);
  }
  /// A kernel that adds to every number.
  void add(FakeCudaAddress address, std::size_t count, float value) {
    const DeviceContext::Current current(*context_);
    EXPECT_EQ(fakeCudaAdd(fake(), address, count, value), 0);
  }
  void synchronize() {
    const DeviceContext::Current current(*context_);
    EXPECT_EQ(context_->driver().stream_synchronize(static_cast<DriverStream>(stream())), 0);
  }

 private:
  std::shared_ptr<DeviceContext> context_;
  std::unique_ptr<DeviceStream> stream_;
  std::vector<DriverAddress> allocated_;
};

inline EngineOptions with_fake_device() {
  EngineOptions base;
  base.device_driver = kFakeDriver;
  return base;
}

inline Tensor on_device(const Framework& framework, const std::byte* in, std::byte* out,
                        DType dtype, Shape shape) {
  return {.in = in,
          .out = out,
          .dtype = dtype,
          .shape = std::move(shape),
          .device = Device::Cuda,
          .device_index = framework.context().index(),
          .stream = framework.stream()};
}

/// Waits for its end, which is no error.
inline std::shared_ptr<Work> run(Engine& engine, Submission submission) {
  submission.mode = Mode::Awaited;
  auto handle = engine.submit(std::move(submission));
  EXPECT_TRUE(static_cast<bool>(handle)) << (handle ? "" : handle.error().what());
  if (!handle) return nullptr;
  auto work = finish(engine, *handle);
  EXPECT_FALSE(work->error.has_value()) << work->error->what();
  return work;
}

}  // namespace farandole::testing
