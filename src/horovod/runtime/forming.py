"""Forming of a world: ranks that have met connect to each other and start their engines."""

from __future__ import annotations

import importlib
import itertools
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, cast

from horovod import backends
from horovod.bootstrap.mesh.agreement import Sets, agree_on_sets
from horovod.bootstrap.mesh.connecting import connect
from horovod.bootstrap.mesh.connections import Mesh
from horovod.bootstrap.place.topology import RankPlace, Topology, alone
from horovod.bootstrap.store.meeting import Meeting
from horovod.bootstrap.trust.signing import ObjectSigner
from horovod.config import TIMELINE_DYNAMIC, Config
from horovod.runtime import ending
from horovod.runtime.world import Core, Runtime

if TYPE_CHECKING:
    from horovod import _core

_log = logging.getLogger("horovod")

_FUSION_UNIT_BYTES = 8 * 64
"""Thresholds are rounded up to a multiple of this times the local size: local ranks share whole lines."""

_worlds = itertools.count()  # that this process has formed


def native() -> Core:
    return cast(Core, importlib.import_module("horovod.runtime.native"))


def form(
    config: Config,
    process_sets: Sets,
    core: Core,
    meeting: Meeting,
    communicator: Any,
    of_job: int,
) -> Runtime:
    """Form the world of those who have met, and start its engine.

    Args:
        config: the settings.
        process_sets: members of the sets to create, the same on every rank.
        core: the native module, or what takes its place.
        meeting: of the ranks.
        communicator: of MPI, that a backend may use; or None.
        of_job: the number of the world in an elastic job, from 1; 0: in none.

    Raises:
        InvalidArgumentError: a process set is wrong, or they differ between ranks.
        RendezvousError: the ranks did not come together; the message names who is missing.
        HorovodInternalError: an engine could not start.
    """
    place = meeting.place
    if place.size == 1:
        return _form_alone(config, process_sets, core, meeting, communicator, of_job)
    backend = _backend(config, place, communicator)
    made: list[_core.Engine] = []

    def prepare(topology: Topology, mesh: Mesh) -> None:
        try:
            made.append(
                core.Engine(
                    {
                        **_options(
                            config, topology, mesh.groups, mesh.process_sets, of_job, mesh.segment_limit_bytes
                        ),
                        **_patience(config, mesh.fewest_cores_per_rank),
                    }
                )
            )
            if backend is not None:
                made[0].use_backend(*backend)
            mesh.hand_over(made[0])
            made[0].open()
        finally:
            mesh.close()

    with _released_by_failure(made) as failed:
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
        engine, late = made[0], mesh.late
        if late is not None:
            failed.callback(late.close)
        try:
            meeting.narrow()
            engine.start()
            if late is not None:
                late.start(engine)
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
            late,
            ObjectSigner(meeting.key, mesh.world, topology.hosts),
        )


def _form_alone(
    config: Config, process_sets: Sets, core: Core, meeting: Meeting, communicator: Any, of_job: int
) -> Runtime:
    topology = alone(meeting.place)
    engine = core.Engine(_options(config, topology, [[0]], agree_on_sets([process_sets]), of_job))
    with _released_by_failure([engine]):
        engine.start()
    return Runtime(engine, topology, config, meeting, communicator=communicator)


def _backend(config: Config, place: RankPlace, communicator: Any) -> tuple[Any, str] | None:
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
def _released_by_failure(engines: list[_core.Engine]) -> Iterator[ExitStack]:
    """If the attempt fails they are closed now, not when the exception and its frames are deleted; and before
    them what is put on the stack.
    """
    with ExitStack() as failed:
        failed.callback(_release, engines)
        yield failed
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
    of_job: int,
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
        "timeline": "" if config.timeline == TIMELINE_DYNAMIC else _timeline_of_world(config, of_job),
    }


_LIMITS = ("heartbeat_warning_s", "heartbeat_timeout_s", "operation_timeout_s")
_CROWD = 32
"""Ranks of a core from which on the limits grow with their number."""


def _patience(config: Config, fewest_cores_per_rank: float) -> dict[str, object]:
    """Longer limits of silence where ranks wait long for a core, unless the user has set one. With 130 ranks
    of a core that made connections to each other, a thread got a slice of time in each second, and needs some
    to say that it lives.
    """
    crowded = 1 / (fewest_cores_per_rank * _CROWD)
    if crowded <= 1 or any(getattr(config, name) != getattr(Config, name) for name in _LIMITS):
        return {}
    return {name: crowded * getattr(config, name) for name in _LIMITS}


def _timeline_of_world(config: Config, of_job: int) -> str:
    """The file for this world: in an elastic job each one after the first has a file of its own."""
    if of_job < 2 or not config.timeline:
        return config.timeline
    stem, suffix = os.path.splitext(config.timeline)
    return f"{stem}.world{of_job}{suffix}"


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
