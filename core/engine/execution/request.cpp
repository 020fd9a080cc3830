#include "engine/execution/request.h"

#include <utility>

namespace rueda {

namespace {

/// Of what moves no data of the user.
Request change_of_sets(Kind kind) {
  Request request;
  request.kind = kind;
  request.tensors.push_back({.dtype = DType::UInt8, .shape = {}});
  request.demanded = true;
  return request;
}

}  // namespace

Request addition_of_set(std::vector<Rank> ranks) {
  Request request = change_of_sets(Kind::AddProcessSet);
  request.ranks = std::move(ranks);
  return request;
}

Request removal_of_set(std::int32_t id) {
  Request request = change_of_sets(Kind::RemoveProcessSet);
  request.root = id;
  return request;
}

}  // namespace rueda
