// Who wakes an operation that waits for its device: points of streams that the fake driver holds.

#include <atomic>
#include <memory>
#include <thread>

#include "backends/device_wait.h"
#include "devices/device_context.h"
#include "framework.h"
#include "patience.h"

namespace farandole::testing {
namespace {

using std::chrono::milliseconds;

class DeviceWaits : public ::testing::Test {
 protected:
  /// A stream whose work does not end until it is released, and the point where it will have.
  struct Held {
    explicit Held(int index) : framework(index) {
      fakeCudaHold(framework.fake());
      static_cast<void>(framework.tensor(std::vector<float>{1.0F}));
      auto made = framework.context().point(framework.stream());
      EXPECT_TRUE(static_cast<bool>(made));
      point = *made;
    }
    ~Held() { fakeCudaRelease(framework.fake()); }
    Framework framework;
    std::shared_ptr<const DevicePoint> point;
  };

  DeviceWaits() : devices_(kFakeDriver, [this] { ++rings_; }) {
    auto opened = devices_.at(Device::Cuda, 0);
    EXPECT_TRUE(static_cast<bool>(opened));
    device_ = *opened;
  }
  /// What the driver of an engine does between two looks: it comes back when it is told to.
  void until_rung(DeviceWait& wait, const std::shared_ptr<const DevicePoint>& point) {
    const auto deadline = Clock::now() + kPatience;
    do {
      ASSERT_LT(Clock::now(), deadline);
      ASSERT_TRUE(static_cast<bool>(wait.watch(*device_, point)));
      if (const auto due = wait.due()) std::this_thread::sleep_until(*due);
    } while (wait.due());
  }

  std::atomic<int> rings_{0};
  Devices devices_;
  std::shared_ptr<EngineDevice> device_;
};

TEST_F(DeviceWaits, AsksForARingOnlyAfterALook) {
  Held held(0);
  DeviceWait wait;
  EXPECT_FALSE(wait.due());
  ASSERT_TRUE(static_cast<bool>(wait.watch(*device_, held.point)));
  EXPECT_TRUE(wait.due()) << "nobody has been asked to ring yet";
  until_rung(wait, held.point);
  EXPECT_EQ(rings_, 0) << "the stream is held";
  fakeCudaRelease(held.framework.fake());
  EXPECT_TRUE(comes_true(Clock::now() + kPatience, [&] { return rings_ == 1; }));
}

TEST_F(DeviceWaits, ARingForOnePointIsNoneForTheNext) {
  Held first(0);
  Held second(0);
  DeviceWait wait;
  until_rung(wait, first.point);
  ASSERT_TRUE(static_cast<bool>(wait.watch(*device_, second.point)));
  EXPECT_TRUE(wait.due()) << "it would be slept through";
  until_rung(wait, second.point);
  fakeCudaRelease(first.framework.fake());
  fakeCudaRelease(second.framework.fake());
  EXPECT_TRUE(comes_true(Clock::now() + kPatience, [&] { return rings_ == 2; }));
}

TEST_F(DeviceWaits, GoesOnEachSliceWhileNothingElseIsWaitedFor) {
  Held held(0);
  DeviceWait wait;
  const auto begin = Clock::now();
  int advanced = 0;
  while (advanced < 2 && Clock::now() < begin + kPatience) {
    auto step = wait.wait(*device_, held.point);
    ASSERT_TRUE(static_cast<bool>(step));
    advanced += *step == Step::Advanced ? 1 : 0;
    ASSERT_TRUE(wait.due());
    std::this_thread::sleep_until(*wait.due());
  }
  EXPECT_EQ(advanced, 2);
  EXPECT_GT(Clock::now() - begin, milliseconds(300)) << "not at every look";
  wait.not_alone();
  EXPECT_FALSE(wait.due()) << "the ring is asked for, and peers are waited for";
}

}  // namespace
}  // namespace farandole::testing
