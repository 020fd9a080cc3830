/// The log: lines in the documented form, on stdout (up to info) or stderr (warning and above).
#pragma once

#include <string_view>

#include "types.h"

namespace farandole {

enum class LogLevel : std::uint8_t { Trace = 0, Debug, Info, Warning, Error, Fatal };

class Log {
 public:
  Log(Rank rank, LogLevel threshold, bool hide_time) noexcept
      : rank_(rank), threshold_(threshold), hide_time_(hide_time) {}

  [[nodiscard]] bool on(LogLevel level) const noexcept { return level >= threshold_; }
  /// Writes one line with one call, so that lines of threads do not mix.
  void write(LogLevel level, std::string_view text, std::string_view file = __builtin_FILE(),
             int line = __builtin_LINE()) const;

 private:
  Rank rank_;
  LogLevel threshold_;
  bool hide_time_;
};

}  // namespace farandole
