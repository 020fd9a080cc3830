/// A set of ranks as bits. Ranks below 64 need one word and no allocation.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "types.h"

namespace farandole {

class RankSet {
 public:
  RankSet() = default;
  [[nodiscard]] static RankSet of(Rank rank) {
    RankSet set;
    set.add(rank);
    return set;
  }
  [[nodiscard]] static RankSet all(int size) {
    RankSet set;
    for (Rank rank = 0; rank < size; ++rank) set.add(rank);
    return set;
  }

  void add(Rank rank) {
    const auto bit = static_cast<std::size_t>(rank);
    if (bit < 64) {
      first_ |= std::uint64_t{1} << bit;
      return;
    }
    if (more_.size() < bit / 64) more_.resize(bit / 64, 0);
    more_[bit / 64 - 1] |= std::uint64_t{1} << (bit % 64);
  }
  void remove(Rank rank) noexcept {
    const auto bit = static_cast<std::size_t>(rank);
    if (bit < 64) {
      first_ &= ~(std::uint64_t{1} << bit);
    } else if (bit / 64 <= more_.size()) {
      more_[bit / 64 - 1] &= ~(std::uint64_t{1} << (bit % 64));
    }
  }
  void add(const RankSet& other) {
    first_ |= other.first_;
    if (more_.size() < other.more_.size()) more_.resize(other.more_.size(), 0);
    for (std::size_t i = 0; i < other.more_.size(); ++i) more_[i] |= other.more_[i];
  }
  void remove(const RankSet& other) noexcept {
    first_ &= ~other.first_;
    const std::size_t words = std::min(more_.size(), other.more_.size());
    for (std::size_t i = 0; i < words; ++i) more_[i] &= ~other.more_[i];
  }
  /// The intersection.
  [[nodiscard]] RankSet common(const RankSet& other) const {
    RankSet result = *this;
    result.first_ &= other.first_;
    for (std::size_t i = 0; i < result.more_.size(); ++i) {
      result.more_[i] &= i < other.more_.size() ? other.more_[i] : 0;
    }
    return result;
  }
  /// Empties the set and keeps its memory.
  void clear() noexcept {
    first_ = 0;
    std::fill(more_.begin(), more_.end(), 0);
  }

  [[nodiscard]] bool contains(Rank rank) const noexcept {
    const auto bit = static_cast<std::size_t>(rank);
    if (bit < 64) return (first_ >> bit & 1) != 0;
    return bit / 64 <= more_.size() && (more_[bit / 64 - 1] >> (bit % 64) & 1) != 0;
  }
  [[nodiscard]] bool covers(const RankSet& other) const noexcept {
    if ((other.first_ & ~first_) != 0) return false;
    for (std::size_t i = 0; i < other.more_.size(); ++i) {
      if ((other.more_[i] & ~(i < more_.size() ? more_[i] : 0)) != 0) return false;
    }
    return true;
  }
  [[nodiscard]] bool overlaps(const RankSet& other) const noexcept {
    if ((first_ & other.first_) != 0) return true;
    const std::size_t words = std::min(more_.size(), other.more_.size());
    for (std::size_t i = 0; i < words; ++i) {
      if ((more_[i] & other.more_[i]) != 0) return true;
    }
    return false;
  }
  [[nodiscard]] bool empty() const noexcept {
    return first_ == 0 && std::ranges::all_of(more_, [](std::uint64_t word) { return word == 0; });
  }
  [[nodiscard]] int count() const noexcept {
    int total = std::popcount(first_);
    for (std::uint64_t word : more_) total += std::popcount(word);
    return total;
  }
  /// The lowest member; -1 if there is none.
  [[nodiscard]] Rank lowest() const noexcept {
    if (first_ != 0) return std::countr_zero(first_);
    for (std::size_t i = 0; i < more_.size(); ++i) {
      if (more_[i] != 0) return static_cast<Rank>(64 * (i + 1)) + std::countr_zero(more_[i]);
    }
    return -1;
  }
  [[nodiscard]] bool equals(const RankSet& other) const noexcept {
    return covers(other) && other.covers(*this);
  }
  /// In ascending order.
  template <typename Visit>
  void for_each(Visit&& visit) const {
    each_bit(first_, 0, visit);
    for (std::size_t i = 0; i < more_.size(); ++i) {
      each_bit(more_[i], static_cast<Rank>(64 * (i + 1)), visit);
    }
  }
  [[nodiscard]] std::vector<Rank> to_vector() const {
    std::vector<Rank> ranks;
    for_each([&](Rank rank) { ranks.push_back(rank); });
    return ranks;
  }

 private:
  template <typename Visit>
  static void each_bit(std::uint64_t word, Rank base, Visit&& visit) {
    for (; word != 0; word &= word - 1) visit(base + std::countr_zero(word));
  }

  std::uint64_t first_ = 0;
  std::vector<std::uint64_t> more_;  // ranks 64 and up
};

}  // namespace farandole
