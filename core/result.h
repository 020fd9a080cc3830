/// Failure as a value: an error has a code, the rank and operation that it concerns, and the cause
/// beneath it.
#pragma once

#include <cassert>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "types.h"

namespace farandole {

enum class Code : std::uint8_t {
  InvalidArgument,  ///< the caller's mistake, seen on this rank alone
  Duplicate,        ///< a name that is still in flight
  Mismatch,         ///< ranks disagree about an operation
  PeerLost,         ///< a rank died or went silent
  Timeout,          ///< a started operation made no progress
  Shutdown,         ///< the world was shut down
  Unsupported,      ///< nothing here can do that
  Backend,          ///< a library below failed
  Internal,         ///< failed system calls, and bugs of the engine
};
[[nodiscard]] std::string_view name_of(Code code) noexcept;

/// How a rank was lost, of an error with the code PeerLost. The failure detector decides by it, and
/// words it. The values travel in cause frames.
enum class Loss : std::uint8_t {
  Other = 0,              ///< as the message says
  ConnectionEnded = 1,    ///< a connection of it has ended, and nothing else is known
  ProcessEnded = 2,       ///< the kernel says so
  ConnectionsClosed = 3,  ///< it has closed its connections, but its process lives
  DescriptorsClosed = 4,  ///< it has seen by itself that its descriptors were closed
};

struct Error {
  Code code = Code::Internal;
  std::string message{};
  Rank peer = -1;           ///< the rank it concerns; -1: none in particular
  Loss loss = Loss::Other;  ///< how that rank was lost
  /// The message is what that rank did: "brings data of …". what() puts the rank before it, or
  /// someone who knows hosts puts rank and host before it.
  bool by_peer = false;
  std::string tensor{};         ///< full name of the operation, if one is concerned
  std::vector<Rank> missing{};  ///< ranks that were waited for
  double waited_s = 0.0;
  std::shared_ptr<const Error> cause{};

  /// The message with those of all causes beneath it.
  [[nodiscard]] std::string what() const;
  /// A message on top of `inner`, which becomes the cause: keeps code, peer and tensor. How a peer
  /// was lost is then said by the messages.
  [[nodiscard]] static Error wrap(Error inner, std::string message);
  /// "<what>: <text of errno>"
  [[nodiscard]] static Error system(std::string_view what, int error_number);
};

/// A value, or the error that is the reason why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value)
      : state_(std::in_place_index<0>, std::move(value)) {}  // NOLINT: implicit by design
  Result(Error error)
      : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT: implicit by design
  [[nodiscard]] explicit operator bool() const noexcept { return state_.index() == 0; }
  [[nodiscard]] T& operator*() & { return std::get<0>(state_); }
  [[nodiscard]] const T& operator*() const& { return std::get<0>(state_); }
  [[nodiscard]] T&& operator*() && { return std::get<0>(std::move(state_)); }
  [[nodiscard]] T* operator->() { return &std::get<0>(state_); }
  [[nodiscard]] const T* operator->() const { return &std::get<0>(state_); }
  [[nodiscard]] const Error& error() const& { return std::get<1>(state_); }
  [[nodiscard]] Error&& error() && { return std::get<1>(std::move(state_)); }

 private:
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error)
      : error_(std::make_unique<Error>(std::move(error))) {}  // NOLINT: implicit by design
  [[nodiscard]] explicit operator bool() const noexcept { return error_ == nullptr; }
  [[nodiscard]] const Error& error() const& { return *error_; }
  [[nodiscard]] Error&& error() && { return std::move(*error_); }

 private:
  std::unique_ptr<Error> error_;  // a pointer: success costs nothing on the hot path
};

}  // namespace farandole
