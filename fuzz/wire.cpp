/// Messages of the negotiators, as a reader takes them apart.

#include "engine/control/wire.h"

#include <string>

#include "target.h"

namespace farandole::fuzz {
namespace {

using namespace farandole::wire;

/// Says again what was read. Nodes do that with what comes from below.
void write(Writer& writer, const Entry& entry) {
  switch (entry.record) {
    case Record::Origin:
      return writer.origin(entry.rank);
    case Record::Age:
      return writer.age(entry.age_ms);
    case Record::Ready:
    case Record::ReadyUnnamed:
    case Record::ReadyInFull:
      return writer.ready(entry.key, entry.signature.id, entry.signature.full, entry.instance,
                          entry.size_class, entry.whole);
    case Record::Join:
      return writer.join(entry.rank);
    case Record::Leave:
      return writer.leave(
          {.rank = entry.rank, .reason = entry.reason, .text = std::string(entry.text)});
    case Record::Acknowledge:
      return writer.acknowledge();
    case Record::Blocked:
      return writer.blocked(entry.rank, entry.position, entry.certain, entry.text);
    case Record::Unblocked:
      return writer.unblocked(entry.rank);
    case Record::DefineKey:
      return writer.define(entry.key);
    case Record::DefineSignature:
      return writer.define(entry.signature.full);
    case Record::Dispatch:
      return writer.dispatch(entry.process_set, entry.count);
    case Record::Fail:
      return writer.fail(entry.key, entry.code, entry.text, entry.tensor, entry.ranks);
    case Record::Joined:
      return writer.joined(entry.rank);
    case Record::Shutdown:
      return writer.shutdown(
          {.rank = entry.rank, .reason = entry.reason, .text = std::string(entry.text)});
    case Record::Closed:
      return writer.closed();
  }
}

/// Everything that `message` says, said again; nothing if it makes no sense.
bool repeat(std::span<const std::byte> message, Bytes& out) {
  Reader reader(message);
  Header header;
  if (!reader.header(header)) return false;
  Writer writer(out);
  writer.header(header);
  Entry entry;
  while (reader.next(entry)) {
    write(writer, entry);
    if (entry.record != Record::Dispatch) continue;
    for (std::uint32_t i = 0; i < entry.count && reader.item(entry); ++i) {
      writer.item(entry.key, entry.signature.id, entry.signature.full);
    }
  }
  return reader.ok();
}

void run(std::span<const std::byte> input) {
  Bytes once;
  if (!repeat(input, once)) return;
  Bytes twice;
  require(repeat(once, twice), "what was understood is understood again");
  require(once == twice, "and means the same");
}

std::vector<Bytes> seeds() {
  Signature plain;
  plain.shape = {17, 3};
  Signature set;
  set.kind = Kind::AddProcessSet;
  set.ranks = {0, 5, 4000};
  const KeyRef full{.process_set = 1, .generation = 8, .name = "allreduce.x", .group = "g"};
  const KeyRef unnamed{.kind = Kind::Barrier, .number = 1ULL << 40};
  const std::vector<Rank> ranks{0, 5};

  Bytes up;
  Writer report(up);
  report.header({.direction = Direction::Up, .position = 77});
  report.ready({.id = 9}, 4, {}, 123, 12, true);
  report.ready(unnamed, 4, {}, 0, 0, false);
  report.origin(5);
  report.age(1500);
  report.ready(full, 0, plain, 1, 0, true);
  report.join(2);
  report.leave({.rank = 3});
  report.acknowledge();
  report.blocked(1, 99, true, "allreduce.y");
  report.unblocked(1);

  Bytes down;
  Writer stream(down);
  stream.header({.direction = Direction::Down, .capacity = 16384, .position = 78});
  stream.define(full);
  stream.define(plain);
  stream.dispatch(0, 2);
  stream.item({.id = 9}, 4, {});
  stream.item(full, 0, plain);
  stream.dispatch(0, 1);
  stream.item({.kind = Kind::AddProcessSet, .number = 3}, 0, set);
  stream.fail(full, 2, "why", "allreduce.z", ranks);
  stream.joined(6);
  stream.shutdown({.rank = 7});
  stream.closed();
  return {up, down};
}

}  // namespace

const Target kWire{"wire", run, seeds};

}  // namespace farandole::fuzz
