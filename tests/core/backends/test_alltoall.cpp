// Alltoall against a plain reference: any sizes, any number of members, every path.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <random>

#include "backends/local/local.h"
#include "shm_world.h"
#include "tcp_world.h"

namespace farandole {
namespace {

using testing::drive_all;
using testing::ShmWorld;
using testing::succeeded;
using testing::TcpWorld;
using Bytes = std::vector<std::byte>;

/// How many bytes go from whom to whom; what they are follows from that.
class Table {
 public:
  Table(int members, std::size_t most, unsigned seed) : members_(members) {
    std::mt19937 random(seed);
    for (int i = 0; i < members * members; ++i) {
      bytes_.push_back(random() % 3 == 0 ? 0 : random() % (most + 1));
    }
  }
  [[nodiscard]] std::size_t bytes(int from, int to) const {
    return bytes_[static_cast<std::size_t>(from * members_ + to)];
  }
  void set(int from, int to, std::size_t bytes) {
    bytes_[static_cast<std::size_t>(from * members_ + to)] = bytes;
  }
  [[nodiscard]] Bytes content(int from, int to) const {
    Bytes content(bytes(from, to));
    for (std::size_t i = 0; i < content.size(); ++i) {
      content[i] = static_cast<std::byte>(i * 7 + i / 251 + static_cast<std::size_t>(from) * 31 +
                                          static_cast<std::size_t>(to) * 101);
    }
    return content;
  }
  [[nodiscard]] std::size_t longest() const {
    std::size_t longest = 0;
    for (int from = 0; from < members_; ++from) {
      std::size_t total = 0;
      for (int to = 0; to < members_; ++to) total += bytes(from, to);
      longest = std::max(longest, total);
    }
    return longest;
  }

 private:
  int members_;
  std::vector<std::size_t> bytes_;
};

void check(Backend& backend, const Table& table) {
  const int self = backend.members().self;
  const int members = backend.members().size();
  constexpr std::size_t kOffset = 3;  // unaligned on purpose
  constexpr std::byte kMark{0xA5};
  std::vector<Bytes> in;
  std::vector<Bytes> out;
  AlltoallPlan plan;
  for (int other = 0; other < members; ++other) {
    in.push_back(table.content(self, other));
    out.emplace_back(2 * kOffset + table.bytes(other, self), kMark);
  }
  for (int other = 0; other < members; ++other) {
    const auto i = static_cast<std::size_t>(other);
    plan.in.push_back(in[i]);
    plan.out.push_back(std::span(out[i]).subspan(kOffset, table.bytes(other, self)));
  }
  plan.longest = table.longest();
  const auto operation = backend.start(std::move(plan));
  ASSERT_TRUE(succeeded(drive_all({operation.get()})));
  for (int other = 0; other < members; ++other) {
    Bytes wanted(kOffset, kMark);
    const Bytes content = table.content(other, self);
    wanted.insert(wanted.end(), content.begin(), content.end());
    wanted.insert(wanted.end(), kOffset, kMark);
    ASSERT_TRUE(out[static_cast<std::size_t>(other)] == wanted)
        << backend.name() << ": from " << other << " to " << self << " of " << members;
  }
}

template <typename World>
void check_all(World& world, const std::vector<Table>& tables) {
  world.run([&](int, Backend& backend) {
    for (const Table& table : tables) {
      if (!::testing::Test::HasFailure()) check(backend, table);
    }
  });
}

std::vector<Table> tables_for(int members) {
  std::vector<Table> tables;
  for (const std::size_t most : {0U, 1U, 8U, 60U, 500U, 3000U}) {
    for (unsigned seed = 1; seed <= 6; ++seed) tables.emplace_back(members, most, seed);
  }
  // Everybody to one, one to everybody, everybody to itself.
  Table to_one(members, 0, 1);
  Table from_one(members, 0, 1);
  Table to_self(members, 0, 1);
  for (int member = 0; member < members; ++member) {
    to_one.set(member, members - 1, 1000);
    from_one.set(members / 2, member, 777);
    to_self.set(member, member, 900);
  }
  tables.insert(tables.end(), {to_one, from_one, to_self});
  return tables;
}

TEST(Alltoall, SharedMemoryOnEveryPath) {
  constexpr std::array tunings{ShmTuning{}, ShmTuning{.small_bytes = 1, .chunk_bytes = 64},
                               ShmTuning{.small_bytes = 256, .chunk_bytes = 192}};
  for (int size = 1; size <= 6; ++size) {
    for (const ShmTuning& tuning : tunings) {
      const ShmWorld world({.size = size, .tuning = tuning});
      check_all(world, tables_for(size));
    }
  }
}

TEST(Alltoall, SlotsOfRealSize) {
  for (const int size : {2, 4}) {
    const ShmWorld world({.size = size});
    // Up to the border of the small path and beyond, by a byte.
    std::vector<Table> tables{{size, 800000, 1}, {size, 300000, 2}, {size, 20000, 3}};
    const std::size_t border = 2 * kShmSmallBytes / static_cast<std::size_t>(size);
    for (std::size_t bytes = border - 70; bytes <= border + 2; ++bytes) {
      tables.emplace_back(size, 0, 1);
      tables.back().set(0, 1, bytes);
    }
    check_all(world, tables);
  }
}

TEST(Alltoall, TheDefaultOverTinySocketBuffers) {
  for (const int size : {1, 2, 3, 5, 6}) {
    TcpWorld world({.groups = testing::each_alone(size), .buffer_bytes = 1});
    auto tables = tables_for(size);
    tables.emplace_back(size, 300000, 9);
    check_all(world, tables);
  }
}

TEST(Alltoall, AWorldOfOneCopies) {
  LocalBackend backend({.ranks = {0}, .self = 0, .groups = {{0}}});
  for (const Table& table : tables_for(1)) check(backend, table);
}

TEST(Alltoall, AMemberThatLeadsAstrayLeadsNowhereOutsideItsSlot) {
  for (const std::uint64_t begin : {std::uint64_t{70000}, ~std::uint64_t{0}, ~std::uint64_t{7}}) {
    for (const ShmTuning& tuning : {ShmTuning{}, ShmTuning{.small_bytes = 1, .chunk_bytes = 64}}) {
      const ShmWorld world({.size = 2, .tuning = tuning});
      const auto one = world.backend(0);
      const auto other = world.backend(1);
      Table table(2, 0, 1);
      table.set(0, 1, 40);
      AlltoallPlan gives;
      AlltoallPlan takes;
      const Bytes sent = table.content(0, 1);
      Bytes got(sent.size());
      gives.in = {{}, sent};
      gives.out.resize(2);
      takes.in.resize(2);
      takes.out = {got, {}};
      gives.longest = takes.longest = 40;
      const auto giving = one->start(gives);
      const auto taking = other->start(takes);
      ASSERT_TRUE(static_cast<bool>(giving->step()));
      // Entry 1 of the table, on either path.
      std::byte* const slot =
          tuning.small_bytes == 0 ? world.view(0).small_slot(0, 0) : world.view(0).slot(0, 0);
      std::memcpy(slot + sizeof begin, &begin, sizeof begin);
      ASSERT_TRUE(succeeded(drive_all({giving.get(), taking.get()})));
    }
  }
}

TEST(Alltoall, RefusesAPlanThatContradictsItself) {
  const ShmWorld world({.size = 2});
  const auto backend = world.backend(0);
  Bytes data(8);
  AlltoallPlan plan;
  plan.in = {data, {}};
  plan.out = {data, {}};
  plan.longest = 7;  // less than this member brings
  EXPECT_FALSE(static_cast<bool>(backend->start(plan)->step()));
  plan.longest = 8;
  plan.out[0] = {};
  EXPECT_FALSE(static_cast<bool>(backend->start(plan)->step()));
  EXPECT_FALSE(static_cast<bool>(backend->start(AlltoallPlan{})->step()));
}

}  // namespace
}  // namespace farandole
