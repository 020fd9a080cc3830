"""The key of a job that another launcher starts: found by both sides, never carried by that launcher.

``mpirun`` and its like show what they carry: on the network, on ports of their daemons, some on command
lines. So the launching process makes the key of a secret that the hosts have already and a random
name, and only the name travels, with a check that tells equal keys from others. The secret is, on either
side, the first of these that fits:

    a file of the launching host, in a folder of its own (mode 0600, removed with the job)
    HOROVOD_SECRET_KEY, which the user has put into the environment of both by a way of his own
    ~/.config/farandole/key, on hosts that share the home directory or have a copy
"""

from __future__ import annotations

import hmac
import secrets
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from horovod.bootstrap.trust.secret import (
    KEY_BYTES,
    SECRET_VARIABLE,
    check_of,
    key_of_job,
    own_secret,
    read_private,
    users_secret,
    write_private,
)
from horovod.errors import ConfigError

__all__ = ["NO_CARD", "CarriedKey", "find_key", "make_key", "name_on"]

NO_CARD = "-:-:-"


@dataclass(frozen=True)
class CarriedKey:
    """A key, and the text by which ranks find it: ``name:check:file``. That is no secret, and stands on
    command lines: Hydra loses variables of some names.
    """

    key: bytes
    card: str

    @property
    def name(self) -> str:
        """Of the job."""
        return name_on(self.card)


def make_key(environ: Mapping[str, str], folder: Path, *, elsewhere: bool) -> CarriedKey:
    """A key for one job.

    Args:
        environ: of this process: for ``HOROVOD_SECRET_KEY`` and where the user's settings are.
        folder: of this job; only this user can look into it.
        elsewhere: ranks may run on other hosts.

    Raises:
        ConfigError: other hosts could not find the key, as this one has no secret to make it of.
    """
    name = secrets.token_hex(16)
    if elsewhere:
        key = key_of_job(own_secret(environ) or users_secret(environ, make=True), name)
    else:
        key = secrets.token_bytes(KEY_BYTES)
    file = folder / "key"
    write_private(file, key)
    return CarriedKey(key, f"{name}:{check_of(key)}:{file}")


def name_on(card: str) -> str:
    """The name of the job that a card is of."""
    return card.partition(":")[0]


def find_key(card: str, environ: Mapping[str, str], launcher: str) -> bytes:
    """The key of ``card``, that ``make_key`` made on the launching host, found by a rank.

    Raises:
        ConfigError: nothing here leads to it; says what to do.
    """
    name, check, file = card.split(":", 2)
    unusable = ""
    for attempt in (_from_file(file), _from_environment(environ, name), _from_settings(environ, name)):
        try:
            for key in attempt:
                if hmac.compare_digest(check_of(key), check):
                    return key
        except ConfigError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                unusable = f" ({error})"
    host = socket.gethostname()
    raise ConfigError(
        f"Host {host} does not have the key of this job{unusable}. {launcher} carries none, because it would "
        "show it on the network. Either copy ~/.config/farandole/key of the launching host to this one (mode "
        f"0600), or set {SECRET_VARIABLE} to the same 64 random hexadecimal digits on both, by a way that "
        f"you trust and not through {launcher}; or use --launcher ssh, which brings a key.",
        variable=SECRET_VARIABLE,
    )


def _from_file(file: str) -> Iterator[bytes]:
    """Of the launching host, or one that shares its folder for files of the moment."""
    try:
        key = read_private(Path(file), KEY_BYTES)
    except OSError:
        return
    if key is not None:
        yield key


def _from_environment(environ: Mapping[str, str], name: str) -> Iterator[bytes]:
    if secret := own_secret(environ):
        yield key_of_job(secret, name)


def _from_settings(environ: Mapping[str, str], name: str) -> Iterator[bytes]:
    yield key_of_job(users_secret(environ, make=False), name)
