#include "engine/base/log.h"

#include <unistd.h>

#include <array>
#include <cstdio>
#include <ctime>
#include <string>

namespace farandole {

void Log::write(LogLevel level, std::string_view text, std::string_view file, int line) const {
  if (!on(level)) return;
  std::string out = "[";
  if (!hide_time_) {
    timespec now{};
    ::clock_gettime(CLOCK_REALTIME, &now);
    tm local{};
    ::localtime_r(&now.tv_sec, &local);
    std::array<char, 64> stamp{};
    const auto length = std::strftime(stamp.data(), stamp.size(), "%Y-%m-%d %H:%M:%S", &local);
    out.append(stamp.data(), length);
    std::array<char, 24> micros{};
    std::snprintf(micros.data(), micros.size(), ".%06ld", now.tv_nsec / 1000);
    out += micros.data();
    out += ": ";
  }
  out += "TDIWEF"[static_cast<std::size_t>(level)];
  out += ' ';
  out += file.substr(file.rfind('/') + 1);
  out += ':' + std::to_string(line) + "] [" + std::to_string(rank_) + "]: ";
  out += text;
  out += '\n';
  const int fd = level <= LogLevel::Info ? STDOUT_FILENO : STDERR_FILENO;
  [[maybe_unused]] const auto written = ::write(fd, out.data(), out.size());
}

}  // namespace farandole
