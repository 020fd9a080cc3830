#include "engine/control/wire.h"

#include <bit>
#include <cmath>

#include "collectives/registry.h"
#include "text.h"

namespace farandole::wire {

namespace {

/// More than any tensor has. The limit keeps the product of a hostile shape from overflowing.
constexpr std::int64_t kMaxElements = std::int64_t{1} << 56;
constexpr std::size_t kMaxDimensions = 64;
/// The least bytes that an item of a dispatch takes. The count in a message is checked against the
/// bytes that follow before memory is reserved for it.
constexpr std::size_t kItemBytes = 9;
constexpr std::uint8_t kReasons = 3;
constexpr std::size_t kMaxDepartureText = 1024;

enum class KeyForm : std::uint8_t { Number = 0, Unnamed = 1, Full = 2 };

[[nodiscard]] bool is_plain_unnamed(const KeyRef& key) noexcept {
  return key.id == 0 && key.name.empty() && key.group.empty() && key.process_set == 0 &&
         key.generation == 0;
}

}  // namespace

void Writer::put(double value) { put(std::bit_cast<std::uint64_t>(value)); }

void Writer::put(std::string_view text) {
  put(static_cast<std::uint32_t>(text.size()));
  const auto bytes = std::as_bytes(std::span(text));
  out_.insert(out_.end(), bytes.begin(), bytes.end());
}

void Writer::put(std::span<const Rank> ranks) {
  put(static_cast<std::uint32_t>(ranks.size()));
  for (const Rank rank : ranks) put(static_cast<std::uint32_t>(rank));
}

void Writer::put(const KeyRef& key) {
  if (key.id != 0) {
    put(static_cast<std::uint8_t>(KeyForm::Number));
    put(key.id);
    return;
  }
  if (is_plain_unnamed(key)) {
    put(static_cast<std::uint8_t>(KeyForm::Unnamed));
    put(static_cast<std::uint8_t>(key.kind));
    put(key.number);
    return;
  }
  put(static_cast<std::uint8_t>(KeyForm::Full));
  put(static_cast<std::uint8_t>(key.kind));
  put(key.number);
  put(static_cast<std::uint32_t>(key.process_set));
  put(key.generation);
  put(key.name);
  put(key.group);
}

void Writer::put(std::uint32_t signature_id, const Signature& signature) {
  put(signature_id);
  if (signature_id != 0) return;
  put(static_cast<std::uint8_t>(signature.kind));
  put(static_cast<std::uint8_t>(signature.dtype));
  put(static_cast<std::uint8_t>(signature.op));
  put(static_cast<std::uint8_t>(signature.device));
  put(static_cast<std::uint8_t>(signature.absent));
  put(static_cast<std::uint32_t>(signature.root));
  put(signature.prescale);
  put(signature.postscale);
  put(signature.group.size);
  put(static_cast<std::uint32_t>(signature.shape.size()));
  for (std::int64_t extent : signature.shape) put(static_cast<std::uint64_t>(extent));
  if (signature.kind == Kind::AddProcessSet) put(signature.ranks);
}

void Writer::with_number(Record record, std::uint32_t number) {
  put(static_cast<std::uint32_t>(record));  // one byte and three zeros
  put(number);
}

void Writer::with_departure(Record record, const Departure& who) {
  with_number(record, static_cast<std::uint32_t>(who.rank));
  put(static_cast<std::uint8_t>(who.reason));
  put(utf8_prefix(who.text, kMaxDepartureText));
}

void Writer::header(const Header& header) {
  put(static_cast<std::uint32_t>(kVersion | static_cast<unsigned>(header.direction) << 8));
  put(header.capacity);
  put(header.position);
}

void Writer::ready(const KeyRef& key, std::uint32_t signature_id, const Signature& signature,
                   std::uint32_t instance, std::uint8_t size_class, bool whole) {
  const auto head = [&](Record record) {
    put(static_cast<std::uint32_t>(static_cast<unsigned>(record) | (whole ? 1U : 0U) << 8 |
                                   static_cast<unsigned>(size_class) << 16 |
                                   static_cast<unsigned>(key.kind) << 24));
  };
  if (signature_id != 0 && key.id != 0) {
    head(Record::Ready);
    put(key.id);
    put(signature_id);
    put(instance);
  } else if (signature_id != 0 && is_plain_unnamed(key)) {
    head(Record::ReadyUnnamed);
    put(signature_id);
    put(key.number);
  } else {
    head(Record::ReadyInFull);
    put(instance);
    put(key);
    put(signature_id, signature);
  }
}

void Writer::blocked(Rank rank, std::uint64_t position, bool certain, std::string_view name) {
  with_number(Record::Blocked, static_cast<std::uint32_t>(rank));
  put(position);
  put(static_cast<std::uint8_t>(certain));
  put(name);
}

void Writer::define(const KeyRef& key) {
  put(static_cast<std::uint8_t>(Record::DefineKey));
  put(key);
}

void Writer::define(const Signature& signature) {
  put(static_cast<std::uint8_t>(Record::DefineSignature));
  put(0, signature);
}

void Writer::dispatch(std::int32_t process_set, std::uint32_t count) {
  put(static_cast<std::uint8_t>(Record::Dispatch));
  put(static_cast<std::uint32_t>(process_set));
  put(count);
}

void Writer::item(const KeyRef& key, std::uint32_t signature_id, const Signature& signature) {
  put(key);
  put(signature_id, signature);
}

void Writer::fail(const KeyRef& key, std::uint8_t code, std::string_view text,
                  std::string_view tensor, std::span<const Rank> ranks) {
  put(static_cast<std::uint8_t>(Record::Fail));
  put(key);
  put(code);
  put(text);
  put(tensor);
  put(ranks);
}

template <typename E>
E Reader::take_enum(std::uint8_t values) {
  const auto value = take<std::uint8_t>();
  if (value >= values) {
    ok_ = false;
    return E{};
  }
  return static_cast<E>(value);
}

double Reader::take_double() { return std::bit_cast<double>(take<std::uint64_t>()); }

std::string_view Reader::take_text() {
  const auto length = take<std::uint32_t>();
  if (!ok_ || rest_.size() < length) {
    ok_ = false;
    return {};
  }
  const std::string_view text(reinterpret_cast<const char*>(rest_.data()), length);
  rest_ = rest_.subspan(length);
  return text;
}

void Reader::take(KeyRef& key) {
  key = {};
  switch (take<std::uint8_t>()) {
    case static_cast<std::uint8_t>(KeyForm::Number):
      key.id = take<std::uint32_t>();
      if (key.id == 0) ok_ = false;
      return;
    case static_cast<std::uint8_t>(KeyForm::Unnamed):
      key.kind = take_enum<Kind>(kKinds);
      key.number = take<std::uint64_t>();
      return;
    case static_cast<std::uint8_t>(KeyForm::Full):
      key.kind = take_enum<Kind>(kKinds);
      key.number = take<std::uint64_t>();
      key.process_set = static_cast<std::int32_t>(take<std::uint32_t>());
      key.generation = take<std::uint32_t>();
      key.name = take_text();
      key.group = take_text();
      return;
    default:
      ok_ = false;
  }
}

void Reader::take(SignatureRef& signature) {
  signature.id = take<std::uint32_t>();
  if (!ok_ || signature.id != 0) return;
  Signature& full = signature.full;
  full.kind = take_enum<Kind>(kKinds);
  full.dtype = take_enum<DType>(kDTypes);
  if (reduces(full.kind) && moved_only(full.dtype)) ok_ = false;  // nobody submits that
  full.op = take_enum<ReduceOp>(kReduceOps);
  full.device = take_enum<Device>(kDevices);
  full.absent = take<std::uint8_t>() == 1;
  if (full.absent && !may_be_absent(full.kind)) ok_ = false;  // nobody submits that
  full.root = static_cast<std::int32_t>(take<std::uint32_t>());
  full.prescale = take_double();
  full.postscale = take_double();
  full.group = {.name = {}, .size = take<std::uint32_t>()};
  full.shape.clear();
  const auto dimensions = take<std::uint32_t>();
  if (dimensions > kMaxDimensions) ok_ = false;
  std::int64_t elements = 1;
  for (std::uint32_t d = 0; ok_ && d < dimensions; ++d) {
    const auto extent = static_cast<std::int64_t>(take<std::uint64_t>());
    if (extent < 0 || extent > kMaxElements / elements) {
      ok_ = false;
      return;
    }
    if (extent > 0) elements *= extent;
    full.shape.push_back(extent);
  }
  full.ranks.clear();
  if (full.kind == Kind::AddProcessSet) take_ranks(full.ranks);
}

bool Reader::header(Header& header) {
  const auto head = take<std::uint32_t>();
  header.capacity = take<std::uint32_t>();
  header.position = take<std::uint64_t>();
  const auto direction = static_cast<std::uint8_t>(head >> 8);
  if ((head & 0xFF) != kVersion || head >> 16 != 0 || direction < 1 || direction > 2) ok_ = false;
  if (ok_) header.direction = static_cast<Direction>(direction);
  return ok_;
}

/// Reads the rest of a head, and the number behind it. Most records begin so.
std::uint32_t Reader::take_number() {
  if (take<std::uint32_t>() >> 8 != 0) ok_ = false;
  return take<std::uint32_t>();
}

/// The head of a report.
Kind Reader::take_ready_head(Entry& entry) {
  const auto head = take<std::uint32_t>();
  if ((head >> 8 & 0xFF) > 1 || head >> 24 >= kKinds) {
    ok_ = false;
    return Kind{};
  }
  entry.whole = (head >> 8 & 1) != 0;
  entry.size_class = static_cast<std::uint8_t>(head >> 16);
  if (entry.size_class > 56) ok_ = false;
  return static_cast<Kind>(head >> 24);
}

bool Reader::next(Entry& entry) {
  if (rest_.empty() || !ok_) return false;
  entry.record = static_cast<Record>(rest_[0]);
  switch (entry.record) {
    case Record::Origin:
    case Record::Join:
    case Record::Unblocked:
    case Record::Joined:
      entry.rank = static_cast<Rank>(take_number());
      break;
    case Record::Leave:
    case Record::Shutdown:
      entry.rank = static_cast<Rank>(take_number());
      entry.reason = take_enum<Departure::Reason>(kReasons);
      entry.text = take_text();
      break;
    case Record::Age:
      entry.age_ms = take_number();
      break;
    case Record::Acknowledge:
    case Record::Closed:
      if (take_number() != 0) ok_ = false;
      break;
    case Record::Ready:
      entry.key = {};
      entry.key.kind = take_ready_head(entry);
      entry.key.id = take<std::uint32_t>();
      entry.signature.id = take<std::uint32_t>();
      entry.instance = take<std::uint32_t>();
      if (entry.key.id == 0 || entry.signature.id == 0) ok_ = false;
      break;
    case Record::ReadyUnnamed:
      entry.key = {};
      entry.key.kind = take_ready_head(entry);
      entry.signature.id = take<std::uint32_t>();
      entry.key.number = take<std::uint64_t>();
      entry.instance = 0;
      if (entry.signature.id == 0) ok_ = false;
      break;
    case Record::ReadyInFull:
      (void)take_ready_head(entry);
      entry.instance = take<std::uint32_t>();
      take(entry.key);
      take(entry.signature);
      break;
    case Record::Blocked:
      entry.rank = static_cast<Rank>(take_number());
      entry.position = take<std::uint64_t>();
      entry.certain = take_enum<bool>(2);
      entry.text = take_text();
      break;
    case Record::DefineKey:
      (void)take<std::uint8_t>();
      take(entry.key);
      if (entry.key.id != 0 || entry.key.name.empty()) ok_ = false;
      break;
    case Record::DefineSignature:
      (void)take<std::uint8_t>();
      take(entry.signature);
      if (entry.signature.id != 0) ok_ = false;
      break;
    case Record::Dispatch:
      (void)take<std::uint8_t>();
      entry.process_set = static_cast<std::int32_t>(take<std::uint32_t>());
      entry.count = take<std::uint32_t>();
      if (entry.count > rest_.size() / kItemBytes) ok_ = false;
      break;
    case Record::Fail:
      (void)take<std::uint8_t>();
      take(entry.key);
      entry.code = take<std::uint8_t>();
      entry.text = take_text();
      entry.tensor = take_text();
      take_ranks(entry.ranks);
      break;
    default:
      ok_ = false;
  }
  return ok_;
}

void Reader::take_ranks(std::vector<Rank>& ranks) {
  const auto count = take<std::uint32_t>();
  ranks.clear();
  if (count > rest_.size() / sizeof(std::uint32_t)) {
    ok_ = false;
    return;
  }
  for (std::uint32_t i = 0; i < count; ++i) {
    ranks.push_back(static_cast<Rank>(take<std::uint32_t>()));
  }
}

bool Reader::item(Entry& entry) {
  take(entry.key);
  take(entry.signature);
  return ok_;
}

}  // namespace farandole::wire
