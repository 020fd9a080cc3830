// The driver that other tests use instead of one: what it orders, what it refuses, what it counts.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "devices/driver.h"
#include "fake_cuda.h"
#include "fake_driver.h"
#include "patience.h"
#include "run_again.h"

namespace farandole {
namespace {

using testing::driver;
using testing::end_of_child;
using testing::kRan;
using testing::library;
using testing::run_again;
using testing::symbol;

constexpr DriverStatus kInvalidContext = 201;
constexpr std::size_t kBytes = 4096;
constexpr unsigned char kStale = 0xCD;

/// Device 0 is current, and nothing is left of earlier tests.
class FakeCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(driver().init(0), kDriverSuccess);
    ASSERT_EQ(driver().device_get(&device_, 0), kDriverSuccess);
    ASSERT_EQ(driver().primary_retain(&context_, device_), kDriverSuccess);
    ASSERT_EQ(driver().context_push(context_), kDriverSuccess);
    ASSERT_EQ(driver().stream_create(&stream_, kStreamNonBlocking), kDriverSuccess);
  }
  void TearDown() override {
    fakeCudaFail("");
    fakeCudaDelay(200);
    fakeCudaRelease(stream_);
    ASSERT_EQ(driver().context_pop(nullptr), kDriverSuccess);
    ASSERT_EQ(driver().primary_release(device_), kDriverSuccess);
    FakeCudaCounters left;
    fakeCudaCount(&left);
    EXPECT_EQ(left.allocations + left.pinned + left.streams + left.events, 0U);
  }

  static DriverAddress allocate(std::size_t bytes = kBytes) {
    DriverAddress address = 0;
    EXPECT_EQ(driver().allocate(&address, bytes), kDriverSuccess);
    return address;
  }
  static unsigned char* allocate_pinned(std::size_t bytes = kBytes) {
    void* memory = nullptr;
    EXPECT_EQ(driver().allocate_host(&memory, bytes, kHostPortable), kDriverSuccess);
    return static_cast<unsigned char*>(memory);
  }
  static DriverEvent make_event() {
    DriverEvent event = nullptr;
    EXPECT_EQ(driver().event_create(&event, kEventDisableTiming), kDriverSuccess);
    return event;
  }
  static DriverStream make_stream(unsigned flags = kStreamNonBlocking) {
    DriverStream stream = nullptr;
    EXPECT_EQ(driver().stream_create(&stream, flags), kDriverSuccess);
    return stream;
  }
  static DriverStatus attribute_of(void* data, int attribute, DriverAddress address) {
    return driver().pointer_attributes(1, &attribute, &data, address);
  }
  static DriverAddress address_of(const void* memory) {
    return reinterpret_cast<DriverAddress>(memory);
  }
  static bool all_are(const void* bytes, unsigned char value, std::size_t count = kBytes) {
    const auto* first = static_cast<const unsigned char*>(bytes);
    return std::all_of(first, first + count, [&](unsigned char byte) { return byte == value; });
  }

  DriverDevice device_ = -1;
  DriverContext context_ = nullptr;
  DriverStream stream_ = nullptr;  ///< non-blocking
};

TEST(FakeCudaLibrary, HasEveryFunctionOfTheTable) {
  ASSERT_NE(library(), nullptr) << ::dlerror();
#define FARANDOLE_EXPECT(name, text, arguments) \
  EXPECT_NE(::dlsym(library(), text), nullptr) << text;
  FARANDOLE_DRIVER_FUNCTIONS(FARANDOLE_EXPECT)
#undef FARANDOLE_EXPECT
  EXPECT_EQ(::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), library());
}

TEST_F(FakeCuda, NeedsAContext) {
  ASSERT_EQ(driver().context_pop(nullptr), kDriverSuccess);
  DriverAddress address = 0;
  DriverStream stream = nullptr;
  DriverEvent event = nullptr;
  EXPECT_EQ(driver().allocate(&address, kBytes), kInvalidContext);
  EXPECT_EQ(driver().stream_create(&stream, 0), kInvalidContext);
  EXPECT_EQ(driver().event_create(&event, 0), kInvalidContext);
  EXPECT_EQ(driver().stream_synchronize(stream_), kInvalidContext);
  EXPECT_EQ(driver().context_pop(nullptr), kInvalidContext);
  DriverStatus elsewhere = kDriverSuccess;
  ASSERT_EQ(driver().context_push(context_), kDriverSuccess);
  std::thread([&] { elsewhere = driver().stream_synchronize(stream_); }).join();
  EXPECT_EQ(elsewhere, kInvalidContext) << "the stack is that of the thread";
}

TEST_F(FakeCuda, RefusesHandlesThatWereDestroyed) {
  const DriverEvent event = make_event();
  EXPECT_EQ(driver().event_record(event, stream_), kDriverSuccess);
  EXPECT_EQ(driver().event_destroy(event), kDriverSuccess);
  EXPECT_EQ(driver().event_query(event), kDriverInvalidHandle);
  EXPECT_EQ(driver().event_destroy(event), kDriverInvalidHandle);
  const DriverStream other = make_stream();
  EXPECT_EQ(driver().stream_destroy(other), kDriverSuccess);
  EXPECT_EQ(driver().stream_synchronize(other), kDriverInvalidHandle);
  EXPECT_EQ(driver().stream_destroy(other), kDriverInvalidHandle);
}

TEST_F(FakeCuda, TheLastReleaseEndsEverything) {
  DriverContext same = nullptr;
  ASSERT_EQ(driver().primary_retain(&same, device_), kDriverSuccess);
  EXPECT_EQ(same, context_);
  const DriverAddress address = allocate();
  ASSERT_EQ(driver().primary_release(device_), kDriverSuccess);
  EXPECT_NE(fakeCudaHostAddress(address), nullptr) << "somebody still holds the context";
  ASSERT_EQ(driver().primary_release(device_), kDriverSuccess);
  EXPECT_EQ(fakeCudaHostAddress(address), nullptr);
  EXPECT_EQ(driver().stream_synchronize(stream_), 709);
  EXPECT_EQ(driver().primary_release(device_), kInvalidContext);
  ASSERT_EQ(driver().primary_retain(&context_, device_), kDriverSuccess);
  EXPECT_EQ(driver().stream_synchronize(stream_), kDriverInvalidHandle) << "it ended with the rest";
}

TEST_F(FakeCuda, NewMemoryIsStaleAndOutOfReach) {
  const DriverAddress address = allocate();
  EXPECT_TRUE(all_are(fakeCudaHostAddress(address), kStale));
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    std::signal(SIGSEGV, SIG_DFL);
    // Not seen by a sanitizer, which would report in its own way.
    asm volatile("movb (%0), %%al" : : "r"(address) : "al", "memory");
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
}

TEST_F(FakeCuda, CopiesOfPinnedMemoryAreLate) {
  const DriverAddress device = allocate();
  unsigned char* source = allocate_pinned();
  unsigned char* target = allocate_pinned();
  std::memset(source, 7, kBytes);
  const DriverEvent event = make_event();
  fakeCudaHold(stream_);
  ASSERT_EQ(driver().copy(device, address_of(source), kBytes, stream_), kDriverSuccess);
  ASSERT_EQ(driver().copy(address_of(target), device, kBytes, stream_), kDriverSuccess);
  ASSERT_EQ(driver().event_record(event, stream_), kDriverSuccess);
  EXPECT_EQ(driver().event_query(event), kDriverNotReady);
  EXPECT_TRUE(all_are(target, kStale));
  std::memset(source, 8, kBytes);  // what reuse of a buffer before its copy does
  fakeCudaRelease(stream_);
  ASSERT_EQ(driver().event_synchronize(event), kDriverSuccess);
  EXPECT_EQ(driver().event_query(event), kDriverSuccess);
  EXPECT_TRUE(all_are(target, 8));
}

TEST_F(FakeCuda, PageableMemoryIsStagedOnTheWayToADevice) {
  const DriverAddress device = allocate();
  std::vector<unsigned char> source(kBytes, 7);
  std::vector<unsigned char> target(kBytes, 0);
  fakeCudaHold(stream_);
  ASSERT_EQ(driver().copy(device, address_of(source.data()), kBytes, stream_), kDriverSuccess);
  std::ranges::fill(source, static_cast<unsigned char>(9));
  fakeCudaRelease(stream_);
  ASSERT_EQ(driver().copy(address_of(target.data()), device, kBytes, stream_), kDriverSuccess);
  EXPECT_TRUE(all_are(target.data(), 7)) << "to the host the call waits";
  FakeCudaCounters counters;
  fakeCudaCount(&counters);
  EXPECT_GE(counters.pageable, 2U);
}

TEST_F(FakeCuda, RegisteredMemoryIsPinned) {
  const auto enlist = symbol<DriverStatus(void*, std::size_t, unsigned)>("cuMemHostRegister_v2");
  const auto strike = symbol<DriverStatus(void*)>("cuMemHostUnregister");
  std::vector<unsigned char> memory(kBytes, 1);
  unsigned type = 0;
  EXPECT_EQ(attribute_of(&type, kAttributeMemoryType, address_of(memory.data())), kDriverSuccess);
  EXPECT_EQ(type, 0U) << "nobody knows it";
  ASSERT_EQ(enlist(memory.data(), kBytes, 0), kDriverSuccess);
  EXPECT_EQ(enlist(memory.data() + 1, 1, 0), 712);
  EXPECT_EQ(attribute_of(&type, kAttributeMemoryType, address_of(&memory[5])), kDriverSuccess);
  EXPECT_EQ(type, 1U);
  const DriverAddress device = allocate();
  fakeCudaHold(stream_);
  ASSERT_EQ(driver().copy(address_of(memory.data()), device, kBytes, stream_), kDriverSuccess);
  EXPECT_EQ(memory[0], 1);
  fakeCudaRelease(stream_);
  ASSERT_EQ(driver().stream_synchronize(stream_), kDriverSuccess);
  EXPECT_TRUE(all_are(memory.data(), kStale));
  ASSERT_EQ(strike(memory.data()), kDriverSuccess);
  EXPECT_EQ(strike(memory.data()), 713);
}

TEST_F(FakeCuda, EventsOrderStreams) {
  const DriverAddress device = allocate();
  const DriverStream other = make_stream();
  const DriverEvent event = make_event();
  unsigned char* target = allocate_pinned();
  fakeCudaHold(stream_);
  ASSERT_EQ(driver().set_bytes(device, 3, kBytes, stream_), kDriverSuccess);
  ASSERT_EQ(driver().event_record(event, stream_), kDriverSuccess);
  ASSERT_EQ(driver().stream_wait_event(other, event, 0), kDriverSuccess);
  ASSERT_EQ(driver().copy(address_of(target), device, kBytes, other), kDriverSuccess);
  // Recorded anew: who waits already still waits for the older place.
  ASSERT_EQ(driver().event_record(event, other), kDriverSuccess);
  EXPECT_EQ(driver().event_query(event), kDriverNotReady);
  fakeCudaRelease(stream_);
  ASSERT_EQ(driver().event_synchronize(event), kDriverSuccess);
  EXPECT_TRUE(all_are(target, 3));
}

TEST_F(FakeCuda, WithoutAnEventStreamsAreOutOfStep) {
  const DriverStream other = make_stream();
  fakeCudaHold(stream_);
  std::atomic<int> ran{0};
  const auto count = [](void* number) { ++*static_cast<std::atomic<int>*>(number); };
  ASSERT_EQ(driver().launch_host(stream_, count, &ran), kDriverSuccess);
  ASSERT_EQ(driver().stream_synchronize(other), kDriverSuccess);
  EXPECT_EQ(ran, 0);
  fakeCudaRelease(stream_);
  ASSERT_EQ(driver().stream_synchronize(stream_), kDriverSuccess);
  EXPECT_EQ(ran, 1);
}

TEST_F(FakeCuda, AnEventThatWasNeverRecordedIsDone) {
  const DriverEvent event = make_event();
  EXPECT_EQ(driver().event_query(event), kDriverSuccess);
  EXPECT_EQ(driver().event_synchronize(event), kDriverSuccess);
  EXPECT_EQ(driver().stream_wait_event(stream_, event, 0), kDriverSuccess);
  EXPECT_EQ(driver().stream_synchronize(stream_), kDriverSuccess);
}

TEST_F(FakeCuda, TheNullStreamWaitsForBlockingStreamsAndTheyForIt) {
  const DriverStream blocking = make_stream(0);
  const DriverAddress device = allocate();
  unsigned char* target = allocate_pinned();
  fakeCudaHold(blocking);
  ASSERT_EQ(driver().set_bytes(device, 1, kBytes, blocking), kDriverSuccess);
  ASSERT_EQ(driver().copy(address_of(target), device, kBytes, nullptr), kDriverSuccess);
  ASSERT_EQ(driver().set_bytes(device, 2, kBytes, blocking), kDriverSuccess);
  ASSERT_EQ(driver().stream_synchronize(stream_), kDriverSuccess) << "no part of it";
  EXPECT_TRUE(all_are(target, kStale));
  fakeCudaRelease(blocking);
  ASSERT_EQ(driver().stream_synchronize(blocking), kDriverSuccess);
  EXPECT_TRUE(all_are(target, 1));
  EXPECT_TRUE(all_are(fakeCudaHostAddress(device), 2));
  EXPECT_EQ(symbol<DriverStatus(DriverStream)>("cuStreamQuery")(nullptr), kDriverSuccess);
}

TEST_F(FakeCuda, AfterSynchronizeAStreamIsIdle) {
  const auto query = symbol<DriverStatus(DriverStream)>("cuStreamQuery");
  fakeCudaDelay(0);
  const DriverAddress device = allocate();
  for (int i = 0; i < 200; ++i) {
    for (const DriverStream stream : {stream_, DriverStream{}}) {
      ASSERT_EQ(driver().set_bytes(device, 1, 8, stream), kDriverSuccess);
      ASSERT_EQ(driver().stream_synchronize(stream), kDriverSuccess);
      ASSERT_EQ(query(stream), kDriverSuccess);
    }
  }
}

/// What is waited for on a stream that another thread destroys meanwhile comes, or never will.
TEST_F(FakeCuda, WaitsForADeviceWhoseStreamsComeAndGo) {
  const auto synchronize = symbol<int()>("cuCtxSynchronize");
  std::atomic<bool> over{false};
  fakeCudaDelay(0);
  std::vector<std::thread> others(4);
  for (auto& other : others) {
    other = std::thread([&] {
      EXPECT_EQ(driver().context_push(context_), kDriverSuccess);
      while (!over) {
        const DriverStream stream = make_stream();
        EXPECT_EQ(driver().stream_synchronize(stream), kDriverSuccess);
        EXPECT_EQ(driver().stream_destroy(stream), kDriverSuccess);
      }
      EXPECT_EQ(driver().context_pop(nullptr), kDriverSuccess);
    });
  }
  for (int i = 0; i < 2000; ++i) EXPECT_EQ(synchronize(), kDriverSuccess);
  over = true;
  for (auto& other : others) other.join();
}

TEST_F(FakeCuda, CommandsOfOneStreamRunInOrder) {
  fakeCudaDelay(20);
  std::vector<int> order;
  struct Step {
    std::vector<int>* order;
    int number;
  };
  std::vector<Step> steps;
  for (int i = 0; i < 200; ++i) steps.push_back({&order, i});
  for (Step& step : steps) {
    const auto note = [](void* argument) {
      const auto* one = static_cast<Step*>(argument);
      one->order->push_back(one->number);
    };
    ASSERT_EQ(driver().launch_host(stream_, note, &step), kDriverSuccess);
  }
  ASSERT_EQ(driver().stream_synchronize(stream_), kDriverSuccess);
  ASSERT_EQ(order.size(), steps.size());
  EXPECT_TRUE(std::ranges::is_sorted(order));
}

TEST_F(FakeCuda, HostFunctionsMayNotCallTheDriver) {
  DriverStatus inside = kDriverSuccess;
  const auto call = [](void* status) {
    *static_cast<DriverStatus*>(status) = driver().driver_version(nullptr);
  };
  ASSERT_EQ(driver().launch_host(stream_, call, &inside), kDriverSuccess);
  ASSERT_EQ(driver().stream_synchronize(stream_), kDriverSuccess);
  EXPECT_EQ(inside, 800);
}

TEST_F(FakeCuda, AStaleAddressBreaksTheContext) {
  const DriverAddress device = allocate();
  const DriverAddress other = allocate();
  void* content = fakeCudaHostAddress(device);
  ASSERT_EQ(driver().set_bytes(device, 1, kBytes, stream_), kDriverSuccess);
  ASSERT_EQ(driver().stream_synchronize(stream_), kDriverSuccess);
  ASSERT_EQ(driver().release(device), kDriverSuccess);
  EXPECT_TRUE(all_are(content, kStale)) << "of memory that was freed just now";
  EXPECT_EQ(driver().copy(other, device, 1, stream_), kDriverInvalidValue);
  EXPECT_EQ(driver().stream_synchronize(stream_), kDriverInvalidValue) << "it stays broken";
  fakeCudaBreak(0, 0);
  EXPECT_EQ(driver().release(device), kDriverInvalidValue);
  fakeCudaBreak(0, 0);
  EXPECT_EQ(driver().set_bytes(other + kBytes - 1, 0, 2, stream_), kDriverInvalidValue)
      << "past it";
  fakeCudaBreak(0, 0);
}

TEST_F(FakeCuda, MemoryThatIsFreedTooEarlyBreaksTheContext) {
  const DriverAddress device = allocate();
  fakeCudaHold(stream_);
  ASSERT_EQ(driver().set_bytes(device, 1, kBytes, stream_), kDriverSuccess);
  ASSERT_EQ(driver().release(device), kDriverSuccess);
  fakeCudaRelease(stream_);
  EXPECT_EQ(driver().stream_synchronize(stream_), 700);
  fakeCudaBreak(0, 0);
}

TEST_F(FakeCuda, ABrokenContextRunsNothing) {
  const DriverAddress device = allocate();
  std::atomic<int> ran{0};
  const auto count = [](void* number) { ++*static_cast<std::atomic<int>*>(number); };
  fakeCudaHold(stream_);
  ASSERT_EQ(fakeCudaFill(stream_, device, kBytes, 5), kDriverSuccess);
  ASSERT_EQ(driver().launch_host(stream_, count, &ran), kDriverSuccess);
  std::promise<void> passed;
  const auto pass = [](void* promise) { static_cast<std::promise<void>*>(promise)->set_value(); };
  ASSERT_EQ(fakeCudaRun(stream_, pass, &passed), kDriverSuccess);
  fakeCudaBreak(0, 719);
  fakeCudaRelease(stream_);
  EXPECT_EQ(driver().stream_synchronize(stream_), 719);
  ASSERT_EQ(passed.get_future().wait_for(testing::kPatience), std::future_status::ready);
  fakeCudaBreak(0, 0);
  ASSERT_EQ(driver().stream_synchronize(stream_), kDriverSuccess);
  EXPECT_EQ(ran, 0);
  EXPECT_TRUE(all_are(fakeCudaHostAddress(device), kStale));
}

TEST_F(FakeCuda, FaultsComeWithTheCallThatWasNamed) {
  fakeCudaFail("cuMemHostAlloc:2:2,cuStreamCreate:3+:999,cuMemcpyAsync:*:719");
  void* memory = nullptr;
  EXPECT_EQ(driver().allocate_host(&memory, 8, 0), kDriverSuccess);
  EXPECT_EQ(driver().allocate_host(&memory, 8, 0), kDriverOutOfMemory);
  EXPECT_EQ(driver().allocate_host(&memory, 8, 0), kDriverSuccess);
  EXPECT_EQ(fakeCudaCalls("cuMemHostAlloc"), 3U);
  const std::array expected{0, 0, 999, 999};
  for (const DriverStatus status : expected) {
    DriverStream stream = nullptr;
    EXPECT_EQ(driver().stream_create(&stream, 0), status);
  }
  const DriverAddress device = allocate();
  EXPECT_EQ(driver().copy(device, device, 1, stream_), 719);
  EXPECT_EQ(driver().stream_synchronize(stream_), 719) << "a failed launch breaks the context";
  fakeCudaBreak(0, 0);
}

TEST_F(FakeCuda, AMisspeltFaultEndsTheProcess) {
  EXPECT_DEATH(fakeCudaFail("cuMemHostAlloc"), "FUNCTION:CALL:STATUS");
  EXPECT_DEATH(fakeCudaFail("cuMemHostAlloc:x:2"), "FUNCTION:CALL:STATUS");
}

TEST_F(FakeCuda, ACaptureIsSeenAndRefused) {
  int state = -1;
  ASSERT_EQ(driver().stream_is_capturing(stream_, &state), kDriverSuccess);
  EXPECT_EQ(state, 0);
  fakeCudaBeginCapture(stream_);
  ASSERT_EQ(driver().stream_is_capturing(stream_, &state), kDriverSuccess);
  EXPECT_EQ(state, 1);
  EXPECT_EQ(driver().stream_synchronize(stream_), 900);
  fakeCudaEndCapture(stream_);
  EXPECT_EQ(driver().stream_synchronize(stream_), kDriverSuccess);
}

TEST_F(FakeCuda, AddressesAreToldApart) {
  const DriverAddress device = allocate();
  const auto pinned = address_of(allocate_pinned());
  int ordinal = -1;
  unsigned type = 0;
  EXPECT_EQ(attribute_of(&type, kAttributeMemoryType, device + 9), kDriverSuccess);
  EXPECT_EQ(type, kMemoryOfDevice);
  EXPECT_EQ(attribute_of(&ordinal, kAttributeOrdinal, device), kDriverSuccess);
  EXPECT_EQ(ordinal, 0);
  EXPECT_EQ(attribute_of(&type, kAttributeMemoryType, pinned), kDriverSuccess);
  EXPECT_EQ(type, 1U);
  EXPECT_EQ(attribute_of(&type, kAttributeMemoryType, address_of(&type)), kDriverSuccess);
  EXPECT_EQ(type, 0U);
  const auto alone = symbol<DriverStatus(void*, int, DriverAddress)>("cuPointerGetAttribute");
  EXPECT_EQ(alone(&type, kAttributeMemoryType, address_of(&type)), kDriverInvalidValue);
  EXPECT_EQ(driver().stream_synchronize(stream_), kDriverSuccess) << "to ask breaks nothing";
}

TEST_F(FakeCuda, KernelsRunInOrderOfTheStream) {
  const DriverAddress device = allocate(100 * sizeof(float));
  ASSERT_EQ(fakeCudaFill(stream_, device, 100 * sizeof(float), 0), kDriverSuccess);
  ASSERT_EQ(fakeCudaAdd(stream_, device, 100, 1.5F), kDriverSuccess);
  ASSERT_EQ(fakeCudaAdd(stream_, device, 99, 2.0F), kDriverSuccess);
  std::vector<float> numbers(100);
  ASSERT_EQ(driver().copy(address_of(numbers.data()), device, 100 * sizeof(float), stream_),
            kDriverSuccess);
  EXPECT_EQ(numbers[98], 3.5F);
  EXPECT_EQ(numbers[99], 1.5F);
}

TEST_F(FakeCuda, CountsWhatLives) {
  FakeCudaCounters before;
  fakeCudaCount(&before);
  const DriverAddress device = allocate(100);
  unsigned char* pinned = allocate_pinned(50);
  ASSERT_EQ(driver().copy(device, address_of(pinned), 30, stream_), kDriverSuccess);
  const DriverEvent event = make_event();
  FakeCudaCounters after;
  fakeCudaCount(&after);
  EXPECT_EQ(after.allocations, 1U);
  EXPECT_EQ(after.allocated_bytes, 100U);
  EXPECT_EQ(after.pinned, 1U);
  EXPECT_EQ(after.pinned_bytes, 50U);
  EXPECT_EQ(after.streams, 1U);
  EXPECT_EQ(after.events, 1U);
  EXPECT_EQ(after.host_to_device - before.host_to_device, 1U);
  EXPECT_EQ(after.host_to_device_bytes - before.host_to_device_bytes, 30U);
  ASSERT_EQ(driver().stream_synchronize(stream_), kDriverSuccess);
  ASSERT_EQ(driver().release(device), kDriverSuccess);
  ASSERT_EQ(driver().release_host(pinned), kDriverSuccess);
  ASSERT_EQ(driver().event_destroy(event), kDriverSuccess);
  fakeCudaCount(&after);
  EXPECT_EQ(after.allocations + after.pinned + after.events, 0U);
}

TEST_F(FakeCuda, AForkedChildMustNotUseIt) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    int count = 0;
    ::_exit(driver().device_count(&count));
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 3);
}

// ------------------------------------------------------------------------------ another process

struct Handle {
  std::array<unsigned char, 64> bytes{};
};

/// Reads what the parent wrote and answers in the same memory.
TEST_F(FakeCuda, DISABLED_ChildOpensAHandle) {
  const auto open = symbol<DriverStatus(DriverAddress*, Handle, unsigned)>("cuIpcOpenMemHandle_v2");
  const auto close = symbol<DriverStatus(DriverAddress)>("cuIpcCloseMemHandle");
  const std::string text = std::getenv("TEST_HANDLE");
  Handle handle;
  for (std::size_t i = 0; i < handle.bytes.size(); ++i) {
    handle.bytes[i] = static_cast<unsigned char>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  }
  DriverAddress address = 0;
  ASSERT_EQ(open(&address, handle, 1), kDriverSuccess);
  ASSERT_TRUE(all_are(fakeCudaHostAddress(address), 42));
  ASSERT_EQ(driver().set_bytes(address, 43, kBytes, stream_), kDriverSuccess);
  ASSERT_EQ(driver().stream_synchronize(stream_), kDriverSuccess);
  ASSERT_EQ(close(address), kDriverSuccess);
  ASSERT_EQ(fakeCudaHostAddress(address), nullptr);
  end_of_child();
}

TEST_F(FakeCuda, MemoryIsSharedBetweenProcesses) {
  const auto share = symbol<DriverStatus(Handle*, DriverAddress)>("cuIpcGetMemHandle");
  const auto open = symbol<DriverStatus(DriverAddress*, Handle, unsigned)>("cuIpcOpenMemHandle_v2");
  const DriverAddress device = allocate();
  ASSERT_EQ(driver().set_bytes(device, 42, kBytes, stream_), kDriverSuccess);
  ASSERT_EQ(driver().stream_synchronize(stream_), kDriverSuccess);
  Handle handle;
  ASSERT_EQ(share(&handle, device + 1), kDriverSuccess);
  DriverAddress here = 0;
  EXPECT_EQ(open(&here, handle, 1), kInvalidContext) << "its own memory needs no handle";
  std::string text;
  for (const unsigned char byte : handle.bytes) {
    std::array<char, 3> digits{};
    std::snprintf(digits.data(), digits.size(), "%02x", byte);
    text += digits.data();
  }
  EXPECT_EQ(run_again("FakeCuda.DISABLED_ChildOpensAHandle", {"TEST_HANDLE=" + text}), kRan);
  EXPECT_TRUE(all_are(fakeCudaHostAddress(device), 43));
}

#if defined(FARANDOLE_THREAD_SANITIZED)
/// What a program answers that the thread sanitizer has ended.
constexpr int kRace = 66;

TEST_F(FakeCuda, DISABLED_ChildReadsBeforeTheEvent) {
  const DriverAddress device = allocate();
  unsigned char* pinned = allocate_pinned();
  ASSERT_EQ(driver().set_bytes(device, 1, kBytes, stream_), kDriverSuccess);
  ASSERT_EQ(driver().copy(address_of(pinned), device, kBytes, stream_), kDriverSuccess);
  const volatile unsigned char* byte = pinned;
  while (*byte == kStale) std::this_thread::yield();
  end_of_child();
}

TEST_F(FakeCuda, DISABLED_ChildForgetsTheEventBetweenStreams) {
  const DriverAddress device = allocate();
  const DriverStream other = make_stream();
  // The sanitizer may overlook two that write at the very same moment: not so often.
  for (int i = 0; i < 50; ++i) {
    ASSERT_EQ(driver().set_bytes(device, 1, kBytes, stream_), kDriverSuccess);
    ASSERT_EQ(driver().set_bytes(device, 2, kBytes, other), kDriverSuccess);
  }
  ASSERT_EQ(driver().stream_synchronize(stream_), kDriverSuccess);
  ASSERT_EQ(driver().stream_synchronize(other), kDriverSuccess);
  end_of_child();
}

TEST(FakeCudaRaces, AreSeenByTheThreadSanitizer) {
  EXPECT_EQ(run_again("FakeCuda.DISABLED_ChildReadsBeforeTheEvent", {}), kRace);
  EXPECT_EQ(run_again("FakeCuda.DISABLED_ChildForgetsTheEventBetweenStreams", {}), kRace);
}
#endif

TEST(FakeCudaEnvironment, DISABLED_ChildWithoutADevice) {
  EXPECT_EQ(driver().init(0), kDriverNoDevice);
  int count = 0;
  EXPECT_EQ(driver().device_count(&count), 3) << "it could not start";
  end_of_child();
}

TEST(FakeCudaEnvironment, DISABLED_ChildThatSeesThirdAndFirst) {
  const auto bus = symbol<DriverStatus(char*, int, DriverDevice)>("cuDeviceGetPCIBusId");
  ASSERT_EQ(driver().init(0), kDriverSuccess);
  int count = 0;
  ASSERT_EQ(driver().device_count(&count), kDriverSuccess);
  EXPECT_EQ(count, 2);
  std::array<char, 16> text{};
  ASSERT_EQ(bus(text.data(), static_cast<int>(text.size()), 0), kDriverSuccess);
  EXPECT_STREQ(text.data(), "0000:12:00.0");
  ASSERT_EQ(bus(text.data(), static_cast<int>(text.size()), 1), kDriverSuccess);
  EXPECT_STREQ(text.data(), "0000:10:00.0");
  int version = 0;
  ASSERT_EQ(driver().driver_version(&version), kDriverSuccess);
  EXPECT_EQ(version, 11080);
  DriverContext context = nullptr;
  ASSERT_EQ(driver().primary_retain(&context, 1), kDriverSuccess);
  ASSERT_EQ(driver().context_push(context), kDriverSuccess);
  DriverAddress address = 0;
  EXPECT_EQ(driver().allocate(&address, 3U << 20U), kDriverSuccess);
  EXPECT_EQ(driver().allocate(&address, 2U << 20U), kDriverOutOfMemory);
  EXPECT_EQ(driver().allocate(&address, 1U << 20U), 304) << "the third call";
  end_of_child();
}

TEST(FakeCudaEnvironment, IsObeyed) {
  EXPECT_EQ(run_again("FakeCudaEnvironment.DISABLED_ChildWithoutADevice", {"FAKE_CUDA_DEVICES=0"}),
            kRan);
  EXPECT_EQ(
      run_again("FakeCudaEnvironment.DISABLED_ChildWithoutADevice", {"CUDA_VISIBLE_DEVICES="}),
      kRan);
  EXPECT_EQ(
      run_again("FakeCudaEnvironment.DISABLED_ChildThatSeesThirdAndFirst",
                {"FAKE_CUDA_DEVICES=4", "CUDA_VISIBLE_DEVICES=2,0,7,1", "FAKE_CUDA_VERSION=11080",
                 "FAKE_CUDA_MEMORY_MB=4", "FAKE_CUDA_FAIL=cuMemAlloc:3:304"}),
      kRan);
}

}  // namespace
}  // namespace farandole
