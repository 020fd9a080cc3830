/// Ids for what is referred to often. Ids count up and are never reused. If there are too many, the
/// least recently used one is retired.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "engine/base/hash_index.h"

namespace farandole {

/// Every rank makes the same calls in the order of the dispatch stream, so an id means the same on
/// every rank at one position. A retired id is still found until forget(), because a rank that has
/// not reached that position may still send it.
template <typename T>
class LruIds {
 public:
  struct Item {
    T value;
    std::uint32_t id = 0;
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
    item.id = ++last_;
    item.retired_at = 0;
    by_id_.insert(mix(item.id), &item);
    append(item);
    ++live_;
    return item;
  }

  [[nodiscard]] Item* find(std::uint32_t id) const {
    return by_id_.find(mix(id), [&](const Item& item) { return item.id == id; });
  }

  void touch(Item& item) noexcept {
    if (&item == newest_) return;
    unlink(item);
    append(item);
  }

  /// The least recently used item if there are more than `capacity`; else null.
  [[nodiscard]] Item* surplus(std::size_t capacity) const noexcept {
    return live_ > capacity ? oldest_ : nullptr;
  }

  void retire(Item& item, std::uint64_t position) {
    unlink(item);
    item.retired_at = position;
    retired_.push_back(&item);
    --live_;
  }

  /// Drops items that were retired at `position` or before: all ranks that may send their ids have
  /// reached it.
  template <typename Visit>
  void forget(std::uint64_t position, Visit&& visit) {
    while (!retired_.empty() && retired_.front()->retired_at <= position) {
      Item& item = *retired_.front();
      retired_.pop_front();
      by_id_.erase(mix(item.id), &item);
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
  HashIndex<Item> by_id_;
  std::deque<Item*> retired_;
  Item* oldest_ = nullptr;
  Item* newest_ = nullptr;
  std::size_t live_ = 0;
  std::uint32_t last_ = 0;
};

}  // namespace farandole
