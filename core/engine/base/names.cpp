#include "engine/base/names.h"

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

}  // namespace farandole
