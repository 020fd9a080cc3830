/// A hash index over objects that live elsewhere: open addressing, no allocation per entry.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace farandole {

/// Spreads consecutive numbers over all bits.
[[nodiscard]] constexpr std::uint64_t mix(std::uint64_t value) noexcept {
  value *= 0x9E3779B97F4A7C15ULL;
  return value ^ (value >> 32);
}

/// Finds a T by the hash of its identity. The calling code brings hash and comparison.
template <typename T>
class HashIndex {
 public:
  template <typename Matches>
  [[nodiscard]] T* find(std::uint64_t hash, Matches&& matches) const {
    if (slots_.empty()) return nullptr;
    for (std::size_t i = home(hash); slots_[i].value != nullptr; i = next(i)) {
      if (slots_[i].hash == hash && matches(*slots_[i].value)) return slots_[i].value;
    }
    return nullptr;
  }

  void insert(std::uint64_t hash, T* value) {
    if ((size_ + 1) * 2 > slots_.size()) grow();
    place(hash, value);
    ++size_;
  }

  void erase(std::uint64_t hash, const T* value) noexcept {
    if (slots_.empty()) return;
    std::size_t hole = home(hash);
    while (slots_[hole].value != value) {
      if (slots_[hole].value == nullptr) return;
      hole = next(hole);
    }
    // Moves later entries of the run into the hole, because a search would stop there.
    for (std::size_t i = next(hole); slots_[i].value != nullptr; i = next(i)) {
      const std::size_t wanted = home(slots_[i].hash);
      const std::size_t mask = slots_.size() - 1;
      if (((i - wanted) & mask) >= ((i - hole) & mask)) {
        slots_[hole] = slots_[i];
        hole = i;
      }
    }
    slots_[hole] = {};
    --size_;
  }

  template <typename Visit>
  void for_each(Visit&& visit) const {
    for (const Slot& slot : slots_) {
      if (slot.value != nullptr) visit(*slot.value);
    }
  }

  [[nodiscard]] std::size_t size() const noexcept { return size_; }

 private:
  struct Slot {
    std::uint64_t hash = 0;
    T* value = nullptr;
  };

  [[nodiscard]] std::size_t home(std::uint64_t hash) const noexcept {
    return static_cast<std::size_t>(hash) & (slots_.size() - 1);
  }
  [[nodiscard]] std::size_t next(std::size_t i) const noexcept {
    return (i + 1) & (slots_.size() - 1);
  }
  void place(std::uint64_t hash, T* value) {
    std::size_t i = home(hash);
    while (slots_[i].value != nullptr) i = next(i);
    slots_[i] = {hash, value};
  }
  void grow() {
    std::vector<Slot> old(slots_.empty() ? 16 : slots_.size() * 2);
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.value != nullptr) place(slot.hash, slot.value);
    }
  }

  std::vector<Slot> slots_;  // a power of two, at most half full
  std::size_t size_ = 0;
};

}  // namespace farandole
