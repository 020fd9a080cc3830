#include "engine/control/wire.h"

#include <gtest/gtest.h>

#include <random>

namespace farandole::wire {
namespace {

Signature some_signature() {
  Signature signature;
  signature.kind = Kind::Reducescatter;
  signature.dtype = DType::BFloat16;
  signature.op = ReduceOp::Max;
  signature.device = Device::Cuda;
  signature.root = 3;
  signature.prescale = 0.1;
  signature.postscale = -2.5;
  signature.shape = {17, 0, 3};
  signature.group.size = 5;
  return signature;
}

Signature some_set() {
  Signature signature;
  signature.kind = Kind::AddProcessSet;
  signature.ranks = {0, 5, 4000};
  return signature;
}

std::vector<std::byte> every_record() {
  std::vector<std::byte> bytes;
  Writer writer(bytes);
  writer.header({.direction = Direction::Up, .position = 77});
  writer.origin(5);
  writer.age(1500);
  writer.ready({.id = 9}, 4, {}, 123, 12, true);
  writer.ready({.kind = Kind::Barrier, .number = 1ULL << 40}, 4, {}, 0, 0, false);
  const KeyRef full{.process_set = -1, .generation = 8, .name = "allreduce.x", .group = "g"};
  writer.ready(full, 0, some_signature(), 1, 0, true);
  writer.join(2);
  writer.leave({.rank = 3, .reason = Departure::Reason::Failed, .text = "raised"});
  writer.acknowledge();
  writer.blocked(1, 99, true, "allreduce.y");
  writer.unblocked(1);
  writer.define(full);
  writer.define(some_signature());
  writer.dispatch(0, 2);
  writer.item({.id = 9}, 4, {});
  writer.item(full, 0, some_signature());
  writer.dispatch(0, 1);
  writer.item({.kind = Kind::AddProcessSet, .number = 3}, 0, some_set());
  writer.dispatch(0, 1);
  writer.item({.kind = Kind::AddProcessSet, .number = 4}, 4, {});
  writer.fail(full, 2, "why", "allreduce.z", std::vector<Rank>{0, 5});
  writer.joined(6);
  writer.shutdown({.rank = 7, .reason = Departure::Reason::ScriptOver});
  writer.closed();
  return bytes;
}

TEST(Wire, a_report_by_numbers_takes_16_bytes) {
  std::vector<std::byte> bytes;
  Writer(bytes).ready({.id = 1}, 1, {}, 1, 1, true);
  EXPECT_EQ(bytes.size(), 16U);
  Writer(bytes).ready({.kind = Kind::Allreduce, .number = 1}, 1, {}, 0, 1, true);
  EXPECT_EQ(bytes.size(), 32U);
}

TEST(Wire, every_record_reads_as_it_was_written) {
  const auto bytes = every_record();
  Reader reader(bytes);
  Header header;
  ASSERT_TRUE(reader.header(header));
  EXPECT_EQ(header.direction, Direction::Up);
  EXPECT_EQ(header.position, 77U);
  Entry entry;
  const auto expect = [&](Record record) {
    ASSERT_TRUE(reader.next(entry));
    ASSERT_EQ(entry.record, record);
  };
  const auto expect_full_key = [&] {
    EXPECT_EQ(entry.key.id, 0U);
    EXPECT_EQ(entry.key.process_set, -1);
    EXPECT_EQ(entry.key.generation, 8U);
    EXPECT_EQ(entry.key.name, "allreduce.x");
    EXPECT_EQ(entry.key.group, "g");
  };
  const auto expect_full_signature = [&] {
    EXPECT_EQ(entry.signature.id, 0U);
    EXPECT_EQ(entry.signature.full, some_signature());
  };
  expect(Record::Origin);
  EXPECT_EQ(entry.rank, 5);
  expect(Record::Age);
  EXPECT_EQ(entry.age_ms, 1500U);
  expect(Record::Ready);
  EXPECT_EQ(entry.key.id, 9U);
  EXPECT_EQ(entry.signature.id, 4U);
  EXPECT_EQ(entry.instance, 123U);
  EXPECT_EQ(entry.size_class, 12);
  EXPECT_TRUE(entry.whole);
  expect(Record::ReadyUnnamed);
  EXPECT_EQ(entry.key.kind, Kind::Barrier);
  EXPECT_EQ(entry.key.number, 1ULL << 40);
  EXPECT_FALSE(entry.whole);
  expect(Record::ReadyInFull);
  expect_full_key();
  expect_full_signature();
  expect(Record::Join);
  EXPECT_EQ(entry.rank, 2);
  expect(Record::Leave);
  EXPECT_EQ(entry.rank, 3);
  EXPECT_EQ(entry.reason, Departure::Reason::Failed);
  EXPECT_EQ(entry.text, "raised");
  expect(Record::Acknowledge);
  expect(Record::Blocked);
  EXPECT_EQ(entry.position, 99U);
  EXPECT_TRUE(entry.certain);
  EXPECT_EQ(entry.text, "allreduce.y");
  expect(Record::Unblocked);
  expect(Record::DefineKey);
  expect_full_key();
  expect(Record::DefineSignature);
  expect_full_signature();
  expect(Record::Dispatch);
  ASSERT_EQ(entry.count, 2U);
  ASSERT_TRUE(reader.item(entry));
  EXPECT_EQ(entry.key.id, 9U);
  ASSERT_TRUE(reader.item(entry));
  expect_full_key();
  expect_full_signature();
  expect(Record::Dispatch);
  ASSERT_TRUE(reader.item(entry));
  EXPECT_EQ(entry.key.number, 3U);
  EXPECT_EQ(entry.signature.full, some_set());
  expect(Record::Dispatch);
  ASSERT_TRUE(reader.item(entry));
  expect(Record::Fail);
  EXPECT_EQ(entry.code, 2);
  EXPECT_EQ(entry.text, "why");
  EXPECT_EQ(entry.ranks, (std::vector<Rank>{0, 5}));
  EXPECT_EQ(entry.tensor, "allreduce.z");
  expect(Record::Joined);
  EXPECT_EQ(entry.rank, 6);
  expect(Record::Shutdown);
  EXPECT_EQ(entry.rank, 7);
  EXPECT_EQ(entry.reason, Departure::Reason::ScriptOver);
  expect(Record::Closed);
  EXPECT_FALSE(reader.next(entry));
  EXPECT_TRUE(reader.ok());
}

/// Reads all there is; what it says does not matter.
bool read_all(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  Header header;
  if (!reader.header(header)) return false;
  Entry entry;
  while (reader.next(entry)) {
    if (entry.record != Record::Dispatch) continue;
    for (std::uint32_t i = 0; i < entry.count && reader.item(entry); ++i) {
    }
  }
  return reader.ok();
}

TEST(Wire, a_message_cut_inside_a_record_is_an_error) {
  const auto whole = every_record();
  ASSERT_TRUE(read_all(whole));
  int complete = 0;
  for (std::size_t length = 0; length < whole.size(); ++length) {
    // A copy of its own: the address sanitizer sees a read beyond its end.
    const std::vector<std::byte> cut(whole.begin(),
                                     whole.begin() + static_cast<std::ptrdiff_t>(length));
    if (read_all(cut)) ++complete;
  }
  EXPECT_LT(complete, 23) << "more cuts than records were taken for whole messages";
}

TEST(Wire, ranks_of_a_set_stay_with_its_signature) {
  std::vector<std::byte> bytes;
  Writer writer(bytes);
  writer.define(some_set());
  writer.define(some_signature());
  Reader reader(bytes);
  Entry entry;
  ASSERT_TRUE(reader.next(entry));
  EXPECT_EQ(entry.signature.full.ranks.size(), 3U);
  ASSERT_TRUE(reader.next(entry));
  EXPECT_TRUE(entry.signature.full.ranks.empty());
}

TEST(Wire, more_ranks_than_bytes_are_refused_before_room_is_made_for_them) {
  std::vector<std::byte> bytes;
  Writer(bytes).define(some_set());
  const std::size_t count_at = bytes.size() - 4 * sizeof(std::uint32_t);
  for (const std::uint32_t count : {4U, 1U << 30, 0xFFFFFFFFU}) {
    store_little_endian(bytes.data() + count_at, count);
    Reader reader(bytes);
    Entry entry;
    EXPECT_FALSE(reader.next(entry));
    EXPECT_FALSE(reader.ok());
  }
}

TEST(Wire, a_reduction_of_what_is_only_moved_is_refused) {
  for (std::uint8_t type = 0; type < kDTypes; ++type) {
    for (const Kind kind : {Kind::Allreduce, Kind::Reducescatter, Kind::Adasum, Kind::Reduce,
                            Kind::Allgather, Kind::Broadcast, Kind::Alltoall}) {
      Signature signature;
      signature.kind = kind;
      signature.dtype = static_cast<DType>(type);
      std::vector<std::byte> bytes;
      Writer(bytes).define(signature);
      Reader reader(bytes);
      Entry entry;
      EXPECT_EQ(reader.next(entry), !(moved_only(signature.dtype) && reduces(kind)));
    }
  }
}

TEST(Wire, another_version_is_refused) {
  auto bytes = every_record();
  bytes[0] = std::byte{2};
  EXPECT_FALSE(read_all(bytes));
}

TEST(Wire, mutated_messages_do_no_harm) {
  std::mt19937 random(3);
  const auto whole = every_record();
  for (int round = 0; round < 20000; ++round) {
    auto bytes = whole;
    for (unsigned flips = 1 + random() % 4; flips > 0; --flips) {
      bytes[random() % bytes.size()] = static_cast<std::byte>(random() % 4 == 0 ? 255 : random());
    }
    (void)read_all(bytes);
  }
}

TEST(Wire, random_bytes_do_no_harm) {
  std::mt19937 random(4);
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::byte> bytes(random() % 64);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() % 48);
    (void)read_all(bytes);
  }
}

}  // namespace
}  // namespace farandole::wire
