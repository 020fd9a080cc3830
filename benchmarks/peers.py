"""The libraries that are compared, behind one small interface: each rank of a benchmark holds one peer.

Every operation works on one-dimensional CPU tensors and is blocking, except in `allreduce_many`,
which is the library's own best way to reduce many tensors.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch

NAMES = ("rueda", "gloo", "openmpi", "limit")


class Peer(ABC):
    """One library on one rank. Constructing it joins the job."""

    rank: int
    size: int

    @abstractmethod
    def barrier(self) -> None:
        """Return after all ranks arrived."""

    @abstractmethod
    def allreduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum over ranks, in place; shape ``(n,)``."""

    @abstractmethod
    def allgather(self, tensor: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """All ranks' ``tensor`` one after another; shape ``(size * n,)``. Some libraries ignore ``out``."""

    @abstractmethod
    def broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        """Rank 0's ``tensor`` everywhere, in place."""

    @abstractmethod
    def alltoall(self, tensor: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Equal parts of ``tensor`` to each rank; same shape."""

    @abstractmethod
    def reducescatter(self, tensor: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """This rank's equal part of the sum; shape ``(n / size,)``."""

    def adasum(self, tensor: torch.Tensor) -> torch.Tensor:
        """The Adasum of all ranks' tensors, in place; shape ``(n,)``."""
        raise NotImplementedError

    def offers(self, operation: str) -> bool:
        """Whether this peer has the operation."""
        return operation != "adasum"

    def allreduce_many(self, tensors: Sequence[torch.Tensor]) -> None:
        for tensor in tensors:
            self.allreduce(tensor)

    def allreduce_group(self, tensors: Sequence[torch.Tensor]) -> None:
        """As one group, where the library has such a thing."""
        raise NotImplementedError

    def paths(self) -> dict[str, tuple[int, int]]:
        """Data path to (operations, bytes) so far, where the library tells."""
        return {}

    def close(self) -> None:
        """Leave the job, all ranks together."""
        self.barrier()


class Rueda(Peer):
    def __init__(self) -> None:
        import horovod.torch as hvd
        from horovod.observe import data_paths

        self._hvd: Any = hvd
        self._data_paths = data_paths
        hvd.init()
        self.rank, self.size = hvd.rank(), hvd.size()

    def offers(self, operation: str) -> bool:
        return operation != "adasum" or self.size & (self.size - 1) == 0

    def barrier(self) -> None:
        self._hvd.barrier()

    def allreduce(self, tensor: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self._hvd.allreduce_(tensor, op=self._hvd.Sum, name=f"allreduce{len(tensor)}")
        return result

    def adasum(self, tensor: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self._hvd.allreduce_(tensor, op=self._hvd.Adasum, name=f"adasum{len(tensor)}")
        return result

    def allgather(self, tensor: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self._hvd.allgather(tensor, name=f"allgather{len(tensor)}")
        return result

    def broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self._hvd.broadcast_(tensor, 0, name=f"broadcast{len(tensor)}")
        return result

    def alltoall(self, tensor: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self._hvd.alltoall(tensor, name=f"alltoall{len(tensor)}")
        return result

    def reducescatter(self, tensor: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        name = f"reducescatter{len(tensor)}"
        result: torch.Tensor = self._hvd.reducescatter(tensor, op=self._hvd.Sum, name=name)
        return result

    def allreduce_many(self, tensors: Sequence[torch.Tensor]) -> None:
        submit = self._hvd.allreduce_async_
        handles = [submit(t, op=self._hvd.Sum, name=f"gradient{i}") for i, t in enumerate(tensors)]
        for handle in handles:
            self._hvd.synchronize(handle)

    def allreduce_group(self, tensors: Sequence[torch.Tensor]) -> None:
        self._hvd.grouped_allreduce_(list(tensors), op=self._hvd.Sum, name="gradients")

    def paths(self) -> dict[str, tuple[int, int]]:
        return self._data_paths()

    def close(self) -> None:
        super().close()
        self._hvd.shutdown()


class Gloo(Peer):
    """PyTorch's own collectives (torch.distributed) over Gloo."""

    def __init__(self) -> None:
        import torch.distributed as dist

        self._dist: Any = dist
        dist.init_process_group("gloo")
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def barrier(self) -> None:
        self._dist.barrier()

    def allreduce(self, tensor: torch.Tensor) -> torch.Tensor:
        self._dist.all_reduce(tensor)
        return tensor

    def allgather(self, tensor: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        self._dist.all_gather(list(out.split(len(tensor))), tensor)
        return out

    def broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        self._dist.broadcast(tensor, 0)
        return tensor

    def alltoall(self, tensor: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        self._dist.all_to_all_single(out, tensor)
        return out

    def reducescatter(self, tensor: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        self._dist.reduce_scatter_tensor(out, tensor)
        return out

    def allreduce_many(self, tensors: Sequence[torch.Tensor]) -> None:
        for work in [self._dist.all_reduce(t, async_op=True) for t in tensors]:
            work.wait()

    def close(self) -> None:
        super().close()
        self._dist.destroy_process_group()


class OpenMpi(Peer):
    """Open MPI through mpi4py; float32 only."""

    def __init__(self) -> None:
        from mpi4py import MPI

        self._mpi: Any = MPI
        self._world: Any = MPI.COMM_WORLD
        self.rank, self.size = self._world.Get_rank(), self._world.Get_size()
        self._buffers: dict[int, list[Any]] = {}

    def _buffer(self, tensor: torch.Tensor) -> list[Any]:
        # Made once per tensor, so that a call costs what the MPI call costs.
        buffer = self._buffers.get(id(tensor))
        if buffer is None or buffer[2] is not tensor:
            buffer = self._buffers[id(tensor)] = [tensor.numpy(), self._mpi.FLOAT, tensor]
        return buffer[:2]

    def barrier(self) -> None:
        self._world.Barrier()

    def allreduce(self, tensor: torch.Tensor) -> torch.Tensor:
        self._world.Allreduce(self._mpi.IN_PLACE, self._buffer(tensor), op=self._mpi.SUM)
        return tensor

    def allgather(self, tensor: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        self._world.Allgather(self._buffer(tensor), self._buffer(out))
        return out

    def broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        self._world.Bcast(self._buffer(tensor), root=0)
        return tensor

    def alltoall(self, tensor: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        self._world.Alltoall(self._buffer(tensor), self._buffer(out))
        return out

    def reducescatter(self, tensor: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        self._world.Reduce_scatter_block(self._buffer(tensor), self._buffer(out), op=self._mpi.SUM)
        return out


class Limit(Gloo):
    """Not a library: all ranks pass over their tensor in place at once, as fast as memory allows.

    No allreduce of private tensors can be faster: each rank must read its input and write its output.
    """

    def offers(self, operation: str) -> bool:
        return operation == "allreduce"

    def allreduce(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.mul_(1.0)

    def allreduce_many(self, tensors: Sequence[torch.Tensor]) -> None:
        torch._foreach_mul_(list(tensors), 1.0)

    def allreduce_exactly(self, tensor: torch.Tensor) -> torch.Tensor:
        return super().allreduce(tensor)


def create(name: str) -> Peer:
    """Join the job with library `name` (one of `NAMES`).

    Raises:
        ValueError: no such peer.
    """
    kinds: dict[str, type[Peer]] = {"rueda": Rueda, "gloo": Gloo, "openmpi": OpenMpi, "limit": Limit}
    if name not in kinds:
        raise ValueError(f"unknown peer {name!r}: choose from {', '.join(NAMES)}")
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    return kinds[name]()


def total(peer: Peer, values: torch.Tensor) -> torch.Tensor:
    """The sum over ranks of a float32 tensor, really computed, also where the peer is the limit."""
    return peer.allreduce_exactly(values) if isinstance(peer, Limit) else peer.allreduce(values)
