"""The life of the world in this process: ``start`` forms it, ``stop`` leaves it, ``current`` is what others
ask.

This module holds the current ``Runtime``, and who follows it. Whatever else a process keeps is listed in
docs/architecture.md, with what becomes of it. After ``start`` only the engine talks to other ranks.
"""

from __future__ import annotations

import atexit
import importlib
import itertools
import logging
import math
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, cast

from horovod import backends
from horovod.bootstrap.connections import Mesh
from horovod.bootstrap.meeting import Meeting, meet
from horovod.bootstrap.membership import Expected, Placed, place_variables
from horovod.bootstrap.memory import available_bytes
from horovod.bootstrap.mesh import connect
from horovod.bootstrap.signing import ObjectSigner
from horovod.bootstrap.starter import Word, tell
from horovod.bootstrap.static_sets import Sets, agree_on_sets, wrong_ranks
from horovod.bootstrap.topology import Place, Topology, alone, read_place
from horovod.bootstrap.variables import remarks
from horovod.config import TIMELINE_DYNAMIC, WARNING_LEVEL, Config
from horovod.errors import (
    HorovodInternalError,
    InvalidArgumentError,
    NotInitializedError,
    RendezvousError,
)
from horovod.runtime import blame, ending
from horovod.runtime.part import Part, part_of

if TYPE_CHECKING:
    from horovod import _core
    from horovod.backends.communicators import CommunicatorWorld

__all__ = ["Core", "Follower", "Runtime", "current", "follow", "is_initialized", "start", "stop"]

_log = logging.getLogger("horovod")

_FUSION_UNIT_BYTES = 8 * 64
"""Thresholds are rounded up to a multiple of this times the local size: local ranks share whole lines."""

_DRAIN_S = 10.0
"""How long a process that ends goes on to serve ranks that are behind. They need milliseconds."""

_COME_BACK_S = 1.0
"""How long a process that ends waits for other threads' calls. What they wait for has ended then."""


class Core(Protocol):
    """The part of the native module ``horovod._core`` that is used here; tests replace it."""

    Engine: Any

    def segment_bytes(self, local_size: int) -> int: ...

    def segment_base_bytes(self, local_size: int) -> int: ...

    def missing_cipher(self) -> str: ...


class Numbered(Protocol):
    """A process set that has a number in the current world."""

    process_set_id: int | None


class Sharing(Protocol):
    """An owner of tensors in memory that the ranks of a host share."""

    def leave(self) -> None:
        """The world has ended: move the tensors to private memory."""


class Follower(Protocol):
    """Native code that keeps a reference to the engine, instead of asking this module each time."""

    def enter(self, runtime: Runtime) -> None:
        """A world was formed."""

    def leave(self) -> None:
        """The world has ended. On return, nothing uses its engine any more."""


@dataclass(frozen=True, eq=False)
class Runtime:
    """One world, as seen by this process. ``numbered``: the process sets whose number ends with it.
    ``sharing``: whoever must leave shared memory before other ranks form the next one. ``groups``: ranks that
    share memory. ``cores_per_rank``: of this machine, for its ranks.
    ``signer``: of objects that ranks send each other.
    ``backend``: the class that moves the bytes; None: the engine does. ``communicator``: of MPI, that
    ``init`` was given.
    """

    engine: _core.Engine
    topology: Topology
    config: Config
    meeting: Meeting | None = None
    groups: Sequence[Sequence[int]] = ()
    cores_per_rank: float = math.inf
    backend: Any = None
    communicator: Any = None
    signer: ObjectSigner = field(default_factory=lambda: ObjectSigner(b"", b""))
    numbered: weakref.WeakSet[Numbered] = field(default_factory=weakref.WeakSet)
    sharing: weakref.WeakSet[Sharing] = field(default_factory=weakref.WeakSet)

    @property
    def alone(self) -> bool:
        """Whether there is nobody to exchange with, now and later: an elastic world may grow."""
        return self.topology.size == 1 and not self.config.elastic

    def wrong_ranks(self, ranks: Sequence[int]) -> str:
        """Say what is wrong with ``ranks`` (ascending) as a process set; empty if nothing is."""
        return wrong_ranks(ranks, self.topology.size)

    def share_memory(self, ranks: Sequence[int] | None) -> bool:
        """Whether all of ``ranks`` (None: everybody) share memory with each other."""
        if self.backend is not None:
            return False  # a backend in Python cannot use shared memory
        if ranks is None:
            return len(self.groups) == 1
        return any(set(ranks) <= set(group) for group in self.groups)

    def has_room_for(self, memory_bytes: int) -> bool:
        """Whether this machine can give so much memory before the kernel has to end processes."""
        left = available_bytes()
        return left is None or left > memory_bytes


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
_worlds = itertools.count()  # that this process has formed
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
        if isinstance(answer, Placed):
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
    """What this process is in an elastic job; None: its job is none."""
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
    atexit.unregister(_say_why)
    atexit.register(_say_why)
    _current = _attempt(
        settings,
        process_sets,
        _native() if core is None else core,
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
    answer: Placed,
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
    """What a newcomer knows of the world that it prepares for."""
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
            _part.left(failure, blame.first_failed(_current.topology.rank, None, failure))
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
        for follower in _followers:
            follower.leave()
        # The Python object may live on: handles, tracebacks and others refer to it. Where the interpreter
        # ends, calls of daemon threads come back before.
        runtime.engine.release(_COME_BACK_S if script_over else 0.0)
        for process_set in list(runtime.numbered):
            process_set.process_set_id = None
        _current, running = _Stopped(runtime.meeting), None


def _exit() -> None:
    """The process ends: leave the world, but keep the store for ranks that are still forming it."""
    with _lock:
        if isinstance(_current, Runtime):
            _tell_end(_current, ending.noted())
            _end(_current, script_over=True)  # nothing reads shared memory any more
    if not isinstance(_current, _Forked) and _current.meeting is not None:
        _current.meeting.end(os.environ, _DRAIN_S)


def _say_why() -> None:
    """The script ends with an error status while there is no world: tell the launcher the cause."""
    world = _current
    end = ending.noted()
    if end is not None and end.error is None and isinstance(world, _Stopped) and world.because is not None:
        tell(Word(False, end.what, world.because))


def _script_failed(end: ending.Ending) -> None:
    """An uncaught exception ends the main thread. Takes no lock: a thread that holds it may wait for
    others.
    """
    world = _current
    if isinstance(world, Runtime):
        _tell_end(world, end)
    elif isinstance(world, _Stopped):
        rank = world.meeting.place.rank if world.meeting is not None else -1
        tell(Word(False, end.what, blame.first_failed(rank, end.error, None)))


def _thread_failed(end: ending.Ending) -> None:
    """A thread has failed. A hook of the script may end the process next, so tell the launcher now."""
    world = _current
    if isinstance(world, Runtime):
        cause = blame.first_failed(world.topology.rank, end.error, world.engine.failure())
        tell(Word(True, end.what, cause))


def _tell_end(runtime: Runtime, end: ending.Ending | None) -> None:
    """Tell the launcher why the script ends, and the other ranks too if the failure is this rank's own."""
    failure = runtime.engine.failure()
    cause = blame.first_failed(runtime.topology.rank, end.error if end is not None else None, failure)
    if end is not None:
        tell(Word(True, end.what, cause))
        runtime.engine.shutdown(failure=end.what)
    elif cause is not None:
        tell(Word(True, ending.describe(failure) if failure is not None else "", cause))


def _last_word(runtime: Runtime) -> Word:
    """The word for the launcher on leaving. If the script has failed already, it has that reason."""
    end = ending.noted()
    if end is None:
        return Word(in_world=False)
    return Word(
        False, end.what, blame.first_failed(runtime.topology.rank, end.error, runtime.engine.failure())
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
    """Whether this process has a world. Never raises."""
    return isinstance(_current, Runtime | _Awaited)


def _attempt(config: Config, process_sets: Sets, core: Core, meeting: Meeting, communicator: Any) -> Runtime:
    """Form the world. What a failure means for the next attempt is kept."""
    global _current
    formed = None
    tell(Word(in_world=True))  # from now on this rank may wait for others
    try:
        formed = _form(config, process_sets, core, meeting, communicator)
    except InvalidArgumentError as error:
        _current = _Stopped(meeting, str(error))
        raise
    except HorovodInternalError as error:
        _current = _Stopped(meeting, because=blame.first_failed(meeting.place.rank, error, None))
        raise
    finally:
        if formed is None:
            tell(Word(in_world=False))
    return formed


def _form(config: Config, process_sets: Sets, core: Core, meeting: Meeting, communicator: Any) -> Runtime:
    place = meeting.place
    if place.size == 1:
        return _form_alone(config, process_sets, core, meeting, communicator)
    backend = _backend(config, place, communicator)
    made: list[_core.Engine] = []

    def prepare(topology: Topology, mesh: Mesh) -> None:
        try:
            made.append(
                core.Engine(
                    _options(config, topology, mesh.groups, mesh.process_sets, mesh.segment_limit_bytes)
                )
            )
            if backend is not None:
                made[0].use_backend(*backend)
            mesh.hand_over(made[0])
            made[0].open()
        finally:
            mesh.close()

    with _released_by_failure(made):
        topology, mesh = connect(
            place,
            config,
            meeting.key,
            core.segment_bytes,
            process_sets,
            core.segment_base_bytes,
            core.missing_cipher(),
            prepare,
        )
        engine = made[0]
        meeting.narrow()
        try:
            engine.start()
            if backend is not None:
                _meet_over(engine)
        except BaseException as error:
            engine.shutdown(failure=f"could not start: {ending.describe(error)}")
            raise
    return Runtime(
        engine,
        topology,
        config,
        meeting,
        mesh.groups,
        mesh.cores_per_rank,
        backend and backend[0],
        communicator,
        ObjectSigner(meeting.key, mesh.world, topology.hosts),
    )


def _form_alone(
    config: Config, process_sets: Sets, core: Core, meeting: Meeting, communicator: Any
) -> Runtime:
    topology = alone(meeting.place)
    engine = core.Engine(_options(config, topology, [[0]], agree_on_sets([process_sets])))
    with _released_by_failure([engine]):
        engine.start()
    return Runtime(engine, topology, config, meeting, communicator=communicator)


def _backend(config: Config, place: Place, communicator: Any) -> tuple[Any, str] | None:
    """The class that moves the bytes, and its name; None: the engine does.

    Raises:
        HorovodError: it cannot serve this world.
    """
    found = backends.load(config)
    if found is None:
        return None
    kind, name = found
    if communicator is not None and hasattr(kind, "over"):
        kind = kind.over(communicator)
    if hasattr(kind, "check"):
        kind.check(place.rank, place.size)
    return kind, name


@contextmanager
def _released_by_failure(engines: list[_core.Engine]) -> Iterator[None]:
    """If the attempt fails they are closed now, not when the exception and its frames are deleted."""
    with ExitStack() as failed:
        failed.callback(_release, engines)
        yield
        failed.pop_all()


def _release(engines: list[_core.Engine]) -> None:
    for engine in engines:
        engine.shutdown()
        engine.release()


def _meet_over(engine: _core.Engine) -> None:
    """Let the ranks meet over their backend in Python, so that its errors are raised here."""
    core = importlib.import_module("horovod._core")
    engine.submit(core.BARRIER, None, None, core.SUM, 1.0, 1.0, 0, 0, core.BLOCKING)


def _options(
    config: Config,
    topology: Topology,
    groups: list[list[int]],
    process_sets: list[list[int]],
    segment_limit_bytes: int | None = None,
) -> dict[str, object]:
    """Every setting of the engine by its name: those of ``config``, and what follows from the world."""
    return {
        **config.of_engine(),
        "rank": topology.rank,
        "size": topology.size,
        "groups": groups,
        "hosts": list(topology.hosts),
        "process_sets": process_sets,
        "segment_limit_bytes": segment_limit_bytes,
        "first_handle": next(_worlds) << 32,  # one of an ended world must mean nothing in the next
        "fusion_threshold_bytes": _fusion_threshold_bytes(config, topology),
        "thread_affinity": _core_of_engine(config, topology),
        "nccl_library": _nccl_library(),
        "timeline": "" if config.timeline == TIMELINE_DYNAMIC else _timeline_of_world(config),
    }


def _timeline_of_world(config: Config) -> str:
    """The file for this world: in an elastic job each one after the first has a file of its own."""
    if _part is None or _part.round < 2 or not config.timeline:
        return config.timeline
    stem, suffix = os.path.splitext(config.timeline)
    return f"{stem}.world{_part.round}{suffix}"


def _nccl_library(environ: Mapping[str, str] = os.environ) -> str:
    """The file of NCCL for the engine; empty: what the process or the system has."""
    named = any(environ.get(f"HOROVOD_NCCL_{what}") for what in ("LIB", "HOME"))
    if not named and not os.path.exists("/dev/nvidiactl"):
        return ""
    from horovod.devices.nccl import nccl_for_engine  # most machines have no device

    return nccl_for_engine(environ)


def _fusion_threshold_bytes(config: Config, topology: Topology) -> int:
    if not topology.homogeneous:
        return config.fusion_threshold_bytes
    unit = topology.local_size * _FUSION_UNIT_BYTES
    return -(-config.fusion_threshold_bytes // unit) * unit


def _core_of_engine(config: Config, topology: Topology) -> int:
    cores = config.thread_affinity
    if not cores:
        return -1
    if len(cores) < topology.local_size:
        _log.error(
            "HOROVOD_THREAD_AFFINITY names %d cores for %d local ranks: no thread is pinned.",
            len(cores),
            topology.local_size,
        )
        return -1
    return cores[topology.local_rank]


def _native() -> Core:
    return cast(Core, importlib.import_module("horovod.runtime.native"))


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
