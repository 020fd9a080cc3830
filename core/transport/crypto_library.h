/// The functions of OpenSSL's libcrypto that the engine uses, found at run time.
///
/// Nothing is linked and no header is needed: it uses the library that Python has loaded for
/// hashlib and ssl. The declarations are common to OpenSSL 1.1.1 and 3.
#pragma once

#include <cstddef>

namespace farandole::crypto {

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
