/// The connections and memory from which a process makes its backends.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "transport/doorbell.h"
#include "transport/mesh.h"
#include "transport/peer_memory.h"
#include "transport/shm_layout.h"
#include "transport/shm_segment.h"
#include "types.h"

namespace farandole {

/// A rank of this host: its segment, how to wake it, and its memory if it may be read.
struct ShmMember {
  ShmView segment;
  int local_index = 0;      ///< its index among the ranks of the host (layout of the rings)
  Doorbell bell;            ///< unused for the own entry
  ShmHeap* heap = nullptr;  ///< outlives the backends; null: tensors are in private memory
  PeerMemory memory{};      ///< unused for the own entry
};

/// How this rank reaches the ranks of its transport group, itself included.
struct ShmHost {
  std::vector<Rank> ranks;         ///< by local index, ascending
  std::vector<ShmMember> members;  ///< by local index
  int self = 0;                    ///< local index
  ShmSegment* own = nullptr;       ///< outlives the backend factory and its backends
};

class Backend;
struct Members;
class ShmPipes;

/// Opens a set of more than one rank in a backend that is written in Python.
using OpenForeign = std::function<std::unique_ptr<Backend>(Members)>;

struct Resources {
  ShmHost host;                     ///< empty if this rank is alone in its group
  std::shared_ptr<ShmPipes> pipes;  ///< of the host; null if this rank is alone in its group
  std::shared_ptr<Mesh> mesh;       ///< null if the world is one group
  OpenForeign foreign;              ///< empty: no backend in Python
};

}  // namespace farandole
