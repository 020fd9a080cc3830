#include "collectives/collective.h"

#include "collectives/registry.h"

namespace rueda {

namespace {

std::string device_name(Device device) { return device == Device::Host ? "CPU" : "GPU"; }

}  // namespace

std::string basic_disagreement(const Signature& one, const Signature& other) {
  if (one.dtype != other.dtype) {
    return "Mismatched data types: One rank had type " + std::string(name_of(one.dtype)) +
           ", but another rank had type " + std::string(name_of(other.dtype)) + ".";
  }
  if (one.kind != other.kind) {
    return "Mismatched operations: One rank did an " + std::string(rules_of(one.kind).name) +
           ", but another rank did an " + std::string(rules_of(other.kind).name) + ".";
  }
  return {};
}

std::string shape_disagreement(const Signature& one, const Signature& other) {
  if (one.shape == other.shape) return {};
  return "Mismatched " + std::string(rules_of(one.kind).name) +
         " tensor shapes: One rank sent a tensor of shape " + to_string(one.shape) +
         ", but another rank sent a tensor of shape " + to_string(other.shape) + ".";
}

std::string device_disagreement(const Signature& one, const Signature& other) {
  if (one.device == other.device) return {};
  return "Mismatched " + std::string(rules_of(one.kind).name) +
         " CPU/GPU device selection: One rank specified device " + device_name(one.device) +
         ", but another rank specified device " + device_name(other.device) + ".";
}

}  // namespace rueda
