/// Groups: what a thread asks for between ncclGroupStart and the last ncclGroupEnd.
#pragma once

#include <functional>
#include <vector>

#include "nccl/communicator.h"

namespace farandole::fakes {

class Group {
 public:
  /// That of this thread.
  [[nodiscard]] static Group& get();

  void start() noexcept { ++depth_; }
  /// Does all that was asked for, if this ends the outermost group.
  int end();
  /// Now, or at the end of the group.
  int add(Communicator& communicator, Operation operation, void* stream);
  int add(Communicator& communicator, const WorldId& id);
  /// The result of a call; the group's end answers it, too.
  int note(int result);

 private:
  struct Batch {
    Communicator* communicator;
    void* stream;
    std::vector<Operation> operations;
  };
  struct Join {
    Communicator* communicator;
    WorldId id;
  };

  int depth_ = 0;
  int failed_ = 0;
  std::vector<Batch> batches_;  ///< one for each communicator
  std::vector<Join> joins_;
};

}  // namespace farandole::fakes
