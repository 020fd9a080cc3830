"""Life cycle, topology and capabilities: the functions that every framework module offers under the same
names."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from horovod import _core
from horovod.backends import communicators
from horovod.backends.mpi import MpiBackend
from horovod.bootstrap.place import mpi_library
from horovod.config import Config
from horovod.devices import ways
from horovod.errors import InvalidArgumentError
from horovod.runtime import lifecycle
from horovod.runtime.process_set import ProcessSet, init_with_sets

if TYPE_CHECKING:
    from horovod.devices.pin import Pinned

__all__ = ["HorovodBasics"]


class HorovodBasics:
    """The basic functions as methods of one object per framework module.

    Args:
        pkg_path, args: where the native library of a framework module would be; there is none to find here,
            the arguments are accepted because scripts construct this class.
    """

    Average = _core.AVERAGE
    Sum = _core.SUM
    Adasum = _core.ADASUM
    Min = _core.MIN
    Max = _core.MAX
    Product = _core.PRODUCT

    HOROVOD_PROCESS_SET_ERROR_INIT = -1
    HOROVOD_PROCESS_SET_ERROR_DYNAMIC = -2
    HOROVOD_PROCESS_SET_ERROR_UNKNOWN_SET = -3
    HOROVOD_PROCESS_SET_ERROR_FOREIGN_SET = -4
    HOROVOD_PROCESS_SET_ERROR_SHUTDOWN = -5
    HOROVOD_PROCESS_SET_ERROR_EXISTING_SET = -6

    def __init__(self, pkg_path: str = "", *args: Any) -> None:
        pass

    # -- life cycle -----------------------------------------------------------------------------------------

    def init(self, comm: Any = None, process_sets: Sequence[ProcessSet] | str | None = None) -> None:
        """Form the world with all other launched processes. A second call while initialised changes nothing.

        Args:
            comm: a communicator of mpi4py: its members are the world, with its ranks; no launcher needs to be
                known, as they meet through MPI. Or ranks of ``MPI.COMM_WORLD``, honoured where
                ``HOROVOD_CONTROLLER`` or ``HOROVOD_CPU_OPERATIONS`` is ``mpi`` and ignored elsewhere.
            process_sets: the static process sets, the same in the same order on every rank, members or not;
                or ``"dynamic"`` (in any letter case), which allows adding and removing sets later, as
                ``HOROVOD_DYNAMIC_PROCESS_SETS=1`` does: it sets that variable of this process. So it also
                holds for later worlds, such as those that elastic training forms.

        Raises:
            ValueError: ``comm`` is neither, or does not have this process; ``process_sets`` is another text,
                or wrong, or differs between ranks: see :func:`horovod.runtime.process_set.init_with_sets`.
            KeyError: the world stands already and has no such process set.
            HorovodInternalError: the world could not be formed.
        """
        if isinstance(process_sets, str):
            if process_sets.lower() != "dynamic":
                raise InvalidArgumentError(
                    f"process_sets must be a sequence of ProcessSet or 'dynamic', got {process_sets!r}."
                )
            os.environ["HOROVOD_DYNAMIC_PROCESS_SETS"] = "1"
            process_sets = None
        init_with_sets(list(process_sets or ()), _world_of(comm))

    def shutdown(self) -> None:
        """End the world on every rank; harmless if there is none."""
        lifecycle.stop()

    def is_initialized(self) -> bool:
        """Return whether :meth:`init` has been called, and :meth:`shutdown` not since; in a forked child,
        such as a worker of a loader, by its parent."""
        return lifecycle.has_topology()

    # -- timeline -------------------------------------------------------------------------------------------

    def start_timeline(self, file_path: str | os.PathLike[str], mark_cycles: bool = False) -> None:
        """Record what is negotiated and run into a new file, in the trace-event format of Chrome's viewer.

        A timeline that runs already ends in its file and goes on in this one; if the file is the current one
        nothing changes. Only rank 0 writes; the file is open on return. If it cannot be written, an error is
        logged and nothing else happens.

        Args:
            file_path: an existing file is replaced; folders that are missing are made.
            mark_cycles: also mark each time the engine begins to work on something new, at most once per
                ``HOROVOD_CYCLE_TIME``.

        Raises:
            ValueError: before :meth:`init`, or ``HOROVOD_TIMELINE`` was not set then.
        """
        runtime = lifecycle.current()
        if not runtime.config.timeline:
            raise InvalidArgumentError(
                "start_timeline() needs HOROVOD_TIMELINE=DYNAMIC in the environment of every rank before "
                "hvd.init()."
            )
        runtime.engine.start_timeline(os.fspath(file_path), bool(mark_cycles))

    def stop_timeline(self) -> None:
        """End the timeline: its file is complete on return. Harmless if there is none.

        Raises:
            ValueError: before :meth:`init`.
        """
        lifecycle.current().engine.stop_timeline()

    # -- topology: all raise NotInitializedError (a ValueError) before init; forked children have the parent's

    def size(self) -> int:
        """Number of processes."""
        return lifecycle.topology().size

    def local_size(self) -> int:
        """Number of processes on this host."""
        return lifecycle.topology().local_size

    def cross_size(self) -> int:
        """Number of hosts that have a process with this local rank."""
        return lifecycle.topology().cross_size

    def rank(self) -> int:
        """Number of this process, 0 … size-1."""
        return lifecycle.topology().rank

    def local_rank(self) -> int:
        """Position of this process among those of its host."""
        return lifecycle.topology().local_rank

    def cross_rank(self) -> int:
        """Position of this host among those that have a process with this local rank."""
        return lifecycle.topology().cross_rank

    def is_homogeneous(self) -> bool:
        """Return whether all hosts have the same number of processes."""
        return lifecycle.topology().homogeneous

    def pin(self, cores: bool | None = None) -> Pinned:
        """Take this rank's device and cores of its host, from what a scheduler has left it.

        The device is that of the local rank; ranks beyond the last one begin with the first again. PyTorch
        and TensorFlow are told, if they are imported and can use it; for others ``CUDA_VISIBLE_DEVICES`` is
        set, if nothing has started CUDA yet. So call it right after :meth:`init`. It may take seconds.

        Without a device nothing fails: ``Pinned.device`` is None, and cores are bound only if asked for.
        Cores that are this rank's alone already, as a scheduler may give them, are left as they are.

        Args:
            cores: bind this process to its share of the cores near its device: True, also without a device;
                False, never; by default, if the machine says which cores are near.

        Returns:
            What was taken and why: ``device``, ``name``, ``uuid``, ``numa_node``, ``cores``, ``adapters``,
            ``why``.

        Raises:
            ValueError: before :meth:`init`.
        """
        runtime = lifecycle.current()
        from horovod.devices import pin  # only who asks for it pays for it

        topology = runtime.topology
        place = pin.HostPlace(topology.local_rank, topology.local_size, runtime.cores_per_rank)
        return pin.pin(place, cores)

    # -- capabilities ---------------------------------------------------------------------------------------

    def mpi_threads_supported(self) -> bool:
        """Return whether MPI takes calls of several threads at the same time: then scripts may call it while
        operations run.

        Raises:
            ValueError: MPI is not enabled, or :meth:`init` has not been called.
        """
        if not self.mpi_enabled():
            raise InvalidArgumentError("Horovod MPI is not enabled; no MPI thread support to ask for.")
        return communicators.threads_supported()

    def mpi_enabled(self) -> bool:
        """Return whether the operations go through MPI, or the world is that of a communicator."""
        if not lifecycle.is_initialized():
            return False
        runtime = lifecycle.current()
        backend = runtime.backend
        return runtime.communicator is not None or (
            isinstance(backend, type) and issubclass(backend, MpiBackend)
        )

    def mpi_built(self) -> bool:
        """Return whether MPI can be used: mpi4py is installed and finds a library. Does not start MPI."""
        return mpi_library.usable()

    def gloo_enabled(self) -> bool:
        """Return whether the TCP controller, which scripts know as Gloo, runs."""
        return lifecycle.is_initialized()

    def gloo_built(self) -> bool:
        """True: the TCP controller, which scripts know as Gloo, is always there."""
        return True

    def nccl_built(self) -> int:
        """Version code of NCCL, 22703 for 2.27.3; 0 if this version does not use it or none is there."""
        return ways.nccl_code()

    def ddl_built(self) -> bool:
        """False: IBM's DDL is not supported. For scripts that ask."""
        return False

    def ccl_built(self) -> bool:
        """False: oneCCL is not supported. For scripts that ask."""
        return False

    def cuda_built(self) -> bool:
        """Return whether this version takes tensors in the memory of CUDA devices, if there are any."""
        return bool(ways.SERVED)

    def rocm_built(self) -> bool:
        """False: tensors in the memory of ROCm devices are not supported yet."""
        return False

    def _get_process_set_ids_and_ranks(self) -> dict[int, list[int]]:
        """Members of all registered process sets by number; 0 is the world.

        Raises:
            NotInitializedError: :meth:`init` has not been called.
        """
        return lifecycle.current().engine.process_sets()


def _world_of(comm: Any) -> communicators.CommunicatorWorld | None:
    """The world that ``init(comm)`` asks for; None: that of the environment."""
    if comm is None or lifecycle.is_initialized():
        return None
    communicator = comm
    if not communicators.is_communicator(comm):
        try:
            ranks = list(comm)
        except TypeError:
            raise InvalidArgumentError(
                f"init() takes ranks or a communicator of mpi4py, got {type(comm).__name__}."
            ) from None
        config = Config.from_environ(os.environ)
        if "mpi" not in (config.controller, config.cpu_operations):
            return None
        communicator = communicators.sub_world(ranks, config)
    return None if communicator is None else communicators.form(communicator, os.environ)
