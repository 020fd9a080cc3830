/// How an engine is set up, as Python says it.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace rueda::bindings {

inline Duration from_seconds(double seconds) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

/// What Python fills in, with times in seconds; see EngineOptions of the engine.
struct Options {
  int rank = 0;
  int size = 1;
  std::vector<std::vector<Rank>> groups{{0}};
  std::vector<std::string> hosts{"localhost"};
  std::vector<std::vector<Rank>> process_sets;
  std::size_t fusion_threshold_bytes = std::size_t{128} << 20;
  std::size_t batch_bytes = std::size_t{1} << 20;
  double cycle_time_s = 0.001;
  double stall_warning_s = 60.0;
  double stall_shutdown_s = 0.0;
  double operation_timeout_s = 30.0;
  double heartbeat_warning_s = 3.0;
  double heartbeat_timeout_s = 5.0;
  bool disable_group_fusion = false;
  bool direct_copies = true;
  std::size_t segment_limit_bytes = std::numeric_limits<std::size_t>::max();
  int thread_affinity = -1;
  std::uint64_t first_handle = 0;
  int log_level = static_cast<int>(LogLevel::Warning);
  bool log_hide_time = false;
  std::string timeline;
  bool timeline_mark_cycles = false;

  [[nodiscard]] EngineOptions resolve() const {
    EngineOptions options;
    options.rank = rank;
    options.size = size;
    options.groups = groups;
    options.hosts = hosts;
    options.negotiator = {.fusion_threshold_bytes = fusion_threshold_bytes,
                          .batch_bytes = batch_bytes,
                          .cycle = from_seconds(cycle_time_s),
                          .stall_warning = from_seconds(stall_warning_s),
                          .stall_shutdown = from_seconds(stall_shutdown_s),
                          .disable_group_fusion = disable_group_fusion,
                          .process_sets = process_sets};
    // Who switches the check for late ranks off has not asked to hang in a proven deadlock.
    if (stall_warning_s > 0) options.negotiator.deadlock = options.negotiator.stall_warning;
    options.operation_timeout = from_seconds(operation_timeout_s);
    options.heartbeat.warning = from_seconds(heartbeat_warning_s);
    options.heartbeat.limit = from_seconds(heartbeat_timeout_s);
    options.heartbeat.interval = beat_interval(options.heartbeat.limit);
    options.thread_affinity = thread_affinity;
    options.first_handle = first_handle;
    options.log_level = static_cast<LogLevel>(log_level);
    options.log_hide_time = log_hide_time;
    options.timeline = timeline;
    options.timeline_mark_cycles = timeline_mark_cycles;
    return options;
  }
};

}  // namespace rueda::bindings
