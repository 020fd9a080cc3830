"""The libraries that are compared, behind one small interface: each rank holds one of each.

A peer makes functions out of works. What can be prepared is prepared then, so that a call costs what the
library's call costs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch

from horovod.bench.measure import Team
from horovod.bench.operations import GLOO_OPS, OPERATIONS
from horovod.bench.options import size_name
from horovod.bench.work import Work, describe_wrong, fill, single

__all__ = ["Farandole", "Gloo", "Limit", "Peer", "check", "parts", "path_taken"]


class Peer(ABC):
    """One library on one rank. Constructing it joins the job."""

    rank: int
    size: int

    @abstractmethod
    def barrier(self) -> None:
        """Return after all ranks arrived."""

    @abstractmethod
    def total(self, values: torch.Tensor) -> torch.Tensor:
        """The sum over ranks of a float32 tensor, perhaps in place."""

    @abstractmethod
    def blocking(self, work: Work) -> Callable[[], object]:
        """A function that carries out ``work`` and returns what :meth:`results` wants to see."""

    @abstractmethod
    def in_flight(self, works: Sequence[Work]) -> Callable[[], list[object]]:
        """A function that starts all ``works`` and then waits for all."""

    def many(self, works: Sequence[Work]) -> Callable[[], object]:
        """The library's own best way to carry out many works that are ready at once."""
        return self.in_flight(works)

    def results(self, work: Work, returned: object) -> tuple[torch.Tensor, ...]:
        """The result's tensors, after a call returned ``returned``."""
        return work.outputs

    def offers(self, operation: str) -> bool:
        """Return whether this peer has ``operation``."""
        return True

    def paths(self) -> dict[str, tuple[int, int]]:
        """Data path to (operations, bytes) so far, where the library tells."""
        return {}

    def close(self) -> None:
        """Leave the job, all ranks together."""
        self.barrier()


def path_taken(before: dict[str, tuple[int, int]], after: dict[str, tuple[int, int]]) -> str:
    """The data path with most new operations; "" where the peer does not tell.

    Not with most bytes: agreeing on times may move more than small tensors do.
    """
    new = {path: count - before.get(path, (0, 0))[0] for path, (count, _) in after.items()}
    return max(new, key=lambda path: new[path], default="")


def parts(work: Work) -> list[Work]:
    """The members of a group as works of their own; of no group it alone."""
    if not OPERATIONS[work.operation].grouped:
        return [work]
    operation = work.operation.removeprefix("grouped_")
    return [single(operation, each, f"{work.name}.{i}", work.op) for i, each in enumerate(work.inputs)]


class Farandole(Peer):
    """This library, through its interface for PyTorch.

    Args:
        process_set: the ranks that measure; by default all. ``rank`` and ``size`` are those within it.
    """

    def __init__(self, process_set: Any = None) -> None:
        import horovod.torch as hvd
        from horovod.observe import data_paths

        self._hvd: Any = hvd
        self._data_paths = data_paths
        hvd.init()
        self._set: Any = process_set or self._hvd.global_process_set
        self.rank, self.size = self._set.rank(), self._set.size()
        self._root: int = self._set.ranks[0]

    def barrier(self) -> None:
        self._hvd.barrier(process_set=self._set)

    def total(self, values: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self._hvd.allreduce_(
            values, op=self._hvd.Sum, name=f"bench.total.{len(values)}", process_set=self._set
        )
        return result

    def _calls(self, work: Work) -> tuple[Callable[..., Any], Callable[..., Any], list[Any], dict[str, Any]]:
        """The library's functions for ``work``, blocking and asynchronous, and their arguments."""
        hvd, about = self._hvd, OPERATIONS[work.operation]
        mark = "_" if about.in_place else ""
        forms = (getattr(hvd, f"{work.operation}{mark}"), getattr(hvd, f"{work.operation}_async{mark}"))
        first: list[Any] = [list(work.inputs) if about.grouped else work.inputs[0]]
        if about.rooted:
            first.append(self._root)
        options: dict[str, Any] = {"name": work.name, "process_set": self._set}
        if about.reduces:
            options["op"] = getattr(hvd, work.op.capitalize())
        return *forms, first, options

    def blocking(self, work: Work) -> Callable[[], object]:
        if work.operation == "barrier":
            return self.barrier
        call, _, arguments, options = self._calls(work)
        return lambda: call(*arguments, **options)

    def in_flight(self, works: Sequence[Work]) -> Callable[[], list[object]]:
        calls = [self._calls(work)[1:] for work in works]
        synchronize = self._hvd.synchronize

        def run() -> list[object]:
            handles = [submit(*arguments, **options) for submit, arguments, options in calls]
            return [synchronize(handle) for handle in handles]

        return run

    def results(self, work: Work, returned: object) -> tuple[torch.Tensor, ...]:
        if OPERATIONS[work.operation].in_place:
            return work.outputs
        # An asynchronous alltoall also returns how many rows came from whom.
        tensor = returned[0] if isinstance(returned, tuple) else returned
        assert isinstance(tensor, torch.Tensor)
        return (tensor,)

    def paths(self) -> dict[str, tuple[int, int]]:
        return self._data_paths()

    def close(self) -> None:
        super().close()
        self._hvd.shutdown()


class Gloo(Peer):
    """PyTorch's own collectives (``torch.distributed``) over Gloo.

    Args:
        store, rank, size: how and as whom to meet the others; by default what the environment says.
        ranks: those that measure; by default all. Every rank makes the object, only these use it.
    """

    def __init__(
        self, store: Any = None, rank: int = -1, size: int = -1, ranks: Sequence[int] | None = None
    ) -> None:
        import torch.distributed as dist

        self._dist: Any = dist
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
        everybody = list(range(dist.get_world_size()))
        members = list(everybody if ranks is None else ranks)
        self._group: Any = None if members == everybody else dist.new_group(members)
        self._root = members[0]
        self.rank = members.index(dist.get_rank()) if dist.get_rank() in members else -1
        self.size = len(members)

    def barrier(self) -> None:
        self._dist.barrier(group=self._group)

    def total(self, values: torch.Tensor) -> torch.Tensor:
        self._dist.all_reduce(values, group=self._group)
        return values

    def _call(self, work: Work) -> tuple[Callable[..., Any], list[Any], dict[str, Any]]:
        """The library's function for ``work`` and its arguments."""
        options: dict[str, Any] = {"group": self._group}
        if work.op:
            options["op"] = getattr(self._dist.ReduceOp, GLOO_OPS[work.op])
        of = OPERATIONS[work.operation].gloo
        assert of is not None  # a group is taken apart before
        given, result = (tensors[0] if tensors else None for tensors in (work.inputs, work.outputs))
        return *of(self._dist, given, result, self._root), options

    def blocking(self, work: Work) -> Callable[[], object]:
        if OPERATIONS[work.operation].grouped:
            return self.many(parts(work))
        call, arguments, options = self._call(work)
        return lambda: call(*arguments, **options)

    def in_flight(self, works: Sequence[Work]) -> Callable[[], list[object]]:
        calls = [self._call(part) for work in works for part in parts(work)]

        def run() -> list[object]:
            started = [call(*arguments, async_op=True, **options) for call, arguments, options in calls]
            for each in started:
                each.wait()
            return [None] * len(works)

        return run

    def close(self) -> None:
        self._dist.barrier()
        self._dist.destroy_process_group()


class Limit(Peer):
    """Not a library: all ranks pass over their tensors in place at once, as fast as memory allows.

    No allreduce of private tensors can be faster: each rank must read its input and write its output. For
    tensors that fit in a cache it is what calling PyTorch costs.

    Args:
        team: by what the ranks meet.
    """

    def __init__(self, team: Team) -> None:
        self._team = team
        self.rank, self.size = team.rank, team.size

    def barrier(self) -> None:
        self._team.barrier()

    def total(self, values: torch.Tensor) -> torch.Tensor:
        return self._team.total(values)

    def blocking(self, work: Work) -> Callable[[], object]:
        if len(work.inputs) != 1:
            return self.many(parts(work))
        (tensor,) = work.inputs
        return lambda: tensor.mul_(1.0)

    def in_flight(self, works: Sequence[Work]) -> Callable[[], list[object]]:
        calls = [self.blocking(work) for work in works]
        return lambda: [call() for call in calls]

    def many(self, works: Sequence[Work]) -> Callable[[], object]:
        tensors = [tensor for work in works for tensor in work.inputs]
        return lambda: torch._foreach_mul_(tensors, 1.0)

    def offers(self, operation: str) -> bool:
        return operation in ("allreduce", "grouped_allreduce")


def check(peer: Peer, works: Sequence[Work], call: Callable[[], Any], *, in_flight: bool = False) -> str:
    """Run ``call``, which carries out ``works``, once on known inputs.

    Inputs are zero afterwards: zeros stay finite however often they are reduced.

    Args:
        call: what :meth:`Peer.blocking` made of the only work, or :meth:`Peer.in_flight` of all.

    Returns:
        What is wrong on this rank, as a sentence; "" if nothing is.
    """
    for work in works:
        fill(work, peer.rank)
        for result in work.outputs:
            if all(result is not given for given in work.inputs):
                result.zero_()
    returned = call()
    said = ""
    for work, one in zip(works, returned if in_flight else [returned], strict=True):
        wrong = describe_wrong(work, peer.results(work, one), peer.rank, peer.size)
        if wrong and not said:
            said = f"{work.operation} of {size_name(work.size_bytes)} is wrong: {wrong}"
        for tensor in work.inputs:
            tensor.zero_()
    return said
