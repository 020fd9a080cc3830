#include "transport/shm_cause.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "text.h"

namespace farandole {
namespace {

enum : std::uint32_t { kNothing = 0, kWriting = 1, kComplete = 2 };

}  // namespace

void publish_cause(const ShmView& own, const Error& error) noexcept {
  CauseRecord& record = own.cause();
  std::uint32_t nothing = kNothing;
  if (!record.state.compare_exchange_strong(nothing, kWriting, std::memory_order_seq_cst)) return;
  std::string whole;
  std::string_view text = error.message;
  try {
    whole = error.what();
    text = whole;
  } catch (...) {  // out of memory: the plain message remains
  }
  text = utf8_prefix(text, CauseRecord::kTextBytes);
  const std::string_view tensor = utf8_prefix(error.tensor, CauseRecord::kTensorBytes);
  const std::size_t missing = std::min(error.missing.size(), CauseRecord::kMissing);
  record.code = static_cast<std::uint32_t>(error.code);
  record.peer = error.peer;
  record.waited_s = error.waited_s;
  record.text_bytes = static_cast<std::uint32_t>(text.size());
  record.tensor_bytes = static_cast<std::uint32_t>(tensor.size());
  record.missing_count = static_cast<std::uint32_t>(missing);
  std::copy_n(text.data(), text.size(), record.text.data());
  std::copy_n(tensor.data(), tensor.size(), record.tensor.data());
  std::copy_n(error.missing.begin(), missing, record.missing.begin());
  record.state.store(kComplete, std::memory_order_seq_cst);
}

std::optional<Error> read_cause(const ShmView& peer) {
  const CauseRecord& record = peer.cause();
  if (record.state.load(std::memory_order_seq_cst) != kComplete) return std::nullopt;
  Error error;
  const std::uint32_t code = read_once(record.code);
  error.code =
      code <= static_cast<std::uint32_t>(Code::Internal) ? static_cast<Code>(code) : Code::Internal;
  error.peer = read_once(record.peer);
  error.waited_s = read_once(record.waited_s);
  const auto at_most = [](const std::uint32_t& count, std::size_t most) {
    return std::min<std::size_t>(read_once(count), most);
  };
  error.message.assign(record.text.data(), at_most(record.text_bytes, CauseRecord::kTextBytes));
  error.tensor.assign(record.tensor.data(),
                      at_most(record.tensor_bytes, CauseRecord::kTensorBytes));
  const std::size_t missing = at_most(record.missing_count, CauseRecord::kMissing);
  error.missing.assign(record.missing.begin(),
                       record.missing.begin() + static_cast<std::ptrdiff_t>(missing));
  return error;
}

}  // namespace farandole
