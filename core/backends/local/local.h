/// A world of one: copies and scales.
#pragma once

#include <memory>
#include <span>
#include <utility>

#include "backends/backend.h"
#include "backends/registry.h"

namespace farandole {

class LocalBackend final : public Backend {
 public:
  explicit LocalBackend(Members members);

  [[nodiscard]] std::string_view name() const noexcept override { return "local"; }
  [[nodiscard]] std::string_view path(Kind kind, std::size_t bytes) const noexcept override;

  /// There is nobody to send to: these operations fail.
  std::unique_ptr<Operation> send(int peer, std::span<const std::byte> data) override;
  std::unique_ptr<Operation> recv(int peer, std::span<std::byte> data) override;
  std::unique_ptr<Operation> start(Verb verb) override;

 private:
  /// Specialised for what it has a way of its own for.
  template <class Of>
  std::unique_ptr<Operation> perform(Of verb) {
    return Backend::start(std::move(verb));
  }
};

/// See registry.h.
[[nodiscard]] Result<std::unique_ptr<Backend>> open_local(Members members, int channel,
                                                          const Resources& resources);

}  // namespace farandole
