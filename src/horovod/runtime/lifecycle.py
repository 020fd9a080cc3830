"""The life of the world in this process: ``start`` forms it, ``stop`` leaves it, ``current`` is what others
ask.

This module holds the current ``Runtime``, and who follows it. Whatever else a process keeps is listed in
docs/architecture.md, with what becomes of it. After ``start`` only the engine talks to other ranks.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from horovod.bootstrap.mesh.agreement import Sets
from horovod.bootstrap.place.starter import Word, ends_rank, tell
from horovod.bootstrap.place.topology import Topology, read_place
from horovod.bootstrap.store.meeting import Meeting, meet
from horovod.bootstrap.store.membership import Assigned, Expected, place_variables
from horovod.bootstrap.variables import remarks
from horovod.config import WARNING_LEVEL, Config
from horovod.errors import (
    HorovodInternalError,
    InvalidArgumentError,
    NotInitializedError,
    RendezvousError,
)
from horovod.runtime import ending
from horovod.runtime.forming import form, native
from horovod.runtime.part import Part, part_of
from horovod.runtime.stacks import show_on_quit
from horovod.runtime.world import Core, Follower, Runtime

if TYPE_CHECKING:
    from horovod import _core
    from horovod.backends.communicators import CommunicatorWorld

__all__ = ["Core", "Follower", "Runtime", "current", "follow", "is_initialized", "start", "stop"]

_log = logging.getLogger("horovod")

_DRAIN_S = 10.0
"""Time that a process that ends goes on to serve ranks that are behind. They need milliseconds."""

_COME_BACK_S = 1.0
"""Time that a process that ends waits for other threads' calls. Everything that these wait for has ended by
then.
"""


@dataclass(frozen=True, eq=False)
class _Stopped:
    """No world was formed. The meeting point is kept for the next attempt, because other ranks may already be
    at the store.

    ``refusal`` is the error in the process sets, if that was the reason: all ranks have it, and none can try
    again. ``because``: the rank that was the reason.
    """

    meeting: Meeting | None = None
    refusal: str = ""
    because: int | None = None


@dataclass(frozen=True, eq=False)
class _Forked:
    """Replaces the runtime in a forked child. It keeps the engine alive, because the engine's threads exist
    only in the parent and it cannot end here."""

    parent: int
    runtime: Runtime


@dataclass(frozen=True, eq=False)
class _Awaited:
    """This process is to join a world that is at work: it prepares, and has a place that it may expect.

    ``runtime`` has that place, and no engine: the first use of it waits for the world. ``then``: what is done
    as soon as there is one.
    """

    runtime: Runtime
    settings: Config
    process_sets: Sets
    environ: Mapping[str, str]
    core: Core | None
    part: Part
    then: list[Callable[[Runtime], None]] = field(default_factory=list)
    meeting: None = None


class _EngineToCome:
    """In place of the engine of a world that this process is not in yet."""

    def __getattr__(self, name: str) -> Any:
        enter()
        return getattr(current().engine, name)


_current: Runtime | _Forked | _Stopped | _Awaited = _Stopped()
running: _core.Engine | None = None
"""The engine of the present world: what :func:`current` has, for those who ask at every operation."""
_followers: list[Follower] = []  # of the imported frameworks; never shrinks
_part: Part | None = None  # in an elastic job; once made it stays
_lock = threading.RLock()  # guards changes of _current and _followers; reading needs none


def start(
    config: Config | None = None,
    *,
    process_sets: Sets = (),
    environ: Mapping[str, str] = os.environ,
    core: Core | None = None,
    communicator: CommunicatorWorld | None = None,
) -> Runtime:
    """Form the world that the environment describes; does nothing if there is one already.

    Blocks until all ranks have met. Without a launcher this is a world of one: no socket, no file, no
    waiting. In an elastic job a process that comes later does not block: it prepares for the place that it is
    told, and `enter` waits until the others let it in.

    Args:
        config: the settings; by default those in ``environ``.
        process_sets: members of the sets to create beside the one of all ranks, the same on every rank;
            numbered from 1 in this order. Repeated ones, and all ranks, get no number of their own.
        environ: says who this process is and where to meet.
        core: the native module, by default ``horovod._core``.
        communicator: the world is that of a communicator; it says who this process is, not ``environ``.

    Raises:
        ConfigError: the environment makes no sense.
        InvalidArgumentError: a process set is wrong, or they differ between ranks; also in later attempts.
        RendezvousError: the ranks did not come together; the message names who is missing.
        HorovodInternalError: this process was forked from one that had a world.
        SystemExit: the elastic job needs this process no more.
    """
    global _current, _part
    show_on_quit(environ)
    with _lock:
        if isinstance(_current, _Forked):
            raise _forked_error(_current)
        if isinstance(_current, _Awaited):
            return _current.runtime
        if isinstance(_current, Runtime):
            return _current
        settings = Config.from_environ(environ) if config is None else config
        if communicator is not None:
            environ = communicator.environ
            settings = replace(settings, job_id=environ.get("HOROVOD_JOB_ID", ""))
            return _enter(_current, settings, process_sets, environ, core, communicator)
        _part = _part or part_of(settings, environ)
        if _part is None:
            return _enter(_current, settings, process_sets, environ, core, None)
        answer = _part.enter()
        if isinstance(answer, Assigned):
            return _enter_round(_part, answer, settings, process_sets, environ, core)
        runtime = _expected(answer, settings, environ)
        _current = _Awaited(runtime, settings, process_sets, environ, core, _part)
        return runtime


def enter() -> bool:
    """Be in the world: a newcomer of an elastic job waits here until it is let in; others do nothing.

    Returns:
        Whether rank or size are others than ``start`` let it expect.

    Raises:
        HorovodInternalError: the driver of the job is gone.
        SystemExit: the job needs this process no more.
    """
    with _lock:
        waiting = _current
        if not isinstance(waiting, _Awaited):
            return False
        answer = waiting.part.ready()
        runtime = _enter_round(
            waiting.part, answer, waiting.settings, waiting.process_sets, waiting.environ, waiting.core
        )
        for do in waiting.then:
            do(runtime)
        before, now = waiting.runtime.topology, runtime.topology
        return (before.rank, before.size) != (now.rank, now.size)


def when_entered(do: Callable[[Runtime], None]) -> None:
    """Call ``do`` with the world that was started: now, or when a newcomer is let in."""
    with _lock:
        if isinstance(_current, _Awaited):
            _current.then.append(do)
        else:
            do(current())


def part() -> Part | None:
    """Part of this process in an elastic job; None: its job is not elastic."""
    return _part


def _enter(
    before: _Stopped | _Awaited,
    settings: Config,
    process_sets: Sets,
    environ: Mapping[str, str],
    core: Core | None,
    communicator: CommunicatorWorld | None,
) -> Runtime:
    """Form the world that ``environ`` describes."""
    global _current, running
    place = read_place(environ)
    if place.rank == 0 and before.meeting is None:
        _remark(settings, environ)
    if isinstance(before, _Stopped) and before.refusal:
        raise InvalidArgumentError(before.refusal)
    meeting = meet(place, settings, environ, before.meeting)
    if communicator is not None:
        meeting = replace(meeting, served=communicator.served)
    _current = _Stopped(meeting)
    ending.note_endings(_script_failed, _thread_failed)
    for at_end in (_serve_on, _say_why):  # called in the other order, so the launcher hears at once
        atexit.unregister(at_end)
        atexit.register(at_end)
    _current = _attempt(
        settings,
        process_sets,
        native() if core is None else core,
        meeting,
        communicator and communicator.communicator,
    )
    running = _current.engine
    for follower in _followers:
        follower.enter(_current)
    atexit.unregister(_exit)  # one registration is enough, however often a world is formed
    atexit.register(_exit)
    return _current


def _enter_round(
    part: Part,
    answer: Assigned,
    settings: Config,
    process_sets: Sets,
    environ: Mapping[str, str],
    core: Core | None,
) -> Runtime:
    """Form the world that the driver of an elastic job has told; where that fails, the next one."""
    while True:
        before = _current
        assert isinstance(before, _Stopped | _Awaited)
        settings = replace(settings, epoch=str(answer.round))
        try:
            runtime = _enter(
                before, settings, process_sets, {**environ, **place_variables(answer.place)}, core, None
            )
        except RendezvousError as error:
            if not error.recoverable:
                raise
            _log.warning("World %d could not be formed: %s", answer.round, error)
            part.spoiled(error)
        else:
            part.formed()
            return runtime
        answer = part.ready()


def _expected(answer: Expected, settings: Config, environ: Mapping[str, str]) -> Runtime:
    """Make the runtime of a newcomer from what it knows of the world that it prepares for."""
    rank, size, local_rank, local_size, cross_rank, cross_size = answer.place
    host = environ.get("HOROVOD_HOSTNAME", "")
    topology = Topology(
        rank, size, local_rank, local_size, cross_rank, cross_size, homogeneous=True, hosts=(host,) * size
    )
    return Runtime(cast("_core.Engine", _EngineToCome()), topology, settings)


def _remark(settings: Config, environ: Mapping[str, str]) -> None:
    """Tell what was set in vain; once, when rank 0 forms its first world."""
    if settings.log_level <= WARNING_LEVEL:
        for remark in remarks(environ):
            _log.warning("%s", remark)


def follow(follower: Follower) -> None:
    """Tell ``follower`` about every world from now on; about the present one at once."""
    with _lock:
        _followers.append(follower)
        if isinstance(_current, Runtime):
            follower.enter(_current)


def stop() -> None:
    """Leave the world: what is in flight fails everywhere. Idempotent; returns when the engine has ended."""
    global _current
    with _lock:
        if isinstance(_current, _Awaited):
            _current = _Stopped()
        if not isinstance(_current, Runtime):
            return
        sharing = list(_current.sharing)
        word = _last_word(_current)
        if _part is not None:
            failure = _current.engine.failure()
            _part.left(failure, ending.first_failed(_current.topology.rank, None, failure))
        try:
            _end(_current)
        finally:
            tell(word)
            for owner in sharing:
                owner.leave()
            if _part is not None:
                _part.mark("leave")


def _end(runtime: Runtime, script_over: bool = False) -> None:
    global _current, running
    try:
        runtime.engine.shutdown(script_over)
    finally:
        if runtime.late is not None:
            runtime.late.close()
        for follower in _followers:
            follower.leave()
        # The Python object may live on: handles, tracebacks and others refer to it. Where the interpreter
        # ends, calls of daemon threads come back before.
        runtime.engine.release(_COME_BACK_S if script_over else 0.0)
        for process_set in list(runtime.numbered):
            process_set.process_set_id = None
        _current, running = _Stopped(runtime.meeting), None


def _exit() -> None:
    """The process ends: leave the world."""
    with _lock:
        if isinstance(_current, Runtime):
            _tell_end(_current, ending.noted())
            _end(_current, script_over=True)  # nothing reads shared memory any more


def _serve_on() -> None:
    """The process ends: keep the store for ranks that still form the world, or have to hear why there is
    none. Takes no lock: a daemon thread that forms one may have it.
    """
    world = _current
    if not isinstance(world, _Forked) and world.meeting is not None:
        world.meeting.end(os.environ, _DRAIN_S)


def _say_why() -> None:
    """The script ends with an error status while there is no world: tell the launcher the cause."""
    world = _current
    end = ending.noted()
    if end is not None and end.error is None and isinstance(world, _Stopped) and world.because is not None:
        tell(Word(False, end.what, world.because))


def _script_failed(end: ending.ScriptEnd) -> None:
    """An uncaught exception ends the main thread. Takes no lock: a thread that holds it may wait for
    others.
    """
    world = _current
    if isinstance(world, Runtime):
        _tell_end(world, end)
    elif isinstance(world, _Stopped):
        rank = world.meeting.place.rank if world.meeting is not None else -1
        tell(Word(False, end.what, ending.first_failed(rank, end.error, None), ends_rank()))


def _thread_failed(end: ending.ScriptEnd) -> None:
    """A thread has failed. A hook of the script may end the process next, so tell the launcher now."""
    world = _current
    if isinstance(world, Runtime):
        cause = ending.first_failed(world.topology.rank, end.error, world.engine.failure())
        tell(Word(True, end.what, cause))


def _tell_end(runtime: Runtime, end: ending.ScriptEnd | None) -> None:
    """Tell the launcher why the script ends, and the other ranks too if the failure is this rank's own."""
    failure = runtime.engine.failure()
    cause = ending.first_failed(runtime.topology.rank, end.error if end is not None else None, failure)
    if end is not None:
        tell(Word(True, end.what, cause, ends_rank()))
        runtime.engine.shutdown(failure=end.what)
    elif cause is not None:
        tell(Word(True, ending.describe(failure) if failure is not None else "", cause))


def _last_word(runtime: Runtime) -> Word:
    """The word for the launcher on leaving. If the script has failed already, it has that reason."""
    end = ending.noted()
    if end is None:
        return Word(in_world=False)
    return Word(
        False, end.what, ending.first_failed(runtime.topology.rank, end.error, runtime.engine.failure())
    )


def current() -> Runtime:
    """The runtime of this process.

    Raises:
        NotInitializedError: before ``start`` and after ``stop``.
        HorovodInternalError: this process was forked from one that had a world.
    """
    runtime = _current
    if isinstance(runtime, Runtime):
        return runtime
    if isinstance(runtime, _Awaited):
        return runtime.runtime
    if isinstance(runtime, _Forked):
        raise _forked_error(runtime)
    raise NotInitializedError


def is_initialized() -> bool:
    """Return whether this process has a world. Never raises."""
    return isinstance(_current, Runtime | _Awaited)


def has_topology() -> bool:
    """Return whether this process has a world, or was forked from one that had. Never raises."""
    return is_initialized() or isinstance(_current, _Forked)


def topology() -> Topology:
    """The place of this process in its world. A forked child, such as a worker of a loader that shares
    samples out by rank, has that of its parent.

    Raises:
        NotInitializedError: before ``start`` and after ``stop``.
    """
    runtime = _current
    return runtime.runtime.topology if isinstance(runtime, _Forked) else current().topology


def _attempt(config: Config, process_sets: Sets, core: Core, meeting: Meeting, communicator: Any) -> Runtime:
    """Form the world. What a failure means for the next attempt is kept."""
    global _current
    formed = None
    tell(Word(in_world=True))  # from now on this rank may wait for others
    try:
        of_job = 0 if _part is None else _part.round
        formed = form(config, process_sets, core, meeting, communicator, of_job)
    except InvalidArgumentError as error:
        _current = _Stopped(meeting, str(error))
        raise
    except HorovodInternalError as error:
        _current = _Stopped(meeting, because=ending.first_failed(meeting.place.rank, error, None))
        raise
    finally:
        if formed is None:
            tell(Word(in_world=False))
    return formed


def _forked_error(forked: _Forked) -> HorovodInternalError:
    topology = forked.runtime.topology
    return HorovodInternalError(
        f"This process was forked from rank {topology.rank} (process {forked.parent}) after hvd.init(), and "
        "cannot take part: connections and threads stay with the parent. Call hvd.init() after forking, in "
        "the process that trains, or start workers with the 'spawn' or 'forkserver' method.",
        recoverable=False,
    )


def _after_fork_in_child() -> None:
    global _current, _lock, running
    running = None
    _lock = threading.RLock()  # another thread of the parent may have held it
    if not isinstance(_current, _Forked) and _current.meeting is not None:
        _current.meeting.abandon()
    if isinstance(_current, Runtime):
        _current = _Forked(os.getppid(), _current)
    elif isinstance(_current, _Awaited):
        _current = _Forked(os.getppid(), _current.runtime)
    elif isinstance(_current, _Stopped):
        _current = _Stopped()


os.register_at_fork(after_in_child=_after_fork_in_child)
