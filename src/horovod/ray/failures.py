"""Waiting for all ranks: the first that fails ends the others, and the error says which and why.

A rank whose function has raised still runs, as its actor does: the others would wait for it in a collective.
And one that fails because of another one may be heard of before that. So after the first failure there is a
moment for what belongs to it; then what still runs is ended.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import ray
from ray.exceptions import (
    GetTimeoutError,
    RayActorError,
    RayError,
    RaySystemError,
    RayTaskError,
    UnserializableException,
)

from horovod.errors import HorovodInternalError, LaunchError, WorkerFailed
from horovod.launch.calls.pickles import pack, why_unpicklable
from horovod.launch.phrases import counted
from horovod.ray.nodes import describe_resources

__all__ = ["ActorFailed", "Member", "await_members", "check_picklable", "first_answers", "late", "shipped"]

_POLL_S = 0.1
_LONG_POLL_S = 1.0
_PATIENCE_S = 2.0
"""Seconds that others may take to end by themselves after one has failed."""
_CAUSE_S = 5.0
"""Seconds that the cause is waited for, when those that have failed have done so because of another rank."""
_MOST_TEXT = 1 << 16  # of a traceback
_MOST_RANKS = 16  # that are named


class ActorFailed(WorkerFailed):
    """A rank has failed, or its actor has died; what still ran of the others was ended. ``host``: the id of
    its node, ``actor``: that of its actor, as ``ray list actors`` shows them. ``ended``: whether actors of
    the job are gone now.
    """

    def __init__(
        self,
        message: str = "",
        *,
        rank: int | None = None,
        host: str | None = None,
        exit_code: int | None = None,
        last_lines: Sequence[str] = (),
        actor: str = "",
        ended: bool = False,
    ) -> None:
        super().__init__(message, rank=rank, host=host, exit_code=exit_code, last_lines=last_lines)
        self.actor = actor
        self.ended = ended


@dataclass(frozen=True)
class Member:
    """A rank and its actor."""

    rank: int
    node_id: str
    hostname: str
    actor: Any

    @property
    def actor_id(self) -> str:
        """As Ray's own tools show it."""
        return str(self.actor._actor_id.hex())

    def described(self) -> str:
        """For messages."""
        return f"rank {self.rank} on node {self.node_id} ({self.hostname}), actor {self.actor_id},"


class _Failure(NamedTuple):
    member: Member
    error: Exception

    @property
    def died(self) -> bool:
        if isinstance(self.error, RayTaskError):  # also that of an actor of the function's own
            return False
        return isinstance(self.error, RayActorError)

    @property
    def weight(self) -> int:
        """Less: rather the cause."""
        if self.died:
            return 0
        cause = self.error.cause if isinstance(self.error, RayTaskError) else self.error
        return 2 if isinstance(cause, HorovodInternalError) else 1


def await_members(
    references: Sequence[Any], members: Sequence[Member], tell: Callable[[], None] | None = None
) -> list[Any]:
    """Wait for the ranks; returns their results in the order of `members`.

    Args:
        references: to the result of each member.
        tell: called about ten times a second; it may take long.

    Raises:
        ActorFailed: one has failed. All that has not ended by then is ended.
    """
    watch = _Watch(references, members)
    try:
        if tell is None:
            while not watch.over:
                watch.look()
        else:
            watch.tell_meanwhile(tell)
    except BaseException:  # Ctrl-C, or a callback that fails
        watch.end()
        raise
    return watch.results()


class _Watch:
    """Of ranks that work. They are ended when it is over."""

    def __init__(self, references: Sequence[Any], members: Sequence[Member]) -> None:
        self.over = not references
        self._members = members
        self._pending = dict(zip(references, members, strict=True))
        self._values: dict[int, Any] = {}
        self._failures: list[_Failure] = []
        self._until = 0.0
        self._ended = 0

    def look(self, wait_s: float = _LONG_POLL_S) -> None:
        """Wait for one more that ends, for a while."""
        done, _ = ray.wait(list(self._pending), num_returns=1, timeout=_POLL_S if self._failures else wait_s)
        for reference in done:
            self._take(reference, self._pending.pop(reference))
        if not self._pending:
            self.over = True
        elif self._failures and not done and time.monotonic() >= self._until:
            self._ended = len(self._pending)  # nothing more has come, however late it is
            self.end()

    def tell_meanwhile(self, tell: Callable[[], None]) -> None:
        """Look on another thread until it is over: callbacks are called on that of the user, and delay
        nothing but themselves.
        """
        left = threading.Event()
        errors: list[BaseException] = []

        def watch() -> None:
            try:
                while not (self.over or left.is_set()):
                    self.look(_POLL_S)
            except BaseException as error:  # reading a result runs code of its type
                errors.append(error)

        thread = threading.Thread(target=watch, name="horovod-ray-watch", daemon=True)
        thread.start()
        try:
            while thread.is_alive():
                thread.join(_POLL_S)
                tell()
        finally:
            left.set()
            thread.join(_PATIENCE_S)
        if errors:
            raise errors[0]

    def end(self) -> None:
        """End those that still run."""
        _end(list(self._pending.values()))
        self.over = True

    def results(self) -> list[Any]:
        """Results that `await_members` promises."""
        if self._failures:
            first = min(self._failures, key=lambda each: each.weight)
            raise _error_of(first, self._ended, self._failures)
        return [self._values[member.rank] for member in self._members]

    def _take(self, reference: Any, member: Member) -> None:
        try:
            self._values[member.rank] = ray.get(reference)
        except RayError as error:
            self._failures.append(_Failure(member, error))
            hearsay = all(each.weight == 2 for each in self._failures)
            self._until = time.monotonic() + (_CAUSE_S if hearsay else _PATIENCE_S)


def first_answers(
    references: Sequence[Any], left_s: float | None, hint: str, *, limit_s: float | None
) -> list[Any]:
    """Wait for the answers of actors that have just been made; returns them in the order of ranks.

    Args:
        left_s: how long they may take, None: as long as they want.
        hint: what to try when that takes too long.
        limit_s: how long it has been then.

    Raises:
        TimeoutError: some do not by then; says which ranks.
        LaunchError: one cannot; says which rank.
    """
    try:
        return list(ray.get(list(references), timeout=left_s))
    except GetTimeoutError:
        raise TimeoutError(
            f"Not all of {len(references)} actors answer after {limit_s:g} s (missing: {late(references)}); "
            f"{describe_resources()}. {hint}"
        ) from None
    except RayError as error:
        raise LaunchError(
            f"RayExecutor.start: the actor of rank {_failed(references)} cannot be started. {error}"
        ) from error


def late(references: Sequence[Any]) -> str:
    """List the ranks that have not answered, for messages."""
    pending = set(ray.wait(list(references), num_returns=len(references), timeout=0)[1])
    ranks = [str(rank) for rank, each in enumerate(references) if each in pending]
    more = f" and {len(ranks) - _MOST_RANKS} more" if len(ranks) > _MOST_RANKS else ""
    return f"rank {', '.join(ranks[:_MOST_RANKS])}{more}" if ranks else "none, the last have come just now"


def _failed(references: Sequence[Any]) -> int:
    """The first rank whose answer is an error."""
    for rank, each in enumerate(references):
        try:
            if ray.wait([each], timeout=0)[0]:
                ray.get(each)
        except RayError:
            return rank
    raise AssertionError("no answer is an error")


def shipped(
    what: str, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], *, parts: Sequence[Any]
) -> list[Any]:
    """References to ``parts``, in which a function and its arguments go to all ranks, but once to each node.

    Raises:
        LaunchError: it cannot be pickled; says which part.
    """
    try:
        return [ray.put(part) for part in parts]
    except RayError:
        raise
    except Exception as error:
        raise LaunchError(f"{what}: {why_unpicklable(fn, args, kwargs, error)}") from error


def check_picklable(what: str, fn: Callable[..., Any], args: Sequence[Any] = ()) -> None:
    """Of what others than we ship: their errors would not say which part.

    Raises:
        LaunchError: it cannot be pickled; says which part.
    """
    try:
        pack((fn, tuple(args)))
    except Exception as error:
        raise LaunchError(f"{what}: {why_unpicklable(fn, args, {}, error)}") from error


def _end(members: Any) -> None:
    for member in members:
        ray.kill(member.actor)


def _unlike_others(error: Exception) -> str:
    """Describe an error that is not what the function has raised."""
    if isinstance(error, RayActorError):
        return "has died"
    if isinstance(error, UnserializableException):
        return f"has failed, and its error cannot be read here ({type(error).__name__})"
    if isinstance(error, RaySystemError):
        return "has a result that cannot be read here. Can this process import what it is made of?"
    return f"has no result ({type(error).__name__})"


def _of_pickling(trace: str) -> bool:
    """True if the function had returned: the first file that Ray shows is its own pickling of the result."""
    first = re.search(r'File "([^"]*)"', trace)
    return first is not None and "ray/cloudpickle/" in first[1]


def _error_of(first: _Failure, ended: int, failures: Sequence[_Failure]) -> ActorFailed:
    member, error = first.member, first.error
    if isinstance(error, RayTaskError):
        how, trace = f"has raised {type(error.cause).__name__}: {error.cause}", str(error)
        if _of_pickling(trace):
            how = f"has a result that cannot be pickled: {type(error.cause).__name__}: {error.cause}"
        cause: BaseException = error.cause if isinstance(error.cause, BaseException) else error
    else:
        how, trace, cause = _unlike_others(error), str(error), error
    others = ""
    if ended:
        others = f" {counted(ended, 'rank')} that still ran {'was' if ended == 1 else 'were'} ended."
    also = [str(each.member.rank) for each in failures if each is not first]
    others += f" Failed as well: {', '.join(also)}." if also else ""
    failed = ActorFailed(
        f"{member.described()} {how}{'' if how[-1] in '.?' else '.'}{others}\n{trace[-_MOST_TEXT:]}",
        rank=member.rank,
        host=member.node_id,
        actor=member.actor_id,
        exit_code=1,
        ended=bool(ended) or any(each.died for each in failures),
    )
    failed.__cause__ = cause
    return failed
