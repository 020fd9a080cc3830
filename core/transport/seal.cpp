#include "transport/seal.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <string>

#include "transport/little_endian.h"

namespace farandole::crypto {

namespace {

constexpr std::initializer_list<const char*> kNames = {"libcrypto.so.3", "libcrypto.so.1.1"};

void* open() {
  // A library that is already loaded comes first: the one that Python was built with.
  for (const int how : {RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD, RTLD_NOW | RTLD_LOCAL}) {
    for (const char* name : kNames) {
      if (void* const library = ::dlopen(name, how); library != nullptr) return library;
    }
  }
  return nullptr;
}

Library find() {
  Library found;
  void* const library = open();
  if (library == nullptr) {
    found.missing = "libcrypto.so.3";
    return found;
  }
#define FARANDOLE_CRYPTO_FIND(result, name, arguments)                         \
  found.name = reinterpret_cast<result(*) arguments>(::dlsym(library, #name)); \
  if (found.name == nullptr && *found.missing == '\0') found.missing = #name;
  FARANDOLE_CRYPTO_FUNCTIONS(FARANDOLE_CRYPTO_FIND)
#undef FARANDOLE_CRYPTO_FIND
  return found;
}

}  // namespace

const Library& library() {
  static const Library found = find();
  return found;
}

}  // namespace farandole::crypto

namespace farandole {

namespace {

constexpr std::size_t kOverhead = kSealLengthBytes + kSealTagBytes;
constexpr std::size_t kLeastRoom = std::size_t{16} << 10;  // enough for most control messages
constexpr unsigned char kNextKey[] = "farandole next key";

unsigned char* raw(std::byte* bytes) noexcept { return reinterpret_cast<unsigned char*>(bytes); }
const unsigned char* raw(const std::byte* bytes) noexcept {
  return reinterpret_cast<const unsigned char*>(bytes);
}

Error library_failed() {
  return Error{.code = Code::Backend, .message = "libcrypto failed to protect a connection"};
}

Error altered() {
  return Error{.message =
                   "its data was altered on the way: somebody between the two hosts changed, "
                   "repeated or left out a part of it, and nothing from there on was used"};
}

/// Calls `move` with each piece of `parts` after the first `skip` bytes, until `most` bytes were
/// moved.
template <typename Move>
std::size_t each_piece(std::span<const iovec> parts, std::size_t skip, std::size_t most,
                       const Move& move) {
  std::size_t moved = 0;
  for (const iovec& part : parts) {
    const std::size_t skipped = std::min(skip, part.iov_len);
    skip -= skipped;
    const std::size_t now = std::min(part.iov_len - skipped, most - moved);
    if (now != 0) move(static_cast<std::byte*>(part.iov_base) + skipped, moved, now);
    moved += now;
    if (moved == most) break;
  }
  return moved;
}

}  // namespace

const char* seal_missing() { return crypto::library().missing; }

Result<SealDirection> SealDirection::open(const SealSecret& secret, Protection protection,
                                          std::uint64_t records_of_a_key, bool encrypts) {
  const crypto::Library& library = crypto::library();
  if (*library.missing != '\0') {
    return Error{.code = Code::Unsupported,
                 .message = std::string(library.missing) +
                            " of OpenSSL is not there: connections cannot be protected"};
  }
  SealDirection direction;
  direction.context_.reset(library.EVP_CIPHER_CTX_new());
  direction.secret_ = secret;
  direction.conceals_ = protection == Protection::Full;
  direction.encrypts_ = encrypts;
  direction.records_of_a_key_ = records_of_a_key;
  if (direction.context_ == nullptr ||
      library.EVP_CipherInit_ex(direction.context_.get(), library.EVP_aes_256_gcm(), nullptr,
                                nullptr, nullptr, encrypts ? 1 : 0) != 1 ||
      !direction.use_key()) {
    return library_failed();
  }
  return direction;
}

bool SealDirection::use_key() {
  return crypto::library().EVP_CipherInit_ex(context_.get(), nullptr, nullptr, raw(secret_.data()),
                                             nullptr, encrypts_ ? 1 : 0) == 1;
}

bool SealDirection::renew_key() {
  std::array<unsigned char, kSealKeyBytes> next;
  const crypto::Library& library = crypto::library();
  if (library.HMAC(library.EVP_sha256(), secret_.data(), kSealKeyBytes, kNextKey,
                   sizeof(kNextKey) - 1, next.data(), nullptr) == nullptr) {
    return false;
  }
  std::memcpy(secret_.data(), next.data(), next.size());
  return use_key();
}

/// Sets the next nonce, and the data that the tag covers without encryption.
Result<void> SealDirection::begin(const Record& record) {
  const crypto::Library& library = crypto::library();
  if (number_ != 0 && number_ % records_of_a_key_ == 0 && !renew_key()) return library_failed();
  std::array<unsigned char, kSealNonceBytes> nonce;
  std::memcpy(nonce.data(), secret_.data() + kSealKeyBytes, nonce.size());
  for (std::size_t i = 0; i < 8; ++i) {
    nonce[nonce.size() - 1 - i] ^= static_cast<unsigned char>(number_ >> (8 * i));
  }
  ++number_;
  const std::size_t clear = record.length.size() + (conceals_ ? 0 : record.payload.size());
  int out = 0;
  if (library.EVP_CipherInit_ex(context_.get(), nullptr, nullptr, nullptr, nonce.data(),
                                encrypts_ ? 1 : 0) != 1 ||
      library.EVP_CipherUpdate(context_.get(), nullptr, &out, raw(record.length.data()),
                               static_cast<int>(clear)) != 1 ||
      (conceals_ && library.EVP_CipherUpdate(context_.get(), raw(record.payload.data()), &out,
                                             raw(record.payload.data()),
                                             static_cast<int>(record.payload.size())) != 1)) {
    return library_failed();
  }
  return {};
}

Result<void> SealDirection::close(const Record& record) {
  if (auto begun = begin(record); !begun) return begun;
  const crypto::Library& library = crypto::library();
  int out = 0;
  if (library.EVP_CipherFinal_ex(context_.get(), raw(record.tag.data()), &out) != 1 ||
      library.EVP_CIPHER_CTX_ctrl(context_.get(), crypto::kGetTag, kSealTagBytes,
                                  record.tag.data()) != 1) {
    return library_failed();
  }
  return {};
}

Result<bool> SealDirection::open(const Record& record) {
  if (auto begun = begin(record); !begun) return std::move(begun).error();
  const crypto::Library& library = crypto::library();
  if (library.EVP_CIPHER_CTX_ctrl(context_.get(), crypto::kSetTag, kSealTagBytes,
                                  record.tag.data()) != 1) {
    return library_failed();
  }
  int out = 0;
  unsigned char nothing = 0;  // GCM has no last block
  return library.EVP_CipherFinal_ex(context_.get(), &nothing, &out) == 1;
}

Result<std::unique_ptr<Seal>> Seal::open(const SealKeys& keys) {
  auto out = SealDirection::open(keys.sending, keys.protection, keys.records_of_a_key, true);
  if (!out) return std::move(out).error();
  auto in = SealDirection::open(keys.receiving, keys.protection, keys.records_of_a_key, false);
  if (!in) return std::move(in).error();
  return std::unique_ptr<Seal>(new Seal(*std::move(out), *std::move(in)));
}

Result<void> Seal::begin(std::span<const iovec> parts, std::size_t skip) {
  std::size_t bytes = 0;
  for (const iovec& part : parts) bytes += part.iov_len;
  bytes = std::min(bytes - skip, kMaxSealed);
  outgoing_.resize(bytes + kOverhead);
  store_little_endian(outgoing_.data(), static_cast<std::uint32_t>(bytes));
  std::byte* const payload = outgoing_.data() + kSealLengthBytes;
  each_piece(parts, skip, bytes, [payload](const std::byte* from, std::size_t at, std::size_t now) {
    std::memcpy(payload + at, from, now);
  });
  sent_ = 0;
  counted_ = 0;
  return out_.close({.length = std::span(outgoing_).first(kSealLengthBytes),
                     .payload = {payload, bytes},
                     .tag = std::span(outgoing_).last(kSealTagBytes)});
}

std::size_t Seal::sent(std::size_t bytes) noexcept {
  sent_ += bytes;
  const std::size_t payload = outgoing_.size() - kOverhead;
  std::size_t gone = payload;
  if (sent_ == outgoing_.size()) {
    outgoing_.clear();
    sent_ = 0;
  } else {
    gone = std::min(sent_ - std::min(sent_, kSealLengthBytes), payload - 1);
  }
  const std::size_t now = gone - counted_;
  counted_ = gone;
  return now;
}

std::size_t Seal::next_length() const noexcept {
  return load_little_endian<std::uint32_t>(incoming_.data() + taken_);
}

/// Room to read into, which grows with the records that come: a rank has many connections, and most
/// carry small records only. Bytes that have arrived are moved only if the rest of their record has
/// no room behind them.
std::span<std::byte> Seal::room() {
  const std::size_t arrived = filled_ - taken_;
  if (arrived == 0)
    taken_ = filled_ = 0;  // plain_ is empty, because more is read only when all of it was taken
  const std::size_t record =
      arrived < kSealLengthBytes ? kLeastRoom : std::min(next_length(), kMaxSealed) + kOverhead;
  if (incoming_.size() < 2 * record) incoming_.resize(2 * record);
  if (incoming_.size() - taken_ < record) {
    std::memmove(incoming_.data(), incoming_.data() + taken_, arrived);
    taken_ = 0;
    filled_ = arrived;
  }
  return std::span(incoming_).subspan(filled_);
}

Result<bool> Seal::unseal() {
  const std::size_t arrived = filled_ - taken_;
  if (arrived < kSealLengthBytes) return false;
  const std::size_t length = next_length();
  if (length == 0 || length > kMaxSealed) return altered();
  if (arrived < length + kOverhead) return false;
  const auto record = std::span(incoming_).subspan(taken_, length + kOverhead);
  const auto payload = record.subspan(kSealLengthBytes, length);
  auto right = in_.open({.length = record.first(kSealLengthBytes),
                         .payload = payload,
                         .tag = record.last(kSealTagBytes)});
  if (!right) return right;
  if (!*right) return altered();
  taken_ += record.size();
  plain_ = payload;
  return true;
}

std::size_t Seal::take(std::span<const iovec> parts, std::size_t skip) noexcept {
  const std::byte* const from = plain_.data();
  const std::size_t moved = each_piece(
      parts, skip, plain_.size(),
      [from](std::byte* to, std::size_t at, std::size_t now) { std::memcpy(to, from + at, now); });
  plain_ = plain_.subspan(moved);
  return moved;
}

bool Seal::holds() const noexcept {
  if (!plain_.empty()) return true;
  const std::size_t arrived = filled_ - taken_;
  if (arrived < kSealLengthBytes) return false;
  const std::size_t length = next_length();
  return length == 0 || length > kMaxSealed || arrived >= length + kOverhead;  // or an error
}

}  // namespace farandole
