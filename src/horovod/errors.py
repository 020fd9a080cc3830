"""Every exception that Farandole raises, and where each comes from; and how it warns of what is deprecated.

    HorovodError
    ├ ConfigError (a ValueError)              a setting or the launch environment makes no sense
    ├ NotInitializedError (a ValueError)      init() has not been called
    ├ InvalidArgumentError (a ValueError)     a call was wrong on this rank alone; nothing was submitted
    │  ├ DuplicateNameError                   the name is still in flight on this rank
    │  └ ProcessSetError                      a set could not be changed; also a HorovodInternalError
    ├ GradientChangedError (a RuntimeError)   a script changed a gradient while ranks exchanged it
    ├ HorovodInternalError (a RuntimeError)   something failed between ranks; recoverable in elastic runs
    │  ├ MismatchError                        ranks disagree about one operation
    │  ├ PeerLostError                        a rank died or fell silent
    │  ├ CollectiveTimeout                    an operation made no progress in time
    │  ├ ShutdownError                        another rank has ended the world in peace
    │  ├ BackendError                         a library below (NCCL, MPI, the system) failed
    │  └ RendezvousError                      the ranks could not form a world in init()
    │     ├ StoreTimeout                      keys that did not appear in the store in time
    │     ├ AuthenticationError               the other side does not know the key of this job
    │     └ VersionError                      it does, but runs another release of Farandole
    ├ ReplicasDifferError (a RuntimeError)    ranks have different weights, and HOROVOD_REPLICA_CHECK=error
    ├ LaunchError (a RuntimeError)            the launcher could not start or keep the job
    │  └ WorkerFailed                         one worker ended with an error
    └ DataStoreError (an OSError)             a store cannot be written, or its data not be read

    HostsUpdatedInterrupt (a RuntimeError)         control flow of elastic runs, outside the tree
    HorovodVersionMismatchError (an ImportError)   kept for scripts that catch it; outside the tree

``recoverable`` says whether a new world may mend it; the loops of elastic runs go by that alone. It is a
property of the class, which an instance may have differently.

All of them survive pickling with their attributes: data travels as keyword arguments with defaults, so the
default protocol (class, ``args``, ``__dict__``) restores them.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from types import FrameType
from typing import Any

from horovod.wordings import RANKS_FAILED as _RANKS_FAILED

__all__ = [
    "CORE_CODES",
    "AuthenticationError",
    "BackendError",
    "CollectiveTimeout",
    "ConfigError",
    "DataStoreError",
    "DuplicateNameError",
    "GradientChangedError",
    "HorovodError",
    "HorovodInternalError",
    "HorovodVersionMismatchError",
    "HostsUpdatedInterrupt",
    "InvalidArgumentError",
    "LaunchError",
    "MismatchError",
    "NotInitializedError",
    "PeerLostError",
    "ProcessSetError",
    "RendezvousError",
    "ReplicasDifferError",
    "ShutdownError",
    "StoreTimeout",
    "VersionError",
    "WorkerFailed",
    "deprecated",
    "from_core",
    "get_version_mismatch_message",
]


class HorovodError(Exception):
    """Base of everything that Farandole reports as an error."""

    recoverable: bool = False
    """True if a new round, that is a world formed anew, can mend it."""


class ConfigError(HorovodError, ValueError):
    """A setting or the launch environment is wrong. ``variable`` names the environment variable, if any."""

    def __init__(self, message: str = "", *, variable: str | None = None) -> None:
        super().__init__(message)
        self.variable = variable


class NotInitializedError(HorovodError, ValueError):
    """There is no world: a call came before ``init()`` or after ``shutdown()``. No new world mends a script
    that does so: elastic loops do not try again."""

    def __init__(self, message: str = "Horovod has not been initialized; use hvd.init().") -> None:
        super().__init__(message)


class InvalidArgumentError(HorovodError, ValueError):
    """An argument is wrong, as seen by this rank alone. ``tensor`` is the operation's full name, if known."""

    def __init__(self, message: str = "", *, tensor: str | None = None) -> None:
        super().__init__(message)
        self.tensor = tensor


class DuplicateNameError(InvalidArgumentError):
    """This rank has an operation of the same name in flight; the first one is not affected."""


class GradientChangedError(HorovodError, RuntimeError):
    """The script changed gradients between ``backward()`` and the end of their exchange. ``tensors`` names
    them. The message shows what to write; no new world mends the script."""

    def __init__(self, message: str = "", *, tensors: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.tensors = tuple(tensors)


class HorovodInternalError(HorovodError, RuntimeError):
    """An operation between ranks failed. Elastic runs restore the last commit and go on, if it is
    ``recoverable``: if not, the same call would fail in every world. ``rank`` and ``host`` say where it
    failed, ``tensor`` is the operation's full name; as far as known.
    """

    recoverable = True

    def __init__(
        self,
        message: str = "",
        *,
        recoverable: bool | None = None,
        rank: int | None = None,
        host: str | None = None,
        tensor: str | None = None,
    ) -> None:
        super().__init__(message)
        if recoverable is not None:
            self.recoverable = recoverable
        self.rank = rank
        self.host = host
        self.tensor = tensor


class ProcessSetError(InvalidArgumentError, HorovodInternalError):
    """A process set was not added or removed: the ranks disagree about it, or the world is shutting down.

    It is a ``ValueError``, which scripts expect here. Elastic runs recover from it if the world has ended,
    not if the ranks disagree.
    """

    recoverable = False

    def __init__(
        self, message: str = "", *, tensor: str | None = None, recoverable: bool | None = None
    ) -> None:
        super().__init__(message, tensor=tensor)
        if recoverable is not None:
            self.recoverable = recoverable


class MismatchError(HorovodInternalError):
    """Ranks disagree about one operation; every rank that submitted it gets this error.

    Attributes:
        tensor: full name of the operation.
        ranks: the ranks that disagree, in the order of ``said``.
        said: what each of ``ranks`` said, as text; empty if only the message knows.

    The same calls would disagree in a new world, too: not recoverable.
    """

    recoverable = False

    def __init__(
        self,
        message: str = "",
        *,
        tensor: str | None = None,
        ranks: Sequence[int] = (),
        said: Sequence[str] = (),
    ) -> None:
        super().__init__(message, tensor=tensor)
        self.ranks = tuple(ranks)
        self.said = tuple(said)


class _RanksMissing(HorovodInternalError):
    def __init__(
        self,
        message: str = "",
        *,
        rank: int | None = None,
        host: str | None = None,
        tensor: str | None = None,
        missing: Sequence[int] = (),
        waited_s: float = 0.0,
    ) -> None:
        super().__init__(message, rank=rank, host=host, tensor=tensor)
        self.missing = tuple(missing)
        self.waited_s = waited_s


class PeerLostError(_RanksMissing):
    """A rank died, was cut off or fell silent, or its script failed.

    Attributes:
        rank, host: which one, if known.
        tensor: full name of the first operation that it was needed for, if any.
        missing: the ranks that this operation waited for.
        waited_s: seconds of silence; 0 if its end was seen.
    """


class CollectiveTimeout(_RanksMissing):
    """An operation made no progress for ``waited_s`` seconds; ``missing`` are the ranks it waited for.
    ``rank`` and ``host`` say which of them to look at first, if that is known.
    """


class ShutdownError(HorovodInternalError):
    """Another rank has called ``shutdown()``, or its script has come to its end, while this one still had
    operations. ``rank`` and ``host`` say which one, ``tensor`` is the operation that failed; as far as known.
    """


class BackendError(HorovodInternalError):
    """A library that moves the bytes failed. ``library`` names it, ``code`` is its error code, if known."""

    def __init__(
        self,
        message: str = "",
        *,
        library: str | None = None,
        code: int | None = None,
        rank: int | None = None,
        host: str | None = None,
        tensor: str | None = None,
    ) -> None:
        super().__init__(message, rank=rank, host=host, tensor=tensor)
        self.library = library
        self.code = code


class RendezvousError(_RanksMissing):
    """``init()`` could not bring the ranks together.

    Attributes:
        missing: ranks that never came, if that was the cause.
        waited_s: seconds waited before giving up; 0 if the cause was not a time-out.
        rank, host: which one failed and has thereby ended the attempt of all, if one did.
    """


class StoreTimeout(RendezvousError):
    """Keys did not appear in the store in time. ``keys`` are the missing ones."""

    def __init__(self, message: str = "", *, keys: Sequence[str] = (), waited_s: float = 0.0) -> None:
        super().__init__(message, waited_s=waited_s)
        self.keys = tuple(keys)


class AuthenticationError(RendezvousError):
    """The other side of a connection did not prove that it knows the key of this job, or what came over it is
    not what the other side sent. Not recoverable.
    """

    recoverable = False


class VersionError(RendezvousError):
    """Two processes of a job run different releases of Farandole: ``own`` and ``other``. Not recoverable."""

    recoverable = False

    def __init__(self, message: str = "", *, own: str = "", other: str = "") -> None:
        super().__init__(message)
        self.own = own
        self.other = other


class ReplicasDifferError(HorovodError, RuntimeError):
    """The weights of the ranks differ where they must be equal, and ``HOROVOD_REPLICA_CHECK`` is ``error``.

    Attributes:
        ranks: those that differ from the majority.
        tensors: the names of the weights that differ.
    """

    def __init__(self, message: str = "", *, ranks: Sequence[int] = (), tensors: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.ranks = tuple(ranks)
        self.tensors = tuple(tensors)


class LaunchError(HorovodError, RuntimeError):
    """The launcher could not start the job, or had to end it."""


class WorkerFailed(LaunchError):
    """One worker ended with an error; the others were ended because of it. The message has Horovod's sentence
    for that, which programs look for.

    Attributes:
        rank, host: which worker.
        exit_code: its exit status; negative = ended by that signal.
        last_lines: the end of its output, for the message.
    """

    def __init__(
        self,
        message: str = "",
        *,
        rank: int | None = None,
        host: str | None = None,
        exit_code: int | None = None,
        last_lines: Sequence[str] = (),
    ) -> None:
        if _RANKS_FAILED not in message:
            message = f"{message} {_RANKS_FAILED}.".lstrip()
        super().__init__(message)
        self.rank = rank
        self.host = host
        self.exit_code = exit_code
        self.last_lines = tuple(last_lines)


class DataStoreError(HorovodError, OSError):
    """A store, in which estimators keep data and checkpoints, cannot be written at ``path``; or Parquet data
    there cannot be read any more."""

    def __init__(self, message: str = "", *, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class HostsUpdatedInterrupt(RuntimeError):
    """The hosts changed: an elastic run forms a new world. ``skip_sync``: skip the broadcast of state."""

    def __init__(self, skip_sync: bool) -> None:
        super().__init__(skip_sync)
        self.skip_sync = skip_sync

    def __str__(self) -> str:
        return f"hosts were updated (skip_sync={self.skip_sync})"


def get_version_mismatch_message(name: str, version: str, installed_version: str) -> str:
    """The sentence for a framework whose installed version is not the one a native part was built for."""
    return (
        f"A native part was made for {name} {installed_version}, but {name} {version} is in use. "
        f"Install a build of Farandole that fits {name} {version}."
    )


class HorovodVersionMismatchError(ImportError):
    """A native part was built for another version of framework ``name`` and could not be loaded."""

    def __init__(self, name: str, version: str, installed_version: str) -> None:
        super().__init__(get_version_mismatch_message(name, version, installed_version), name=name)
        self.version = version
        self.installed_version = installed_version

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.name, self.version, self.installed_version)


CORE_CODES = frozenset(
    {
        "invalid_argument",
        "duplicate",
        "mismatch",
        "peer_lost",
        "timeout",
        "shutdown",
        "unsupported",
        "backend",
        "internal",
    }
)
"""The error codes of the native core; each has its exception in :func:`from_core`."""


def from_core(
    code: str,
    message: str,
    rank: int = -1,
    tensor: str = "",
    missing: Sequence[int] = (),
    waited_s: float = 0.0,
    host: str = "",
) -> HorovodError:
    """Translate a failure of the native core into its exception: the one border between the two.

    Args:
        code: one of ``CORE_CODES``; another is a bug of ours and becomes a plain ``HorovodInternalError``.
        message: the sentence for people, complete.
        rank: the rank at fault, -1 if unknown.
        tensor: full name of the operation, "" if none.
        missing: ranks waited for ("timeout", "peer_lost"), or ranks that disagree ("mismatch").
        waited_s: seconds waited ("timeout"), or of silence ("peer_lost").
        host: host name of ``rank``, "" if unknown.
    """
    operation = tensor or None
    who = rank if rank >= 0 else None
    where = host or None
    match code:
        case "invalid_argument":
            return InvalidArgumentError(message, tensor=operation)
        case "duplicate":
            return DuplicateNameError(message, tensor=operation)
        case "mismatch":
            named = message if tensor in message else f"{message} (tensor {tensor})"
            return MismatchError(named, tensor=operation, ranks=missing)
        case "peer_lost":
            return PeerLostError(
                message, rank=who, host=where, tensor=operation, missing=missing, waited_s=waited_s
            )
        case "timeout":
            return CollectiveTimeout(
                message, tensor=operation, missing=missing, waited_s=waited_s, rank=who, host=where
            )
        case "backend":
            return BackendError(message, rank=who, host=where, tensor=operation)
        case "shutdown":
            return ShutdownError(message, rank=who, host=where, tensor=operation)
        case "unsupported":
            return HorovodInternalError(message, recoverable=False, rank=who, host=where, tensor=operation)
        case "internal":
            return HorovodInternalError(message, rank=who, host=where, tensor=operation)
    return HorovodInternalError(f"{message} (unknown error code {code!r} from the core)")


def deprecated(message: str) -> None:
    """Warn that a script uses what will go, at the line of the script: the first outside of this package."""
    level = 1
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "horovod":
        level += 1
        frame = frame.f_back
    warnings.warn(message, DeprecationWarning, stacklevel=level)
