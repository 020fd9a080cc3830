#include "faults.h"

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace farandole::fakes {
namespace {

std::atomic<Function*> newest_function{nullptr};

[[noreturn]] void refuse(std::string_view text) {
  std::fprintf(stderr, "fakes: '%.*s' is not FUNCTION:CALL:STATUS, as in cuMemAlloc:3:2\n",
               static_cast<int>(text.size()), text.data());
  std::abort();
}

template <typename T>
T number(std::string_view text, std::string_view rule) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) refuse(rule);
  return value;
}

/// What is before the separator; `text` keeps what is after it.
std::string_view cut(std::string_view& text, char separator) {
  const std::size_t at = text.find(separator);
  const std::string_view part = text.substr(0, at);
  text = at == std::string_view::npos ? std::string_view{} : text.substr(at + 1);
  return part;
}

std::string_view without_version(std::string_view name) {
  return name.ends_with("_v2") ? name.substr(0, name.size() - 3) : name;
}

}  // namespace

Function::Function(std::string_view name) : name_(without_version(name)) {
  next_ = newest_function.load(std::memory_order_relaxed);
  while (!newest_function.compare_exchange_weak(next_, this, std::memory_order_release,
                                                std::memory_order_relaxed)) {
  }
}

void Function::forget_all_calls() noexcept {
  for (Function* f = newest_function.load(std::memory_order_acquire); f != nullptr; f = f->next_) {
    f->calls_.store(0, std::memory_order_relaxed);
  }
}

std::uint64_t Function::calls_of(std::string_view name) noexcept {
  for (Function* f = newest_function.load(std::memory_order_acquire); f != nullptr; f = f->next_) {
    if (f->name_ == without_version(name)) return f->calls_.load(std::memory_order_relaxed);
  }
  return 0;
}

struct Rules::Rule {
  std::string function;
  std::uint64_t first;
  std::uint64_t last;
  int status;
};

/// Lists stay: a thread may still read the one that was replaced.
struct Rules::List {
  std::vector<Rule> rules;
  const List* replaced;
};

Rules::Rules(const char* variable) {
  if (const char* text = std::getenv(variable); text != nullptr) replace(text);
}

void Rules::replace(std::string_view text) {
  std::vector<Rule> rules;
  while (!text.empty()) {
    const std::string_view whole = cut(text, ',');
    std::string_view rest = whole;
    Rule rule{.function = std::string(without_version(cut(rest, ':'))),
              .first = 1,
              .last = UINT64_MAX,
              .status = 0};
    std::string_view calls = cut(rest, ':');
    if (rule.function.empty() || calls.empty()) refuse(whole);
    if (calls != "*") {
      const bool onwards = calls.ends_with('+');
      if (onwards) calls.remove_suffix(1);
      rule.first = number<std::uint64_t>(calls, whole);
      if (!onwards) rule.last = rule.first;
    }
    if (!rest.empty()) rule.status = number<int>(rest, whole);
    rules.push_back(std::move(rule));
  }
  rules_.store(new List{std::move(rules), rules_.load(std::memory_order_relaxed)},
               std::memory_order_release);
}

std::optional<int> Rules::find(const Function& function, std::uint64_t call) const noexcept {
  const List* list = rules_.load(std::memory_order_acquire);
  if (list == nullptr) return std::nullopt;
  for (const Rule& rule : list->rules) {
    if (rule.function == function.name() && rule.first <= call && call <= rule.last) {
      return rule.status;
    }
  }
  return std::nullopt;
}

long number_of_environment(const char* variable, long otherwise) {
  const char* text = std::getenv(variable);
  if (text == nullptr || *text == '\0') return otherwise;
  char* end = nullptr;
  const long value = std::strtol(text, &end, 10);
  if (*end != '\0') {
    std::fprintf(stderr, "fakes: %s='%s' is not a number\n", variable, text);
    std::abort();
  }
  return value;
}

}  // namespace farandole::fakes
