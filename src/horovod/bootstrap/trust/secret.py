"""The key of a job: 32 bytes that every rank has and nobody else.

The launcher hands it on in ``HOROVOD_SECRET_KEY``. Under another launcher it is derived from the job's id and
a file that only the user can read. It is never put on a command line, in a log or in an error.
"""

from __future__ import annotations

import hmac
import logging
import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path

from horovod.errors import ConfigError

__all__ = [
    "KEY_BYTES",
    "SECRET_VARIABLE",
    "check_of",
    "job_key",
    "key_of_job",
    "key_of_port",
    "name_of",
    "own_secret",
    "port_of",
    "read_private",
    "settings_folder",
    "users_secret",
    "write_private",
]

SECRET_VARIABLE = "HOROVOD_SECRET_KEY"
KEY_BYTES = 32
_SHORTEST_BYTES = 16
_PORTS = range(12000, 32000)  # below those that the system gives out by itself
_FORMER_FOLDER = "rueda"  # of the settings, when the project had that name
_REMEDY = f"Set {SECRET_VARIABLE} to 64 random hexadecimal digits, the same for every rank."


def job_key(environ: Mapping[str, str], job_id: str) -> bytes:
    """The key of this job.

    Args:
        environ: read for ``HOROVOD_SECRET_KEY`` (hexadecimal) and for where the user's settings are.
        job_id: what all ranks of the job have in common; "" if nothing is known.

    Raises:
        ConfigError: there is no key, it is malformed, or others can read the user's key file.
    """
    if key := own_secret(environ):
        return key
    if not job_id:
        raise ConfigError(
            f"Ranks prove who they are by a key, and this job has none. {_REMEDY}", variable=SECRET_VARIABLE
        )
    return key_of_job(users_secret(environ, make=True), job_id)


def key_of_job(secret: bytes, name: str) -> bytes:
    """The key of the job ``name``, for all who have ``secret``. The name may be known to anybody."""
    return hmac.digest(secret, b"farandole job\x00" + name.encode(), "sha256")


def key_of_port(environ: Mapping[str, str], port: int) -> bytes:
    """The key of a job whose ranks know nothing but where a launcher of the user's own serves the store:
    ``HOROVOD_SECRET_KEY``, else one for this port. Anybody may know that; the user's secret is in it.

    Raises:
        ConfigError: see :func:`job_key`.
    """
    return job_key(environ, f"store at port {port}")


def check_of(key: bytes, said: str = "") -> str:
    """Tells equal keys from different ones, and nothing about either. Signs what is ``said`` with it."""
    return hmac.digest(key, b"farandole card" + said.encode(), "sha256").hex()[:32]


def port_of(key: bytes) -> int:
    """The port at which the ranks of a job meet that share nothing but its key. Nobody else can know it, and
    so take it first, before somebody listens there.
    """
    return _PORTS[int.from_bytes(hmac.digest(key, b"farandole port", "sha256")[:8], "big") % len(_PORTS)]


def name_of(key: bytes) -> str:
    """The name of the socket at which they meet if all are on one machine. Nobody else can know it before."""
    return "@farandole-" + hmac.digest(key, b"farandole socket", "sha256").hex()[:32]


def own_secret(environ: Mapping[str, str]) -> bytes:
    """Read the key from ``HOROVOD_SECRET_KEY``, empty if it is not set. Raises ``ConfigError`` if it is
    malformed.
    """
    text = environ.get(SECRET_VARIABLE, "").strip()
    return _from_text(text) if text else b""


def users_secret(environ: Mapping[str, str], *, make: bool) -> bytes:
    """Read the user's key file.

    Args:
        environ: says where the user's settings are.
        make: make one if there is none.

    Raises:
        ConfigError: there is none, it cannot be made, or others can read it.
    """
    return _user_key(_key_file(environ), make=make)


def _from_text(text: str) -> bytes:
    try:
        key = bytes.fromhex(text)
    except ValueError:
        # `from None`: the original would quote a part of the key.
        raise ConfigError(
            f"{SECRET_VARIABLE} is not hexadecimal. {_REMEDY}", variable=SECRET_VARIABLE
        ) from None
    if len(key) < _SHORTEST_BYTES:
        raise ConfigError(
            f"{SECRET_VARIABLE} has only {len(key)} bytes, at least {_SHORTEST_BYTES} are needed. {_REMEDY}",
            variable=SECRET_VARIABLE,
        )
    return key


def settings_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder of this user's settings, which hosts with shared home directories have in common."""
    settings = environ.get("XDG_CONFIG_HOME") or os.path.join(
        environ.get("HOME") or str(Path.home()), ".config"
    )
    return Path(settings) / "farandole"


def write_private(path: Path, data: bytes) -> None:
    """Make a file that nobody but this user can read.

    Raises:
        OSError: it is there already, or cannot be made.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)


def read_private(path: Path, limit_bytes: int) -> bytes | None:
    """The beginning of a file; None if it is not one of this user's that nobody else can read.

    Raises:
        OSError: it cannot be opened, or is a link.
    """
    # Nobody keeps us waiting who puts a pipe in its place.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            return None
        return file.read(limit_bytes)


def _key_file(environ: Mapping[str, str]) -> Path:
    return settings_folder(environ) / "key"


def _user_key(path: Path, *, make: bool) -> bytes:
    """The user's key: that of the project's former name if there is one, else made on first use if ``make``.
    Whoever comes second, of any number of ranks, reads the first one's.
    """
    file = path
    try:
        if not path.exists():
            former = path.parent.with_name(_FORMER_FOLDER) / path.name
            if former.exists():
                file = former
                key = _read(former)
                file = path
                if _create(path, key):
                    logging.getLogger("horovod").warning(
                        "The key %s is now %s. The former file is not read any more: delete it.", former, path
                    )
            elif make:
                _create(path, secrets.token_bytes(KEY_BYTES))
        return _read(path)
    except OSError as error:
        raise ConfigError(f"The key file {file} cannot be used: {error.strerror}. {_REMEDY}") from error


def _create(path: Path, key: bytes) -> bool:
    """Make the file, unless it is there; whether it was made."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f"key.{os.getpid()}.{secrets.token_hex(8)}")
    try:
        write_private(draft, key)
        try:
            os.link(draft, path)  # atomic, complete, and never replaces a key that is already there
        except FileExistsError:
            return False
        return True
    finally:
        draft.unlink(missing_ok=True)


def _read(path: Path) -> bytes:
    key = read_private(path, KEY_BYTES + 1)
    if key is None:
        raise ConfigError(
            f"The key file {path} must be a file of yours that nobody else can read. "
            f"Run: chmod 600 {path} (or delete it: a new one is made)."
        )
    if len(key) != KEY_BYTES:
        raise ConfigError(f"The key file {path} is damaged: delete it, a new one is made.")
    return key
