/// std::function<void()>, as libstdc++ lays it out and TensorFlow passes it around.
#pragma once

#include <cstddef>

namespace farandole::tf {

/// A copy of such a function. This object may be compiled with another C++ library, whose own
/// std::function differs: so its words are spelled out. They are those of every GCC since 4.
class LibstdcxxFunction {
 public:
  LibstdcxxFunction(const LibstdcxxFunction& other)
      : manager_(other.manager_), invoker_(other.invoker_) {
    if (manager_ != nullptr) manager_(&storage_, &other.storage_, Operation::kClone);
  }
  LibstdcxxFunction& operator=(const LibstdcxxFunction&) = delete;
  ~LibstdcxxFunction() {
    if (manager_ != nullptr) manager_(&storage_, &storage_, Operation::kDestroy);
  }

  /// What the words call; null in what is no such function, or an empty one.
  [[nodiscard]] const void* manager() const { return reinterpret_cast<const void*>(manager_); }
  [[nodiscard]] const void* invoker() const { return reinterpret_cast<const void*>(invoker_); }

 private:
  struct alignas(void*) Storage {
    std::byte bytes[2 * sizeof(void*)];
  };
  enum class Operation : unsigned { kTypeInfo, kAddress, kClone, kDestroy };

  Storage storage_{};
  bool (*manager_)(Storage* to, const Storage* from, Operation operation);
  void (*invoker_)(const Storage* storage);
};
static_assert(sizeof(LibstdcxxFunction) == 4 * sizeof(void*));

}  // namespace farandole::tf
