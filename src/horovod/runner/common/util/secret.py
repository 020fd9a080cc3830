"""Keys and digests, of the user's own services. :mod:`horovod.bootstrap.trust.secret` has those of jobs."""

from __future__ import annotations

import hmac
import secrets

from horovod.bootstrap.trust.secret import KEY_BYTES

__all__ = ["DIGEST_LENGTH_BYTES", "HOROVOD_SECRET_KEY", "check_digest", "compute_digest", "make_secret_key"]

HOROVOD_SECRET_KEY = "_HOROVOD_SECRET_KEY"
"""A variable in which such services pass their key on; ``horovodrun`` never hands it to ranks."""

DIGEST_LENGTH_BYTES = 32


def make_secret_key() -> bytes:
    """32 random bytes."""
    return secrets.token_bytes(KEY_BYTES)


def compute_digest(key: bytes, value: bytes) -> bytes:
    """HMAC-SHA256 of ``value``: 32 bytes."""
    return hmac.digest(key, value, "sha256")


def check_digest(key: bytes, value: bytes, expected_digest: bytes) -> bool:
    """True if ``expected_digest`` is that of ``value``. The time it takes says nothing about the digest."""
    return hmac.compare_digest(compute_digest(key, value), expected_digest)
