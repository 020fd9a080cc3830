#include "engine/base/refusals.h"

#include <utility>

#include "collectives/registry.h"

namespace farandole {

Error already_in_flight(Kind kind, std::string name) {
  return Error{.code = Code::Duplicate,
               .message = "Requested to " + std::string(rules_of(kind).prefix) + " '" + name +
                          "' which has the same name as another tensor that is still in flight; "
                          "wait for that one (synchronize) or use another name",
               .tensor = std::move(name)};
}

Error refused_after_join(std::string name) {
  return Error{.code = Code::InvalidArgument,
               .message = "This rank has joined: it cannot submit operations until all have",
               .tensor = std::move(name)};
}

Error no_such_set(std::int32_t id, std::string name) {
  return Error{.code = Code::InvalidArgument,
               .message = "Process set " + std::to_string(id) +
                          " does not exist, or has not been registered",
               .tensor = std::move(name)};
}

Error set_was_removed(std::int32_t id, std::string name) {
  return Error{.code = Code::Internal,
               .message = "Process set has been removed: " + name +
                          " was still pending on process set " + std::to_string(id),
               .tensor = std::move(name)};
}

}  // namespace farandole
