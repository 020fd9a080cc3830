"""The collectives over one framework's tensors: the same for every framework.

A framework folder makes one :class:`Collectives` over its :class:`~horovod.collectives.frontend.Frontend` and
puts its own argument conventions (defaults, autograd, in-place names) around the methods here. Each of the
collectives has a file of its own in this folder.
"""

from __future__ import annotations

from horovod.collectives.allgather import Allgather
from horovod.collectives.allreduce import Allreduce
from horovod.collectives.alltoall import Alltoall
from horovod.collectives.barrier import Barrier
from horovod.collectives.broadcast import Broadcast
from horovod.collectives.frontend import T
from horovod.collectives.join import Join
from horovod.collectives.reduce import Reduce
from horovod.collectives.reducescatter import Reducescatter

__all__ = ["Collectives"]


class Collectives(
    Allreduce[T],
    Allgather[T],
    Broadcast[T],
    Alltoall[T],
    Reducescatter[T],
    Reduce[T],
    Barrier[T],
    Join[T],
):
    """The collectives over one framework's tensors, with the handles that are outstanding."""
