"""Protection of the traffic between ranks from anybody in between on the network.

    off         not at all
    integrity   nobody can change, repeat or leave out a part of it unnoticed; it can be read
    full        nor can it be read

``auto`` is ``off`` between ranks that reach each other over loopback, where nobody but root can stand, and
``integrity`` or more between hosts. What somebody chooses counts everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from horovod.bootstrap.trust.session import Session
from horovod.errors import ConfigError

__all__ = [
    "BETWEEN_HOSTS",
    "VARIABLE",
    "Sealed",
    "agreed",
    "key_of",
    "level_between",
    "number_of",
    "with_cipher",
]

VARIABLE = "HOROVOD_NETWORK_PROTECTION"

BETWEEN_HOSTS = "integrity"
"""Meaning of ``auto`` between hosts; docs/decisions/0040 has the figures."""

_LEVELS = ("off", "integrity", "full")  # in the order of the core's numbers
_SECRET_BYTES = 44  # a key of AES-256 and a nonce of 12 bytes


@dataclass(frozen=True)
class Sealed:
    """Protection of the connections to one rank: for the core, a number and keys."""

    level: int = 0
    keys: tuple[bytes, ...] = ()
    """Of the control connection (zeros without one), then of each data connection; empty at level 0."""


def agreed(settings: Sequence[str], mine: int, names: Sequence[str]) -> str:
    """The setting of all ranks.

    Raises:
        ConfigError: ranks were told different things.
    """
    for rank, setting in enumerate(settings):
        if setting != settings[mine]:
            raise ConfigError(
                f"{VARIABLE} is {setting} for {names[rank]} and {settings[mine]} for {names[mine]}: it must "
                "be the same for every rank.",
                variable=VARIABLE,
            )
    return settings[mine]


def level_between(setting: str, *, same_machine: bool) -> str:
    """``off``, ``integrity`` or ``full`` for two ranks that share no memory."""
    if setting != "auto":
        return setting
    return "off" if same_machine else BETWEEN_HOSTS


def with_cipher(missing: str, name: str, level: str) -> None:
    """Raises ``ConfigError`` if a rank cannot do what is wanted of it."""
    if missing and level != "off":
        raise ConfigError(
            f"The connections of {name} with other hosts are to be protected ({VARIABLE}: {level}), but "
            f"{missing} of OpenSSL is not there. Install OpenSSL 3 or 1.1.1 on that host (Debian: libssl3), "
            f"or set {VARIABLE}=off for every rank if the network between the hosts is yours alone.",
            variable=VARIABLE,
        )


def number_of(level: str) -> int:
    """As the core counts them."""
    return _LEVELS.index(level)


def key_of(session: Session | None, level: str) -> bytes:
    """Return the keys with which the core protects one connection: for sending, then for receiving."""
    if session is None:
        return bytes(2 * _SECRET_BYTES)
    return session.sending(level, _SECRET_BYTES) + session.receiving(level, _SECRET_BYTES)
