/// Memory in which algorithms pack, receive and reduce.
///
/// The first touch of fresh memory costs more than moving the bytes, so the backend keeps the block
/// from one operation to the next. The plans of the operations limit its size.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

namespace farandole {

/// Used by one thread at a time, the holder of the progress lock. Outlives its leases.
class Staging {
 public:
  /// Some bytes for as long as this object lives.
  class Lease {
   public:
    Lease(Staging& owner, std::unique_ptr<std::byte[]> block, std::size_t bytes) noexcept
        : owner_(&owner), block_(std::move(block)), bytes_(bytes) {}
    Lease(Lease&&) noexcept = default;
    Lease& operator=(Lease&&) = delete;
    ~Lease() {
      if (block_ && bytes_ > owner_->bytes_) {
        owner_->block_ = std::move(block_);
        owner_->bytes_ = bytes_;
      }
    }
    [[nodiscard]] std::byte* data() const noexcept { return block_.get(); }

   private:
    Staging* owner_;
    std::unique_ptr<std::byte[]> block_;
    std::size_t bytes_;
  };

  [[nodiscard]] Lease lease(std::size_t bytes) {
    if (bytes <= bytes_) return {*this, std::move(block_), std::exchange(bytes_, 0)};
    return {*this, std::make_unique_for_overwrite<std::byte[]>(bytes), bytes};
  }
  /// What is kept for the next lease.
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

 private:
  std::unique_ptr<std::byte[]> block_;  // the largest one that is not leased
  std::size_t bytes_ = 0;
};

}  // namespace farandole
