/// Authenticated encryption of one stream between two ranks. A record that was changed, repeated,
/// dropped or reordered on the way is detected before any byte of it is used.
///
///     record = length u32 (of the payload, 1 B … 256 KiB) · payload · tag 16 B
///
/// AES-256-GCM by libcrypto. `Full`: the payload is encrypted and authenticated. `Integrity`: it is
/// authenticated only. Each direction has its own key. The nonce of a record is 12 bytes that
/// belong to the key, exclusive-or the record's number, which is not sent. After 2^20 records (256
/// GiB) a key is replaced by its HMAC-SHA256, which is far below the limit of AES-GCM.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "result.h"

namespace farandole::crypto {

// The functions of OpenSSL's libcrypto that the engine uses, found at run time.
//
// Nothing is linked and no header is needed: it uses the library that Python has loaded for
// hashlib and ssl. The declarations are common to OpenSSL 1.1.1 and 3.

struct Context;  // EVP_CIPHER_CTX
struct Kind;     // EVP_CIPHER
struct Digest;   // EVP_MD

#define FARANDOLE_CRYPTO_FUNCTIONS(X)                                                           \
  X(Context*, EVP_CIPHER_CTX_new, ())                                                           \
  X(void, EVP_CIPHER_CTX_free, (Context*))                                                      \
  X(int, EVP_CIPHER_CTX_ctrl, (Context*, int type, int number, void* pointer))                  \
  X(const Kind*, EVP_aes_256_gcm, ())                                                           \
  X(int, EVP_CipherInit_ex,                                                                     \
    (Context*, const Kind*, void* engine, const unsigned char* key, const unsigned char* nonce, \
     int encrypts))                                                                             \
  X(int, EVP_CipherUpdate,                                                                      \
    (Context*, unsigned char* out, int* out_bytes, const unsigned char* in, int bytes))         \
  X(int, EVP_CipherFinal_ex, (Context*, unsigned char* out, int* out_bytes))                    \
  X(const Digest*, EVP_sha256, ())                                                              \
  X(unsigned char*, HMAC,                                                                       \
    (const Digest*, const void* key, int key_bytes, const unsigned char* in, std::size_t bytes, \
     unsigned char* out, unsigned* out_bytes))

/// `missing`: the library or function that was not found; "" if nothing is missing.
struct Library {
#define FARANDOLE_CRYPTO_MEMBER(result, name, arguments) result(*name) arguments = nullptr;
  FARANDOLE_CRYPTO_FUNCTIONS(FARANDOLE_CRYPTO_MEMBER)
#undef FARANDOLE_CRYPTO_MEMBER
  const char* missing = "";
};

// Commands of EVP_CIPHER_CTX_ctrl.
inline constexpr int kGetTag = 0x10;
inline constexpr int kSetTag = 0x11;

/// The library of this process, searched on first use. Any thread.
[[nodiscard]] const Library& library();

}  // namespace farandole::crypto

namespace farandole {

enum class Protection : std::uint8_t { Off, Integrity, Full };

inline constexpr std::size_t kSealKeyBytes = 32;
inline constexpr std::size_t kSealNonceBytes = 12;
inline constexpr std::size_t kSealTagBytes = 16;
inline constexpr std::size_t kSealLengthBytes = 4;
inline constexpr std::size_t kMaxSealed = std::size_t{256} << 10;  ///< bytes of a payload

/// Key and nonce of one direction.
using SealSecret = std::array<std::byte, kSealKeyBytes + kSealNonceBytes>;

struct SealKeys {
  Protection protection = Protection::Off;
  SealSecret sending{};
  SealSecret receiving{};
  /// How many records one key seals. Fewer in tests.
  std::uint64_t records_of_a_key = std::uint64_t{1} << 20;
};

/// Why streams cannot be sealed in this process; "" if they can.
[[nodiscard]] const char* seal_missing();

/// The cipher of one direction, and the number of its next record.
class SealDirection {
 public:
  [[nodiscard]] static Result<SealDirection> open(const SealSecret& secret, Protection protection,
                                                  std::uint64_t records_of_a_key, bool encrypts);

  /// The parts of a record. Its payload is encrypted or decrypted in place.
  struct Record {
    std::span<const std::byte> length;  ///< right in front of the payload
    std::span<std::byte> payload;
    std::span<std::byte> tag;
  };
  /// Encrypts the payload, in mode `Full`, and writes the tag.
  [[nodiscard]] Result<void> close(const Record& record);
  /// Checks the tag and decrypts the payload, in mode `Full`. False: this is not the record that
  /// the peer made.
  [[nodiscard]] Result<bool> open(const Record& record);

 private:
  struct Free {
    void operator()(crypto::Context* context) const {
      crypto::library().EVP_CIPHER_CTX_free(context);
    }
  };
  SealDirection() = default;
  [[nodiscard]] Result<void> begin(const Record& record);
  [[nodiscard]] bool use_key();
  [[nodiscard]] bool renew_key();

  std::unique_ptr<crypto::Context, Free> context_;
  SealSecret secret_{};
  bool conceals_ = false;
  bool encrypts_ = false;
  std::uint64_t number_ = 0;
  std::uint64_t records_of_a_key_ = 0;
};

/// Both directions of a stream. Used by one thread at a time.
class Seal {
 public:
  [[nodiscard]] static Result<std::unique_ptr<Seal>> open(const SealKeys& keys);

  // Outgoing. A record that was begun must be sent whole. Its last byte counts as taken only when
  // all of it was sent, so that the sender has bytes left to send until then.

  /// The unsent bytes of the current record; empty: there is none.
  [[nodiscard]] std::span<const std::byte> pending() const noexcept {
    return std::span(outgoing_).subspan(sent_);
  }
  /// Makes a record of as many bytes as fit, from `parts` without the first `skip` bytes.
  [[nodiscard]] Result<void> begin(std::span<const iovec> parts, std::size_t skip);
  /// Notes that so many bytes of pending() were sent. Returns how many bytes of the payload count
  /// as taken.
  [[nodiscard]] std::size_t sent(std::size_t bytes) noexcept;

  // Incoming.

  /// Room for arriving bytes. Never empty after unseal() was false.
  [[nodiscard]] std::span<std::byte> room();
  void filled(std::size_t bytes) noexcept { filled_ += bytes; }
  /// Opens the next record if all of it has arrived. Only when plain() is empty. An error: the
  /// stream was changed on the way.
  [[nodiscard]] Result<bool> unseal();
  /// Opened bytes that were not taken yet.
  [[nodiscard]] std::span<const std::byte> plain() const noexcept { return plain_; }
  /// Moves opened bytes to `parts`, after their first `skip` bytes. Returns how many.
  std::size_t take(std::span<const iovec> parts, std::size_t skip) noexcept;
  /// True if there is a record, or an error, without reading more from the socket.
  [[nodiscard]] bool holds() const noexcept;

 private:
  Seal(SealDirection out, SealDirection in) : out_(std::move(out)), in_(std::move(in)) {}
  [[nodiscard]] std::size_t next_length() const noexcept;

  SealDirection out_;
  SealDirection in_;
  std::vector<std::byte> outgoing_;  // the current record
  std::size_t sent_ = 0;             // of its bytes
  std::size_t counted_ = 0;          // of its payload
  std::vector<std::byte> incoming_;  // [taken_, filled_) has arrived and was not opened
  std::size_t taken_ = 0;
  std::size_t filled_ = 0;
  std::span<std::byte> plain_;  // part of incoming_, in front of taken_
};

}  // namespace farandole
