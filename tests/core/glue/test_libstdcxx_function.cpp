#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>

#include "glue/libstdcxx_function.h"

#ifdef __GLIBCXX__  // what it is compared with

namespace farandole::tf {
namespace {

using Function = std::function<void()>;

const LibstdcxxFunction& words_of(const Function& function) {
  return reinterpret_cast<const LibstdcxxFunction&>(function);
}

Function& function_of(LibstdcxxFunction& words) { return reinterpret_cast<Function&>(words); }

TEST(LibstdcxxFunction, CopyOutlivesTheOriginalAndLetsGoOfWhatItHolds) {
  const auto count = std::make_shared<int>(0);
  std::optional<Function> original([count] { ++*count; });
  std::optional<LibstdcxxFunction> copy(words_of(*original));
  EXPECT_EQ(count.use_count(), 3);
  original.reset();
  EXPECT_EQ(count.use_count(), 2);
  function_of (*copy)();
  EXPECT_EQ(*count, 1);
  copy.reset();
  EXPECT_EQ(count.use_count(), 1);
}

TEST(LibstdcxxFunction, KeepsWhatIsTooBigForItsWords) {
  struct {
    int* to;
    int values[20];
  } big{.to = nullptr, .values = {}};
  int result = 0;
  big.to = &result;
  big.values[19] = 7;
  std::optional<Function> original([big] { *big.to = big.values[19]; });
  LibstdcxxFunction copy(words_of(*original));
  original.reset();
  function_of(copy)();
  EXPECT_EQ(result, 7);
}

TEST(LibstdcxxFunction, EmptyOneHasNobodyToCall) {
  const Function empty;
  const LibstdcxxFunction copy(words_of(empty));
  EXPECT_EQ(copy.manager(), nullptr);
  EXPECT_NE(words_of(Function([] {})).manager(), nullptr);
  EXPECT_NE(words_of(Function([] {})).invoker(), nullptr);
}

}  // namespace
}  // namespace farandole::tf

#endif
