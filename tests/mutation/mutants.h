/// What an instrumented source calls at each place that can be mutated. The build is one; the
/// mutant is chosen when a process starts, by FARANDOLE_MUTANT=number (none: everything is as it
/// was written). FARANDOLE_MUTANTS_SEEN=file keeps which mutants were reached, and which of them
/// made a difference where they are: one that never does cannot be noticed by that test. The file
/// is shared memory, so that what a forked child reaches counts, and what a process reached before
/// it was killed.
#pragma once
#pragma GCC system_header  // nobody wants warnings of what is rewritten

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <type_traits>

namespace mutants {

inline constexpr unsigned char kReached = 1;
inline constexpr unsigned char kDiffered = 2;

inline int number_of(const char* text) noexcept { return text == nullptr ? 0 : std::atoi(text); }

inline unsigned char* map_seen(const char* path) noexcept {
  if (path == nullptr) return nullptr;
  const int file = ::open(path, O_RDWR | O_CLOEXEC);
  struct stat about{};
  if (file < 0 || ::fstat(file, &about) != 0) std::abort();
  void* const at = ::mmap(nullptr, static_cast<std::size_t>(about.st_size), PROT_READ | PROT_WRITE,
                          MAP_SHARED, file, 0);
  ::close(file);
  if (at == MAP_FAILED) std::abort();
  return static_cast<unsigned char*>(at);
}

// Before these are initialised they are zero: no mutant, nothing kept.
inline const int chosen = number_of(std::getenv("FARANDOLE_MUTANT"));
inline unsigned char* const seen = map_seen(std::getenv("FARANDOLE_MUTANTS_SEEN"));

/// True: mutant `number` is the chosen one. `differs`: it would make a difference here and now.
inline bool active(int number, bool differs) noexcept {
  if (seen != nullptr) [[unlikely]] {
    const unsigned char mark = differs ? kReached | kDiffered : kReached;
    if ((seen[number] & mark) != mark) seen[number] |= mark;
  }
  return chosen == number;
}

/// What the compiler evaluates stays as it was written.
#define MUTANTS_CONSTANT std::is_constant_evaluated()

#define MUTANTS_COMPARISON(name, op, first, second)         \
  template <typename A, typename B>                         \
  constexpr bool name(int number, const A& a, const B& b) { \
    const bool right = static_cast<bool>(a op b);           \
    if (MUTANTS_CONSTANT) return right;                     \
    bool result = right;                                    \
    const bool one = static_cast<bool>(a first b);          \
    if (active(number, one != right)) result = one;         \
    const bool two = static_cast<bool>(a second b);         \
    if (active(number + 1, two != right)) result = two;     \
    return result;                                          \
  }
MUTANTS_COMPARISON(less, <, <=, >=)
MUTANTS_COMPARISON(less_equal, <=, <, >)
MUTANTS_COMPARISON(greater, >, >=, <=)
MUTANTS_COMPARISON(greater_equal, >=, >, <)
#undef MUTANTS_COMPARISON

template <typename A, typename B>
constexpr bool equal(int number, const A& a, const B& b) {
  const bool right = static_cast<bool>(a == b);
  if (MUTANTS_CONSTANT) return right;
  return active(number, true) ? !right : right;
}

template <typename A, typename B>
constexpr bool not_equal(int number, const A& a, const B& b) {
  const bool right = static_cast<bool>(a != b);
  if (MUTANTS_CONSTANT) return right;
  return active(number, true) ? !right : right;
}

/// An operand of &&, which the mutant leaves out.
template <typename T>
constexpr bool conjunct(int number, const T& value) {
  const bool right = static_cast<bool>(value);
  if (MUTANTS_CONSTANT) return right;
  return active(number, !right) || right;
}

/// An operand of ||, which the mutant leaves out.
template <typename T>
constexpr bool disjunct(int number, const T& value) {
  const bool right = static_cast<bool>(value);
  if (MUTANTS_CONSTANT) return right;
  return !active(number, right) && right;
}

/// A condition, or a literal true or false; the mutant is its contrary.
template <typename T>
constexpr bool truth(int number, const T& value) {
  const bool right = static_cast<bool>(value);
  if (MUTANTS_CONSTANT) return right;
  return active(number, true) ? !right : right;
}

template <typename T>
constexpr bool negation(int number, const T& value) {
  return truth(number, !static_cast<bool>(value));
}

template <typename T>
inline constexpr bool is_duration = false;
template <typename Count, typename Period>
inline constexpr bool is_duration<std::chrono::duration<Count, Period>> = true;

/// A constant: one more and one less; of a time ten times as long and a tenth.
template <typename T>
constexpr T constant(int number, T value) {
  if (MUTANTS_CONSTANT) return value;
  const bool first = active(number, true);
  const bool second = active(number + 1, true);
  if constexpr (is_duration<T>) {
    return first ? T(value * 10) : second ? T(value / 10) : value;
  } else {
    return first    ? static_cast<T>(value + static_cast<T>(1))
           : second ? static_cast<T>(value - static_cast<T>(1))
                    : value;
  }
}

template <typename A, typename B>
constexpr auto plus(int number, const A& a, const B& b) {
  using T = decltype(a + b);
  if (MUTANTS_CONSTANT) return a + b;
  return active(number, b != B{}) ? static_cast<T>(a - b) : a + b;
}

template <typename A, typename B>
constexpr auto minus(int number, const A& a, const B& b) {
  using T = decltype(a - b);
  if (MUTANTS_CONSTANT) return a - b;
  return active(number, b != B{}) ? static_cast<T>(a + b) : a - b;
}

/// A statement, which the mutant leaves out.
constexpr bool kept(int number) {
  if (MUTANTS_CONSTANT) return true;
  return !active(number, true);
}

#undef MUTANTS_CONSTANT

}  // namespace mutants
