#include "backends/local/local.h"

#include <utility>
#include <variant>

#include "backends/buffers/piece_array.h"
#include "backends/operation.h"

namespace farandole {

LocalBackend::LocalBackend(Members members) : Backend(std::move(members)) {}

std::string_view LocalBackend::path(Kind /*kind*/, std::size_t /*bytes*/) const noexcept {
  return "local";
}

std::unique_ptr<Operation> LocalBackend::send(int /*peer*/, std::span<const std::byte> /*data*/) {
  return failed_operation(Code::Unsupported, "a world of one has nobody to send to");
}

std::unique_ptr<Operation> LocalBackend::recv(int /*peer*/, std::span<std::byte> /*data*/) {
  return failed_operation(Code::Unsupported, "a world of one has nobody to receive from");
}

template <>
std::unique_ptr<Operation> LocalBackend::perform(Allreduce verb) {
  const auto& pieces = verb.pieces;
  const Reduction& reduction = verb.reduction;
  return scale_pieces(pieces, reduction);
}

std::unique_ptr<Operation> LocalBackend::start(Verb verb) {
  return std::visit([this](auto& of) { return perform(std::move(of)); }, verb);
}

Result<std::unique_ptr<Backend>> open_local(Members members, int /*channel*/,
                                            const Resources& /*resources*/) {
  return std::unique_ptr<Backend>(std::make_unique<LocalBackend>(std::move(members)));
}

}  // namespace farandole
