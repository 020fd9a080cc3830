"""The collectives over one framework's tensors: the same for every framework.

A framework folder makes one :class:`Collectives` over its :class:`~horovod.collectives.frontend.Frontend` and
puts its own argument conventions (defaults, autograd, in-place names) around the methods here. Each of the
collectives that take tensors has a file of its own in this folder.
"""

from __future__ import annotations

from typing import Final

from horovod import _core
from horovod.collectives.allgather import Allgather
from horovod.collectives.allreduce import Allreduce
from horovod.collectives.alltoall import Alltoall
from horovod.collectives.base import AWAITED, current_engine
from horovod.collectives.broadcast import Broadcast
from horovod.collectives.frontend import T
from horovod.collectives.ops import Sum
from horovod.collectives.reduce import Reduce
from horovod.collectives.reducescatter import Reducescatter
from horovod.runtime import lifecycle
from horovod.runtime.process_set import ProcessSet, global_process_set, process_set_id

__all__ = ["Collectives"]

_BARRIER: Final[int] = _core.BARRIER
_JOIN: Final[int] = _core.JOIN


class Collectives(Allreduce[T], Allgather[T], Broadcast[T], Alltoall[T], Reducescatter[T], Reduce[T]):
    """The collectives over one framework's tensors, with the handles that are outstanding."""

    def barrier(self, process_set: ProcessSet = global_process_set) -> None:
        """Return after every rank of the set has called. Pending asynchronous operations may stay pending.

        Raises:
            TypeError: ``process_set`` is not registered.
            IndexError: it has been removed.
            ValueError: this rank is not in it.
            HorovodInternalError: a rank was lost.
        """
        engine = current_engine()
        number = process_set_id(process_set)
        if number and number not in engine.process_sets():
            raise IndexError(f"{process_set} does not exist, or has not been registered.")
        self._run(_BARRIER, None, None, None, process_set)

    def join(self, device: int = -1) -> int:
        """This rank has no more data: wait until every rank has joined, and return the one that was last.

        Meanwhile this rank takes part in the others' allreduces with zeros: they count in averages, minima,
        maxima and products. All other operations of the global set fail for the others.

        Args:
            device: has no effect: those zeros are in host memory.

        Raises:
            HorovodInternalError: a rank was lost.
        """
        engine = current_engine()
        last = engine.wait(engine.submit(_JOIN, None, None, Sum, 1.0, 1.0, 0, 0, AWAITED))
        assert isinstance(last, int)
        lifecycle.current().joins.count += 1
        return last
