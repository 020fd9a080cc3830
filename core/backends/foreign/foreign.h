/// A backend whose verbs are written in another language: see foreign_backends.h.
#pragma once

#include <memory>
#include <span>

#include "backends/backend.h"
#include "backends/foreign_backends.h"
#include "backends/registry.h"

namespace farandole {

class ForeignSession;

class ForeignBackend final : public Backend {
 public:
  ForeignBackend(Members members, std::shared_ptr<ForeignSession> session);
  ~ForeignBackend() override;

  [[nodiscard]] std::string_view name() const noexcept override;

  std::unique_ptr<Operation> send(int peer, std::span<const std::byte> data) override;
  std::unique_ptr<Operation> recv(int peer, std::span<std::byte> data) override;
  std::unique_ptr<Operation> start(Verb verb) override;

 private:
  template <class Of>
  std::unique_ptr<Operation> perform(Of verb);
  [[nodiscard]] bool reduces(ForeignVerb verb, const Reduction& reduction) const;

  std::shared_ptr<ForeignSession> session_;
};

/// See registry.h.
[[nodiscard]] Result<std::unique_ptr<Backend>> open_foreign(Members members, int channel,
                                                            const Resources& resources);

}  // namespace farandole
