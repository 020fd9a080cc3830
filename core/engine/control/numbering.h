/// Numbers for things that are said often: counted up, never used again, the least recently used
/// given up when there are too many.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "engine/base/hash_index.h"

namespace rueda {

/// Every rank applies the same calls in the order of the dispatch stream, so all agree on what each
/// number means at each position of it. A number that was given up is still understood until
/// forget(), because a rank that has not seen that position yet may be saying it.
template <typename T>
class Numbering {
 public:
  struct Item {
    T value;
    std::uint32_t number = 0;
    std::uint64_t retired_at = 0;  ///< position in the stream; 0: in use
    Item* older = nullptr;         ///< by last use
    Item* newer = nullptr;
    [[nodiscard]] bool live() const noexcept { return retired_at == 0; }
  };

  Item& add(T value) {
    if (free_.empty()) {
      items_.emplace_back();
      free_.push_back(&items_.back());
    }
    Item& item = *free_.back();
    free_.pop_back();
    item.value = std::move(value);
    item.number = ++last_;
    item.retired_at = 0;
    by_number_.insert(mix(item.number), &item);
    append(item);
    ++live_;
    return item;
  }

  [[nodiscard]] Item* find(std::uint32_t number) const {
    return by_number_.find(mix(number), [&](const Item& item) { return item.number == number; });
  }

  void touch(Item& item) noexcept {
    if (&item == newest_) return;
    unlink(item);
    append(item);
  }

  /// The one to give up while there are more than `capacity`; null if there are not.
  [[nodiscard]] Item* surplus(std::size_t capacity) const noexcept {
    return live_ > capacity ? oldest_ : nullptr;
  }

  void retire(Item& item, std::uint64_t position) {
    unlink(item);
    item.retired_at = position;
    retired_.push_back(&item);
    --live_;
  }

  /// Everybody who may still say them has seen the stream up to `position`.
  template <typename Visit>
  void forget(std::uint64_t position, Visit&& visit) {
    while (!retired_.empty() && retired_.front()->retired_at <= position) {
      Item& item = *retired_.front();
      retired_.pop_front();
      by_number_.erase(mix(item.number), &item);
      visit(item.value);
      item.value = T{};
      free_.push_back(&item);
    }
  }

  [[nodiscard]] std::size_t size() const noexcept { return live_ + retired_.size(); }

 private:
  void append(Item& item) noexcept {
    item.older = newest_;
    item.newer = nullptr;
    (newest_ != nullptr ? newest_->newer : oldest_) = &item;
    newest_ = &item;
  }
  void unlink(Item& item) noexcept {
    (item.older != nullptr ? item.older->newer : oldest_) = item.newer;
    (item.newer != nullptr ? item.newer->older : newest_) = item.older;
  }

  std::deque<Item> items_;
  std::vector<Item*> free_;
  HashIndex<Item> by_number_;
  std::deque<Item*> retired_;
  Item* oldest_ = nullptr;
  Item* newest_ = nullptr;
  std::size_t live_ = 0;
  std::uint32_t last_ = 0;
};

}  // namespace rueda
