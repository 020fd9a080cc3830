#include "result.h"

#include <array>
#include <cstring>

namespace farandole {

std::string_view name_of(Code code) noexcept {
  constexpr std::array<std::string_view, 9> names{"invalid_argument", "duplicate", "mismatch",
                                                  "peer_lost",        "timeout",   "shutdown",
                                                  "unsupported",      "backend",   "internal"};
  return names[static_cast<std::size_t>(code)];
}

std::string Error::what() const {
  std::string text;
  for (const Error* one = this; one != nullptr; one = one->cause.get()) {
    if (one != this) text += ": ";
    if (one->by_peer) text += "rank " + std::to_string(one->peer) + " ";
    text += one->message;
  }
  return text;
}

Error Error::wrap(Error inner, std::string message) {
  Error outer{.code = inner.code,
              .message = std::move(message),
              .peer = inner.peer,
              .tensor = inner.tensor,
              .missing = inner.missing,
              .waited_s = inner.waited_s,
              .cause = nullptr};
  outer.cause = std::make_shared<const Error>(std::move(inner));
  return outer;
}

Error Error::system(std::string_view what, int error_number) {
  Error error;
  error.message = std::string(what) + ": " + std::strerror(error_number);
  return error;
}

}  // namespace farandole
