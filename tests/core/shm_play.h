/// A script played by all ranks of a host, as threads.
#pragma once

#include <vector>

#include "shm_script.h"
#include "shm_world.h"

namespace farandole::testing {

/// Fails where a rank gets a result that is not right.
inline void play(const ShmWorldOptions& options, const Script& script) {
  const ShmWorld world(options);
  world.run([&](int rank, ShmBackend& backend) {
    ScriptedRank scripted(
        script, rank, world.size(), backend,
        [&](const std::vector<Operation*>& operations) { return world.drive(rank, operations); });
    EXPECT_EQ(scripted.run(), "");
  });
}

}  // namespace farandole::testing
