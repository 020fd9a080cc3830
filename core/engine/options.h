/// How an engine is set up.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "backends/device_options.h"
#include "devices/driver.h"
#include "engine/base/log.h"
#include "engine/control/negotiator.h"
#include "engine/failure/heartbeat.h"
#include "types.h"

namespace farandole {

/// A setting is a field here, or in the options of the part that uses it, and the line that names
/// it: by that name it is given from outside, times in seconds. Python gives all that are named, so
/// the values here are those of C++ tests; those of users are in src/horovod/config.py. A field
/// that no line names is a constant but in tests.
struct EngineOptions {
  Rank rank = 0;
  int size = 1;
  /// Ranks that share memory: ascending in a group, groups by first rank.
  std::vector<std::vector<Rank>> groups{{0}};
  std::vector<std::string> hosts{"localhost"};  ///< host name by rank, for messages
  NegotiatorOptions negotiator;
  HeartbeatOptions heartbeat;
  Duration operation_timeout = std::chrono::seconds(30);
  /// Ranks of a host read each other's memory, if the system allows it.
  bool direct_copies = true;
  /// No rank of the world makes a larger segment; process sets whose memory would lie beyond use
  /// rings. None: nothing is too large.
  std::optional<std::size_t> segment_limit_bytes;
  int thread_affinity = -1;  ///< core of the engine thread; -1: any
  /// Handles are above it, so that one of an earlier engine of this process means nothing here.
  std::uint64_t first_handle = 0;
  LogLevel log_level = LogLevel::Warning;
  bool log_hide_time = false;
  std::string timeline;  ///< file that rank 0 records into from the start; empty: none
  bool timeline_mark_cycles = false;
  DeviceOptions devices;
  std::string device_driver = kCudaDriver;  ///< library of the driver of CUDA

  template <class Visitor>
  void each(Visitor& visit) {
    visit("rank", rank);
    visit("size", size);
    visit("groups", groups);
    visit("hosts", hosts);
    visit("operation_timeout_s", operation_timeout);
    visit("direct_copies", direct_copies);
    visit("segment_limit_bytes", segment_limit_bytes);
    visit("thread_affinity", thread_affinity);
    visit("first_handle", first_handle);
    visit("log_level", log_level);
    visit("log_hide_time", log_hide_time);
    visit("timeline", timeline);
    visit("timeline_mark_cycles", timeline_mark_cycles);
    negotiator.each(visit);
    heartbeat.each(visit);
    devices.each(visit);
  }
};

}  // namespace farandole
