"""State that a driver leaves in a file, so that another one can go on in its place.

Each change is written before it takes effect: what it says has been decided, and may not have been done.
The file names the key of the job and the environment of its user, so only he may read it; it counts only if
it is his. The state machine is in it as a pickle in which nothing but our own classes can be named.
"""

from __future__ import annotations

import base64
import errno
import io
import json
import os
import pickle
import re
import secrets
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from horovod.bootstrap.records import fields, listed, mapped, paired, record, text, whole
from horovod.errors import ConfigError, LaunchError
from horovod.launch.elastic.policy import ElasticPolicy
from horovod.version import __version__

__all__ = ["Clock", "Saved", "Saver", "load", "packed"]

_FORMAT = 1
_OURS = ("horovod.launch.elastic.", "horovod.launch.driver.", "horovod.bootstrap.store.membership")
_PLAIN = frozenset({("builtins", "frozenset"), ("builtins", "set"), ("builtins", "range")})


_HEAD = fields({"format": whole(), "version": text()})
_Texts = Annotated[Sequence[str], listed(text())]
_Environ = Annotated[Mapping[str, str], mapped(text(), text())]
_Key = Annotated[str, text(fits=re.compile("(?:[0-9a-f]{2}){16,}").fullmatch, what="is no key")]
_Store = Annotated[Sequence[tuple[str, int]], listed(paired(text(), whole(0, (1 << 16) - 1)), least=1)]
_Workers = Annotated[Mapping[int, tuple[str, int]], mapped(int, paired(text(), whole()))]
_News = Annotated[Sequence[tuple[int, int]], listed(paired(whole(), whole()))]


@dataclass(frozen=True)
class Saved:
    """
    Attributes:
        words: the command line.
        directory: where it was given.
        environ: the environment there.
        key: of the job, in hexadecimal digits; ``job``: its name.
        store: host or name, and port, of each address of the store.
        door: the secret from which the names follow of the doors where agents wait.
        workers: host and label of each that is not gone, by number.
        agents: hosts where one of ours may be.
        news: of changed hosts: when, in UNIX seconds, and which kind.
        driver: the state machine.
        ticks: its clock, in seconds, at the UNIX time ``at``.
    """

    words: _Texts
    directory: str
    environ: _Environ
    key: _Key
    job: str
    store: _Store
    door: str
    workers: _Workers
    agents: _Texts
    news: _News
    driver: str
    ticks: float
    at: float

    def state_machine(self) -> ElasticPolicy:
        """The state machine.

        Raises:
            ConfigError: it is none that this version can go on with.
        """
        try:
            made = _Unpickler(io.BytesIO(base64.b85decode(self.driver))).load()
        except Exception as error:  # whatever nonsense makes pickle do
            raise ConfigError(f"The state of the elastic job makes no sense: {error!r}") from error
        if not isinstance(made, ElasticPolicy):
            raise ConfigError("The state of the elastic job makes no sense: it is no driver.")
        return made


class Saver:
    """Keeps a file as it was last told.

    Args:
        path: of the file; it is there from the first state until `remove`.
        tell: gets a sentence when it cannot be written any more. Then there is none: a state of the past
            would mislead the next driver.
        goes_on: the file is there, and its job goes on.

    Raises:
        ConfigError: the state of another job is in the file.
    """

    def __init__(self, path: Path, tell: Callable[[str], None], goes_on: bool = False) -> None:
        self._path = path
        self._goes_on = self._ours = goes_on
        if not goes_on:
            self._look_whether_taken()
        self._file: tuple[int, int, int] | None = None
        self._tell = tell
        self._written = False
        self._lost = False
        self._before: tuple[object, ...] = ()

    def save(self, state: Saved) -> None:
        """Write it, if anything but the time has changed.

        Raises:
            ConfigError: another job was a moment faster.
            LaunchError: that is not possible, for the first time. Later the job goes on without.
        """
        now = tuple(value for name, value in vars(state).items() if name not in ("ticks", "at"))
        if now == self._before:
            return
        text = json.dumps({"format": _FORMAT, "version": __version__, **asdict(state)})
        try:
            self._write(text)
        except OSError as error:
            why = f"The state of the job cannot be kept in {self._path}: {error.strerror} (--state)."
            if self._written or not self._goes_on:  # else its ranks still run: who tries again needs it
                self.remove()
            if not self._written:
                raise LaunchError(why) from error
            if not self._lost:
                self._tell(f"{why} Until it can, the job does not outlive this process.")
            self._lost = True
            return
        self._before, self._written, self._lost = now, True, False

    def remove(self) -> None:
        """The job is over: nobody can go on with it."""
        with suppress(OSError):
            if self._file == _identity(self._path.lstat()):  # else it is another job's
                self._path.unlink()

    def _write(self, text: str) -> None:
        # Nobody can have made it before: it would be his, and the key is in it.
        beside = self._path.with_name(f"{self._path.name}.{secrets.token_hex(8)}.new")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with os.fdopen(os.open(beside, flags, 0o600), "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
                identity = _identity(os.fstat(file.fileno()))
            if self._ours or not self._take(beside):
                os.replace(beside, self._path)
            self._file, self._ours = identity, True
            _keep_names(self._path.parent)
        except (OSError, ConfigError):
            with suppress(OSError):
                beside.unlink(missing_ok=True)
            raise

    def _take(self, beside: Path) -> bool:
        """Move it to the path that nothing is at: of jobs that begin at the same time one can. Whether that
        is done; else what is at the path is empty, or the file system has no links.
        """
        try:
            os.link(beside, self._path)
        except FileExistsError:
            self._look_whether_taken()
            return False
        except OSError:
            return False
        beside.unlink()
        return True

    def _look_whether_taken(self) -> None:
        path = self._path
        if path.exists() and (not path.is_file() or path.stat().st_size):
            raise ConfigError(
                f"--state {path}: this file is there already. If a job is in it, go on with that: horovodrun "
                f"--resume {path}. If that job is over, remove the file."
            )


def _keep_names(folder: Path) -> None:
    """Have the names there on the disk: after a power failure one would be that of the state before. A folder
    that may be written and not read, or whose file system cannot do that, is left as it is.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems have nothing to write there
            raise
    finally:
        os.close(descriptor)


def _identity(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_dev, status.st_ino, status.st_mtime_ns  # numbers of files are used again


def packed(driver: ElasticPolicy) -> str:
    """A state machine as text."""
    return base64.b85encode(pickle.dumps(driver, protocol=5)).decode()


def load(path: Path) -> Saved:
    """Read the state in a file.

    Raises:
        ConfigError: it cannot be read, is another user's, or not of this version.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe has no writer
        with os.fdopen(descriptor, encoding="utf-8") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise ConfigError(f"--resume {path}: this is no file.")
            if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise ConfigError(
                    f"--resume {path}: others may have written to this file. It must be yours, and writable "
                    "for you only."
                )
            read = json.load(file)
    except ConfigError:
        raise
    except FileNotFoundError:
        raise ConfigError(
            f"--resume {path}: there is no such file. The job is over, or was started without --state."
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"--resume {path}: it cannot be read: {error}") from error
    try:
        head = _HEAD(read)
        if (head["format"], head["version"]) != (_FORMAT, __version__):
            raise ConfigError(f"--resume {path}: it was written by another version of Farandole.")
        return record(Saved)(read)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"--resume {path}: it is no state of an elastic job: {error}.") from error


class Clock:
    """The clock of a job, which goes on with the next driver."""

    def __init__(self, saved: Saved | None) -> None:
        self._ahead_s = 0.0
        if saved is not None:
            passed_s = max(0.0, time.time() - saved.at)
            self._ahead_s = saved.ticks + passed_s - time.monotonic()

    def now(self) -> float:
        """In seconds."""
        return time.monotonic() + self._ahead_s


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module.startswith(_OURS) and "." not in name) or (module, name) in _PLAIN:
            found = super().find_class(module, name)
            if isinstance(found, type):
                return found
        raise pickle.UnpicklingError(f"{module}.{name} has no place in a driver")
