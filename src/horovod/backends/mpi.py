"""MPI as a backend, over mpi4py: for fabrics that only MPI drives.

Every process set has a communicator of its own. All calls are nonblocking, and what they wait for is polled:
waiting inside of MPI would take a core that a rank may need.

MPI reduces what it reduces as this package does. Half types, and minimum and maximum of floating point
(where a NaN must win), are reduced by the engine over ``send`` and ``recv``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

from horovod import _core
from horovod.backends.communicators import load
from horovod.backends.contract import Backend
from horovod.errors import BackendError, ConfigError

__all__ = ["MpiBackend"]

_CHUNK_BYTES = 128 << 20
"""Of one call of MPI. Counts of MPI are 32 bits wide, and a chunk that has gone is a sign of life."""

_MOST_BYTES = (1 << 31) - 1

_INTEGERS = {
    _core.UINT8: "UINT8_T",
    _core.INT8: "INT8_T",
    _core.UINT16: "UINT16_T",
    _core.INT16: "INT16_T",
    _core.INT32: "INT32_T",
    _core.INT64: "INT64_T",
}
_FLOATS = {_core.FLOAT32: "FLOAT", _core.FLOAT64: "DOUBLE"}
_TYPES = {**_INTEGERS, **_FLOATS, _core.BOOL: "C_BOOL"}

_OPS = {_core.SUM: "SUM", _core.MIN: "MIN", _core.MAX: "MAX", _core.PRODUCT: "PROD"}
_BOOL_OPS = {_core.SUM: "LOR", _core.MIN: "LAND", _core.MAX: "LOR", _core.PRODUCT: "LAND"}


class MpiBackend(Backend):
    """Attributes:
    communicator: whose ranks are those of the world; None: ``MPI.COMM_WORLD``.
    """

    communicator: ClassVar[Any] = None

    @classmethod
    def over(cls, communicator: Any) -> type[MpiBackend]:
        """The class for a world that another communicator describes."""
        return type(cls.__name__, (cls,), {"communicator": communicator})

    @classmethod
    def check(cls, rank: int, size: int) -> None:
        mpi = load()
        if mpi.Query_thread() < mpi.THREAD_SERIALIZED:
            raise ConfigError(
                "MPI was started for one thread only (mpi4py.rc.thread_level), but the operations run on a "
                "thread of their own: it must be 'serialized' or 'multiple'."
            )
        world = cls._world()
        if (world.Get_rank(), world.Get_size()) != (rank, size):
            raise ConfigError(
                f"HOROVOD_CPU_OPERATIONS=mpi, but this process, rank {rank} of {size}, is rank "
                f"{world.Get_rank()} of {world.Get_size()} in MPI. Start the script with mpirun "
                "(or horovodrun --mpi), not with a launcher that MPI does not know.",
                variable="HOROVOD_CPU_OPERATIONS",
            )

    @classmethod
    def reduces(cls, dtype: int, op: int) -> bool:
        return (
            dtype in _INTEGERS
            or dtype == _core.BOOL
            or (dtype in _FLOATS and op in (_core.SUM, _core.PRODUCT))
        )

    @classmethod
    def _world(cls) -> Any:
        return load().COMM_WORLD if cls.communicator is None else cls.communicator

    def __init__(self, ranks: tuple[int, ...], rank: int, groups: tuple[tuple[int, ...], ...]) -> None:
        super().__init__(ranks, rank, groups)
        self._mpi = load()
        self._aborted = False
        world = self._world()
        self._comm = world.Create_group(world.Get_group().Incl(list(ranks)))
        self._comm.Set_errhandler(self._mpi.ERRORS_RETURN)

    def abort(self) -> None:
        self._aborted = True

    def close(self) -> None:
        self._comm.Free()

    # -- verbs ---------------------------------------------------------------------------------------------

    def send(self, peer: int, data: memoryview) -> Iterator[object]:
        return self._transfer(self._comm.Isend, data, peer)

    def recv(self, peer: int, data: memoryview) -> Iterator[object]:
        return self._transfer(self._comm.Irecv, data, peer)

    def allreduce(self, data: memoryview, dtype: int, op: int) -> Iterator[object]:
        kind, how, width = self._reduction(dtype, op)
        for chunk in _chunks(data, width):
            yield from self._end_of(
                self._comm.Iallreduce(self._mpi.IN_PLACE, [chunk, len(chunk) // width, kind], how)
            )

    def allgatherv(self, data: memoryview, out: memoryview, lengths: tuple[int, ...]) -> Iterator[object]:
        if len(out) <= _MOST_BYTES:
            return self._end_of(
                self._comm.Iallgatherv(
                    [data, self._mpi.BYTE], [out, lengths, _starts(lengths), self._mpi.BYTE]
                )
            )
        return self._exchange([data] * self.size, _cut(out, lengths))

    def broadcast(self, data: memoryview, root: int) -> Iterator[object]:
        for chunk in _chunks(data, 1):
            yield from self._end_of(self._comm.Ibcast([chunk, self._mpi.BYTE], root))

    def reducescatterv(
        self, data: memoryview, out: memoryview, lengths: tuple[int, ...], dtype: int, op: int
    ) -> Iterator[object]:
        kind, how, width = self._reduction(dtype, op)
        if len(data) <= _MOST_BYTES:
            counts = [length // width for length in lengths]
            yield from self._end_of(
                self._comm.Ireduce_scatter(
                    [data, sum(counts), kind], [out, counts[self.rank], kind], counts, how
                )
            )
            return
        for owner, part in enumerate(_cut(data, lengths)):
            mine = _chunks(out, width) if owner == self.rank else None
            for chunk in _chunks(part, width):
                here = None if mine is None else [next(mine), len(chunk) // width, kind]
                yield from self._end_of(
                    self._comm.Ireduce([chunk, len(chunk) // width, kind], here, how, owner)
                )

    def alltoallv(
        self, data: memoryview, out: memoryview, send_lengths: tuple[int, ...], recv_lengths: tuple[int, ...]
    ) -> Iterator[object]:
        # Not Ialltoallv: whether its counts suffice is for each member to know, and all must do the same.
        return self._exchange(_cut(data, send_lengths), _cut(out, recv_lengths))

    def barrier(self) -> Iterator[object]:
        return self._end_of(self._comm.Ibarrier())

    # -- how they wait -------------------------------------------------------------------------------------

    def _end_of(self, request: Any) -> Iterator[object]:
        while not request.Test():
            if self._aborted:
                raise BackendError("given up, as the world has ended", library="mpi")
            yield False
        yield True

    def _transfer(self, call: Callable[[Any, int], Any], data: memoryview, peer: int) -> Iterator[object]:
        for chunk in _chunks(data, 1):
            yield from self._end_of(call([chunk, self._mpi.BYTE], peer))

    def _exchange(self, sent: Sequence[memoryview], received: Sequence[memoryview]) -> Iterator[object]:
        """Everybody sends a part to everybody; the own one is copied."""
        received[self.rank][:] = sent[self.rank]
        moves = []
        for distance in range(1, self.size):  # so that not all begin with member 0
            to, source = (self.rank + distance) % self.size, (self.rank - distance) % self.size
            moves.append(self._transfer(self._comm.Irecv, received[source], source))
            moves.append(self._transfer(self._comm.Isend, sent[to], to))
        while moves:
            moved = False
            for move in list(moves):
                try:
                    moved |= bool(next(move))
                except StopIteration:
                    moves.remove(move)
                    moved = True
            if moves:
                yield moved

    def _reduction(self, dtype: int, op: int) -> tuple[Any, Any, int]:
        kind = getattr(self._mpi, _TYPES[dtype])
        names = _BOOL_OPS if dtype == _core.BOOL else _OPS
        return kind, getattr(self._mpi, names[op]), kind.Get_size()


def _chunks(data: memoryview, width: int) -> Iterator[memoryview]:
    """Parts of whole elements; of nothing, one of nothing."""
    step = _CHUNK_BYTES // width * width
    for begin in range(0, max(len(data), 1), step):
        yield data[begin : begin + step]


def _cut(data: memoryview, lengths: Sequence[int]) -> list[memoryview]:
    return [data[start : start + length] for start, length in zip(_starts(lengths), lengths, strict=True)]


def _starts(lengths: Sequence[int]) -> list[int]:
    starts = [0]
    for length in lengths[:-1]:
        starts.append(starts[-1] + length)
    return starts
