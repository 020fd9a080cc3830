#include "engine/base/wording.h"

#include <utility>

#include "collectives/registry.h"

namespace farandole {

std::string full_name(const Key& key) {
  if (!key.name.empty()) return key.name;
  if (is_set_change(key.kind)) return std::string(rules_of(key.kind).prefix);
  if (rules_of(key.kind).matched_by_count) {
    return std::string(rules_of(key.kind).prefix) + ".noname";
  }
  return std::string(rules_of(key.kind).prefix) + "." + unnamed_call(key.number);
}

std::uint64_t unnamed_call_number(std::uint64_t joins, std::uint64_t call) {
  return (joins << kUnnamedCallBits) | call;
}

std::uint64_t unnamed_call_index(std::uint64_t number) {
  return number & ((std::uint64_t{1} << kUnnamedCallBits) - 1);
}

std::string unnamed_call(std::uint64_t number) {
  const std::uint64_t joins = number >> kUnnamedCallBits;
  const std::uint64_t call = unnamed_call_index(number);
  return "noname." + (joins == 0 ? "" : std::to_string(joins) + ".") + std::to_string(call);
}

bool is_aside(const Key& key) { return key.name.starts_with("allreduce.replicas of "); }

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

std::string all_must_call(const RankSet& some, const RankSet& others) {
  std::string condition = "an `if` that depends on hvd.rank()";
  if (some.count() == 1) {
    condition = "`if hvd.rank() == " + std::to_string(some.lowest()) + ":`";
  } else if (others.count() == 1) {
    condition = "`if hvd.rank() != " + std::to_string(others.lowest()) + ":`";
  }
  return "all ranks must call it. Is it inside " + condition +
         "? An operation of some ranks only needs a process set";
}

void advise_to_look(std::string& message, std::string_view advice) {
  while (message.ends_with('.') || message.ends_with(' ')) message.pop_back();
  if (message.find("own output") == std::string::npos) message.append(". ").append(advice);
}

}  // namespace farandole
