"""MPI through mpi4py: as a peer, and as the program that each process of an MPI job runs.

    mpirun -n 2 python -m horovod.bench.mpi SOCKET

`mpi_job.py` starts that and says what to measure.
"""

from __future__ import annotations

import dataclasses
import json
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from horovod.bench.measure import measure
from horovod.bench.mpi_job import MpiRequest
from horovod.bench.operations import MPI_OPS, MPI_TYPES, OPERATIONS
from horovod.bench.peers import Peer, check, parts
from horovod.bench.work import Work, make_work

__all__ = ["MpiPeer"]


class MpiPeer(Peer):
    """MPI through mpi4py, in all processes that ``mpirun`` started."""

    def __init__(self) -> None:
        from mpi4py import MPI

        self._mpi: Any = MPI
        self._world: Any = MPI.COMM_WORLD
        self.rank, self.size = self._world.Get_rank(), self._world.Get_size()

    def barrier(self) -> None:
        self._world.Barrier()

    def total(self, values: torch.Tensor) -> torch.Tensor:
        self._world.Allreduce(self._mpi.IN_PLACE, values.numpy(), op=self._mpi.SUM)
        return values

    def _call(self, work: Work, prefix: str) -> tuple[Callable[..., Any], list[Any], dict[str, Any]]:
        """The library's function for ``work`` and its arguments; ``prefix`` "I" is the nonblocking form."""
        world, mpi = self._world, self._mpi
        about = OPERATIONS[work.operation]
        call = getattr(world, f"{prefix}{about.mpi}".capitalize())
        if not work.inputs:
            return call, [], {}
        kind = mpi.BYTE
        if about.reduces:
            kind = getattr(mpi, MPI_TYPES[str(work.inputs[0].dtype).removeprefix("torch.")])
        given, result = (
            [tensor.view(torch.uint8).numpy(), kind] for tensor in (work.inputs[0], work.outputs[0])
        )
        options = {"op": getattr(mpi, MPI_OPS[work.op])} if about.reduces else {}
        if about.rooted:
            return call, [given], {"root": 0}
        return call, [mpi.IN_PLACE, given] if about.in_place else [given, result], options

    def blocking(self, work: Work) -> Callable[[], object]:
        if OPERATIONS[work.operation].grouped:
            return self.many(parts(work))
        call, arguments, options = self._call(work, "")
        return lambda: call(*arguments, **options)

    def in_flight(self, works: Sequence[Work]) -> Callable[[], list[object]]:
        calls = [self._call(part, "I") for work in works for part in parts(work)]
        wait_for_all = self._mpi.Request.Waitall

        def run() -> list[object]:
            wait_for_all([call(*arguments, **options) for call, arguments, options in calls])
            return [None] * len(works)

        return run

    def many(self, works: Sequence[Work]) -> Callable[[], object]:
        # One after another is faster in Open MPI than all at once.
        calls = [self.blocking(work) for work in works]

        def run() -> None:
            for call in calls:
                call()

        return run


class _Server:
    """Measures what it is asked for; keeps the tensors of the last request."""

    def __init__(self, peer: MpiPeer) -> None:
        self._peer = peer
        self._made: tuple[MpiRequest, list[Work]] | None = None

    def answer(self, request: MpiRequest) -> dict[str, Any]:
        peer, same = self._peer, dataclasses.replace(request, check=False)
        if self._made is None or self._made[0] != same:
            self._made = None  # so that the old tensors are freed first
            self._made = (same, [self._work(request, i) for i in range(max(1, request.asynchronous))])
        works = self._made[1]
        call = peer.in_flight(works) if request.asynchronous else peer.blocking(works[0])
        wrong = check(peer, works, call, in_flight=bool(request.asynchronous)) if request.check else ""
        if peer.total(torch.full((1,), float(bool(wrong)))).item():
            return {"rank": peer.rank, "error": wrong and f"rank {peer.rank}: {wrong}", "timing": None}
        timing = measure(peer, call, min_time_s=request.min_time_s, max_calls=request.max_calls)
        return {"rank": peer.rank, "error": "", "timing": dataclasses.asdict(timing)}

    def _work(self, request: MpiRequest, number: int) -> Work:
        return make_work(
            request.operation,
            request.size_bytes,
            ranks=self._peer.size,
            dtype=request.dtype,
            op=request.op,
            tensors=request.tensors,
            number=number,
        )


def main() -> None:
    torch.set_num_threads(1)
    server = _Server(MpiPeer())
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(sys.argv[1])
        with connection.makefile("rw") as lines:
            for line in lines:
                lines.write(json.dumps(server.answer(MpiRequest(**json.loads(line)))) + "\n")
                lines.flush()


if __name__ == "__main__":
    main()
