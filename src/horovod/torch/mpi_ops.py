"""The collectives of ``horovod.torch``.

Of every collective there are up to four forms: ``x`` blocks, returns new tensors and takes part in autograd;
``x_`` blocks and works in place; ``x_async`` and ``x_async_`` return a handle for :func:`poll` and
:func:`synchronize`. A tensor must not be modified, and a result not be read, between submission and
``synchronize``.

All raise ``ValueError`` for what is wrong on this rank alone (no ``init()``, dtype, layout, a name in flight,
a root that does not exist) and ``HorovodInternalError`` for what fails between ranks, at the latest in
``synchronize``.
"""

from __future__ import annotations

import atexit
from typing import TYPE_CHECKING, Any

from horovod.common import everywhere
from horovod.common.everywhere import *  # noqa: F403  (republished)
from horovod.torch import collectives as _files
from horovod.torch.autograd import collectives
from horovod.torch.collectives.allgather import *  # noqa: F403
from horovod.torch.collectives.allgather import HorovodAllgather as HorovodAllgather
from horovod.torch.collectives.allgather import HorovodGroupedAllgather as HorovodGroupedAllgather
from horovod.torch.collectives.allreduce import *  # noqa: F403
from horovod.torch.collectives.allreduce import HorovodAllreduce as HorovodAllreduce
from horovod.torch.collectives.allreduce import HorovodGroupedAllreduce as HorovodGroupedAllreduce
from horovod.torch.collectives.alltoall import *  # noqa: F403
from horovod.torch.collectives.alltoall import HorovodAlltoall as HorovodAlltoall
from horovod.torch.collectives.barrier import *  # noqa: F403
from horovod.torch.collectives.broadcast import *  # noqa: F403
from horovod.torch.collectives.broadcast import HorovodBroadcast as HorovodBroadcast
from horovod.torch.collectives.join import *  # noqa: F403
from horovod.torch.collectives.reduce import *  # noqa: F403
from horovod.torch.collectives.reducescatter import *  # noqa: F403
from horovod.torch.collectives.reducescatter import HorovodGroupedReducescatter as HorovodGroupedReducescatter
from horovod.torch.collectives.reducescatter import HorovodReducescatter as HorovodReducescatter
from horovod.torch.collectives.sparse_allreduce import *  # noqa: F403

if not TYPE_CHECKING:  # type checkers follow the imports; a computed list hides names from some
    __all__ = ["init", "poll", "shutdown", "synchronize"]
    __all__ += everywhere.__all__
    __all__ += _files.allgather.__all__
    __all__ += _files.allreduce.__all__
    __all__ += _files.alltoall.__all__
    __all__ += _files.barrier.__all__
    __all__ += _files.broadcast.__all__
    __all__ += _files.join.__all__
    __all__ += _files.reduce.__all__
    __all__ += _files.reducescatter.__all__
    __all__ += _files.sparse_allreduce.__all__

_basics = everywhere._basics

atexit.register(collectives.table.forget)  # frees the engine of the last world


def init(*args: Any, **kwargs: Any) -> None:
    """Form the world with all other launched processes: see ``HorovodBasics.init``. Old handles are
    forgotten."""
    _basics.init(*args, **kwargs)


def shutdown(*args: Any, **kwargs: Any) -> None:
    """End the world on every rank; operations that have not started fail with ``HorovodInternalError``."""
    _basics.shutdown(*args, **kwargs)


# -- waiting ------------------------------------------------------------------------------------------------


def poll(handle: int) -> bool:
    """Return whether :func:`synchronize` would return at once.

    Raises:
        ValueError: the handle is unknown or already consumed.
    """
    return collectives.poll(handle)


def synchronize(handle: int) -> Any:
    """Wait for an asynchronous operation and return its result: a tensor, a tuple for a group, or the pair of
    rows and received numbers of an alltoall.

    The handle is consumed. An unknown or already consumed handle gives ``None``.

    Raises:
        HorovodInternalError: the operation failed.
    """
    return collectives.synchronize(handle)
