/// Recycled memory: what is kept, what goes back, and what lies on huge pages.

#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "memory/host_pool.h"

namespace farandole {
namespace {

TEST(HostPool, memory_is_recycled_up_to_its_limit_and_outlives_the_pool) {
  auto pool = std::make_shared<HostPool>(std::size_t{1} << 20);
  std::byte* first = nullptr;
  {
    const HostBuffer buffer = pool->take(100'000);
    first = buffer.data();
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first) % 64, 0U);
  }
  HostBuffer again = pool->take(99'000);
  EXPECT_EQ(again.data(), first);
  EXPECT_NE(pool->take(99'000).data(), first);
  EXPECT_NE(pool->take(0).data(), nullptr);
  pool.reset();
  std::memset(again.data(), 1, 99'000);
}

TEST(HostPool, large_blocks_lie_on_huge_pages_and_are_recycled_too) {
  constexpr std::size_t kLarge = 9'000'000;
  auto pool = std::make_shared<HostPool>(std::size_t{64} << 20);
  std::byte* first = nullptr;
  {
    const HostBuffer buffer = pool->take(kLarge);
    first = buffer.data();
    ASSERT_NE(first, nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first) % (std::size_t{2} << 20), 0U);
    std::memset(first, 1, kLarge);
  }
  HostBuffer again = pool->take(kLarge - 1'000'000);
  EXPECT_EQ(again.data(), first);
  const HostBuffer beyond = pool->take(std::size_t{100} << 20);  // freed at the end, not kept
  ASSERT_NE(beyond.data(), nullptr);
  EXPECT_EQ(pool->take(std::size_t{1} << 62).data(), nullptr);
  pool.reset();
  std::memset(again.data(), 2, kLarge - 1'000'000);
}

TEST(HostPool, the_newest_block_stays_and_the_oldest_make_room) {
  constexpr std::size_t kKept = std::size_t{1} << 20;
  auto pool = std::make_shared<HostPool>(kKept);
  const auto taken_again = [&](std::size_t bytes, const std::byte* before) {
    return pool->take(bytes).data() == before;
  };
  const std::byte* const small = pool->take(100'000).data();
  const std::byte* const medium = pool->take(300'000).data();
  ASSERT_TRUE(taken_again(100'000, small));
  const std::byte* const large = pool->take(700'000).data();  // not beside both others
  EXPECT_TRUE(taken_again(700'000, large));
  EXPECT_TRUE(taken_again(100'000, small)) << "it was used after the one of 300'000 bytes";
  const std::byte* const whole = pool->take(kKept).data();
  EXPECT_TRUE(taken_again(kKept, whole)) << "for this one all others go";
  static_cast<void>(medium);
}

}  // namespace
}  // namespace farandole
