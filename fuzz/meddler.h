/// Memory that somebody else changes *while* it is read: what a broken or hostile process of the
/// same host can do to a segment that it shares.
///
/// Another thread would change it at moments that nobody can name or repeat. Here the memory is
/// closed to this thread; every instruction that touches it traps, is let through alone, and after
/// it the next changes of a list are made. So a change comes between any two reads, every input
/// does the same in each run, and a value that is read twice is found.
///
/// Works on x86-64. Elsewhere, and under the thread sanitizer (to which changes of this kind are
/// what it looks for), nothing is changed during calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "target.h"

namespace farandole::fuzz {

/// Whole pages, and what in them is worth changing: words of 32 bits that code decides by.
struct Shared {
  std::vector<std::span<std::byte>> pages;
  std::vector<std::byte*> words;
};

/// Memory of its own in whole pages, zero at first.
class Pages {
 public:
  explicit Pages(std::size_t bytes);
  ~Pages();
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  [[nodiscard]] std::span<std::byte> all() const noexcept { return memory_; }

 private:
  std::span<std::byte> memory_;
};

/// Changes `shared` from its construction to its end, as the script says. One at a time.
class Meddler {
 public:
  /// Takes from the script: the number of changes; for each the accesses before it, a word, a
  /// value.
  Meddler(const Shared& shared, Script& script);
  ~Meddler();
  Meddler(const Meddler&) = delete;
  Meddler& operator=(const Meddler&) = delete;

  /// Whether memory changes during calls here.
  [[nodiscard]] static bool works() noexcept;
};

}  // namespace farandole::fuzz
