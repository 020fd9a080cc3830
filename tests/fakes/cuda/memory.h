/// Memory of devices and pinned memory of the host: who owns which address, and where its bytes
/// are.
///
/// All device memory of a process is one sparse file without a name. It is mapped once, for the
/// copies; the addresses that users get lie in a range of the same size that nobody may access.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <shared_mutex>
#include <span>

#include "cuda/context.h"
#include "cuda/status.h"

namespace farandole::fakes {

inline constexpr unsigned char kStale = 0xCD;

struct Block {
  enum class Kind { Device, Opened, Pinned, Registered };
  Kind kind;
  Context* context;
  std::uint64_t number;  ///< none has that of an older one
  DriverAddress address;
  std::size_t bytes;
  std::byte* content;
  std::atomic<bool> freed{false};

  ~Block();
};

/// Where the bytes of a range are.
struct Place {
  enum class Kind { Device, Pinned, Pageable, Bad };
  Kind kind = Kind::Bad;
  std::byte* content = nullptr;
  std::shared_ptr<Block> block;  ///< nullptr: pageable

  /// False: freed since it was found, and not to be touched.
  [[nodiscard]] bool valid() const noexcept {
    return block == nullptr || !block->freed.load(std::memory_order_relaxed);
  }
};

/// What cuIpcGetMemHandle writes.
struct IpcHandle {
  std::uint64_t magic;
  std::int64_t process;
  std::int64_t descriptor;
  std::uint64_t offset;
  std::uint64_t bytes;
  std::uint64_t number;
  std::byte unused[16];
};
static_assert(sizeof(IpcHandle) == 64);

class Memory {
 public:
  [[nodiscard]] static Memory& get();

  DriverStatus allocate(Context& context, std::size_t bytes, DriverAddress& address);
  DriverStatus release(DriverAddress address);
  DriverStatus allocate_pinned(Context& context, std::size_t bytes, void*& memory);
  DriverStatus release_pinned(void* memory);
  DriverStatus pin(Context& context, void* memory, std::size_t bytes);
  DriverStatus unpin(void* memory);
  DriverStatus export_block(DriverAddress address, IpcHandle& handle);
  DriverStatus import_block(Context& context, const IpcHandle& handle, DriverAddress& address);
  DriverStatus close_imported(DriverAddress address);
  void release_all(Context& context);

  [[nodiscard]] Place find(DriverAddress address, std::size_t bytes) const;
  [[nodiscard]] std::size_t used_bytes(const Context& context) const;
  [[nodiscard]] static std::size_t bytes_of_device();

  struct Totals {
    std::size_t allocations = 0, allocated_bytes = 0, opened = 0, pinned = 0, pinned_bytes = 0;
  };
  [[nodiscard]] Totals totals() const;

 private:
  using Blocks = std::map<DriverAddress, std::shared_ptr<Block>>;

  Memory();
  std::shared_ptr<Block> take_device(DriverAddress address, Block::Kind kind);
  std::shared_ptr<Block> take_host(DriverAddress address, Block::Kind kind);
  /// An offset of the range where so many bytes are free, with a page without access behind them.
  [[nodiscard]] std::size_t choose_offset(std::size_t bytes);
  void end(Block& block);

  int file_;
  std::byte* addresses_;  ///< of users; no access
  std::byte* contents_;   ///< the file
  mutable std::shared_mutex blocks_lock_;
  Blocks device_;                                ///< those alive; guarded by blocks_lock_
  Blocks host_;                                  ///< those alive; guarded by blocks_lock_
  std::deque<std::span<std::byte>> quarantine_;  ///< freed last; guarded by blocks_lock_
  std::size_t quarantine_bytes_ = 0;             ///< guarded by blocks_lock_
  std::size_t next_offset_ = 0;                  ///< guarded by blocks_lock_
  std::uint64_t next_number_ = 1;                ///< guarded by blocks_lock_
};

}  // namespace farandole::fakes
