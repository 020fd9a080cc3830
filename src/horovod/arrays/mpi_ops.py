"""The collectives of ``horovod.arrays``, over arrays of NumPy, CuPy, Numba and others.

Of every collective there are up to four forms: ``x`` blocks and returns new arrays; ``x_`` blocks and works
in place; ``x_async`` and ``x_async_`` return a handle for :func:`poll` and :func:`synchronize`. An array must
not be modified, and a result not be read, between submission and ``synchronize``.

All raise ``ValueError`` for what is wrong on this rank alone (no ``init()``, dtype, layout, a name in flight,
a root that does not exist) and ``HorovodInternalError`` for what fails between ranks, at the latest in
``synchronize``.
"""

from __future__ import annotations

import atexit
from typing import TYPE_CHECKING, Any

from horovod.arrays import collectives as _files
from horovod.arrays.collectives.allgather import *  # noqa: F403  (republished)
from horovod.arrays.collectives.allreduce import *  # noqa: F403  (republished)
from horovod.arrays.collectives.alltoall import *  # noqa: F403  (republished)
from horovod.arrays.collectives.barrier import *  # noqa: F403  (republished)
from horovod.arrays.collectives.broadcast import *  # noqa: F403  (republished)
from horovod.arrays.collectives.join import *  # noqa: F403  (republished)
from horovod.arrays.collectives.reduce import *  # noqa: F403  (republished)
from horovod.arrays.collectives.reducescatter import *  # noqa: F403  (republished)
from horovod.arrays.frontend import collectives
from horovod.common import everywhere
from horovod.common.everywhere import *  # noqa: F403

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

_basics = everywhere._basics

atexit.register(collectives.table.forget)  # frees the engine of the last world


def init(*args: Any, **kwargs: Any) -> None:
    """Form the world with all other launched processes: see ``HorovodBasics.init``. Old handles are
    forgotten."""
    _basics.init(*args, **kwargs)


def shutdown(*args: Any, **kwargs: Any) -> None:
    """End the world on every rank; operations that have not started fail with ``HorovodInternalError``."""
    _basics.shutdown(*args, **kwargs)


def poll(handle: int) -> bool:
    """Return whether the result is there, so that :func:`synchronize` would return at once.

    Raises:
        ValueError: the handle is unknown or already consumed.
    """
    return collectives.poll(handle)


def synchronize(handle: int) -> Any:
    """Wait for an asynchronous operation and return its result: an array, a tuple for a group, or the pair of
    rows and received numbers of an alltoall.

    The handle is consumed. An unknown or already consumed handle gives ``None``.

    Raises:
        HorovodInternalError: the operation failed.
    """
    return collectives.synchronize(handle)
