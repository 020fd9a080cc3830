/// Faults that tests ask for: which call of which function answers with which status.
///
/// Rules are separated by commas: FUNCTION:CALL:STATUS. CALL is the number of the call in this
/// process, from 1; "3+" is the third and all later ones, "*" is every call. A suffix of a version
/// ("_v2") may be left out.
///
///     cuMemHostAlloc:3:2,cuMemcpyAsync:*:719
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#if defined(__clang__)
#define FAKE_ANY_TYPES __attribute__((no_sanitize("function")))
#else
#define FAKE_ANY_TYPES
#endif

namespace farandole::fakes {

/// A function that counts its calls. Lives for ever.
class Function {
 public:
  explicit Function(std::string_view name);
  Function(const Function&) = delete;
  Function& operator=(const Function&) = delete;

  /// The number of this call. Orders nothing between threads that call.
  std::uint64_t call() noexcept { return calls_.fetch_add(1, std::memory_order_relaxed) + 1; }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }

  static void forget_all_calls() noexcept;
  [[nodiscard]] static std::uint64_t calls_of(std::string_view name) noexcept;

 private:
  std::string name_;
  std::atomic<std::uint64_t> calls_{0};
  Function* next_;
};

/// The text of a function's name as an argument of a template.
template <std::size_t N>
struct Name {
  consteval Name(const char (&text)[N]) {
    for (std::size_t i = 0; i < N; ++i) characters[i] = text[i];
  }
  char characters[N]{};
};

/// The one Function of that name in this library.
template <Name name>
Function& function() {
  static Function& only = *new Function(name.characters);
  return only;
}

/// Rules of one kind. Replacing them does not wait for those who read.
class Rules {
 public:
  /// `variable`: of the environment; a text that is no rule ends the process, so that no test
  /// passes because of a misspelt fault.
  explicit Rules(const char* variable);
  void replace(std::string_view text);
  /// The status of the rule for this call, if there is one. A rule without a status has 0.
  [[nodiscard]] std::optional<int> find(const Function& function,
                                        std::uint64_t call) const noexcept;

 private:
  struct Rule;
  struct List;
  std::atomic<const List*> rules_{nullptr};
};

/// A number of the environment, or the default. A text that is no number ends the process.
[[nodiscard]] long number_of_environment(const char* variable, long otherwise);

}  // namespace farandole::fakes
